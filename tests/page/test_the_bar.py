"""The bar at the end of the form, in a real browser: where the copy goes, what is there, and signing in on the way."""

import re
import time

from playwright.sync_api import Page, expect

from tests.inhouse import InHouse
from tests.page.conftest import STYLE, Visit, advanced, cancel, enter, fits, held_job, size, where
from tests.page.site import Site, copy_name
from tests.page.test_for_everybody import axe, tab_to, violations
from tests.page.test_pushing import asked_for

SIGNS_IN = "Sign in and start"

# --- Signed out -----------------------------------------------------------------------------------------


def test_who_is_signed_out_presses_one_button_and_the_job_starts_by_itself_once_as_it_was_chosen(
    space: Site, visit: Visit, hub: InHouse, small: str
) -> None:
    page, name = visit(space, f"?repo={small}"), copy_name("mine")
    expect(page.locator("#target")).to_contain_text("to your namespace, public")
    expect(page.locator("#start")).to_have_text(SIGNS_IN)
    enter(size(page), "90kB")
    where(page).get_by_label("Name of the new repo").fill(name)
    page.get_by_label("Private", exact=True).check()
    page.get_by_label("Measure loading too").check()
    expect(page.locator("#target")).to_contain_text(f"to {name}, private")
    with held_job(hub, name):
        page.locator("#start:not([disabled])").get_by_text(SIGNS_IN).click()
        page.get_by_role("button", name="Continue as alice").click()
        expect(page.locator("#progress .job")).to_contain_text(f"alice/{name}")
        expect(page).to_have_url(re.compile(r"\?job="))
        asked = asked_for(space, page.url.partition("?job=")[2])
        assert asked["private"] is asked["compare"] is True and asked["max_shard_size"] == "90kB"
        cancel(page)
        expect(page.locator("#progress .cancelled")).to_be_visible()
    # The way back leads to the plan, and no further.
    page.go_back()
    stays_a_plan(page)


def stays_a_plan(page: Page) -> None:
    """Have a page with a plan, where nothing has started and another choice is answered."""
    page.locator("#start:not([disabled])").wait_for()
    expect(page.locator("#target")).to_contain_text("to alice/")
    enter(size(page), "40kB")
    expect(page).to_have_url(re.compile(r"\?repo=.*size=40kB"))
    expect(page.locator("#start-message")).to_be_empty()
    assert "?job=" not in page.url and page.locator("#progress .job").count() == 0


def test_neither_a_link_starts_a_job_nor_a_wish_of_long_ago_for_other_choices_or_before_another_login(
    space: Site, visit: Visit, hub: InHouse, small: str
) -> None:
    page, name = visit(space, STYLE, user="alice"), copy_name("never")
    link = f"?repo={small}&size=90kB&to=alice/{name}"

    def arrive(wish: str) -> None:
        page.goto(f"{space.address}/{STYLE}")
        page.evaluate(f"wish => sessionStorage.{wish}", [link, 1000 * time.time()])
        page.goto(f"{space.address}/{link}")

    for wish in (
        "clear()",
        "setItem('start', JSON.stringify([wish[0], wish[1] - 601_000]))",
        "setItem('start', JSON.stringify([wish[0].replace('90kB', '40kB'), wish[1]]))",
    ):
        arrive(wish)
        stays_a_plan(page)
    # A wish is gone when the visitor comes back without a login, and so the next login starts nothing.
    page.context.clear_cookies()
    arrive("setItem('start', JSON.stringify(wish))")
    expect(page.locator("#start:not([disabled])")).to_have_text(SIGNS_IN)
    page.locator("#sign-in").click()
    page.get_by_role("button", name="Continue as alice").click()
    stays_a_plan(page)
    assert not hub.api().repo_exists(f"alice/{name}")
    # The same wish in time, with the login: it is what the others lack.
    with held_job(hub, name):
        arrive("setItem('start', JSON.stringify(wish))")
        expect(page.locator("#progress .job")).to_contain_text(f"alice/{name}")
        cancel(page)


# --- What is changed on it ------------------------------------------------------------------------------


def test_owner_name_visibility_and_measuring_are_changed_on_the_bar_by_keyboard_alone(
    home: Site, visit: Visit, small: str
) -> None:
    page, name = visit(home, f"?repo={small}&size=90kB"), copy_name()
    page.set_viewport_size({"width": 390, "height": 844})
    page.locator("#start:not([disabled])").wait_for()
    page.locator("#start").focus()
    assert tab_to(page, "Change this, or measure loading too") == 1
    page.keyboard.press("Enter")
    tab_to(page, "Owner of the copy")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Owner of the copy")).to_have_value("acme")
    tab_to(page, "Name of the new repo")
    page.keyboard.press("Control+a")
    page.keyboard.type(name)
    page.keyboard.press("Tab")
    expect(page.get_by_label("Public", exact=True)).to_be_focused()
    page.keyboard.press("ArrowRight")
    tab_to(page, "Measure loading too")
    page.keyboard.press("Space")
    expect(page.locator("#target")).to_contain_text(f"to acme/{name}, private. Loading both takes 15 seconds more")
    expect(page.locator("#start")).to_be_in_viewport(ratio=1)
    assert fits(page)
    assert violations(page, axe()) == []


def test_a_repo_that_is_there_keeps_its_visibility_and_the_bar_says_so_and_what_happens_to_it(
    home: Site, visit: Visit, hub: InHouse, small: str, genuine: str
) -> None:
    hidden, page = f"alice/{copy_name('hidden')}", visit(home, f"?repo={small}&size=90kB")
    hub.api().create_repo(hidden, private=True)
    page.locator("#start:not([disabled])").wait_for()
    name, public, private = (
        where(page).get_by_label(it, exact=True) for it in ("Name of the new repo", "Public", "Private")
    )

    def told(named: str, *words: str) -> None:
        name.fill(named.partition("/")[2])
        name.press("Tab")
        for part in words:
            expect(page.locator("#target")).to_contain_text(part)

    there = "there already"
    told(hidden, f"to {hidden}, {there}, private", "gets a new commit")
    expect(private).to_be_checked()
    told(f"alice/{copy_name('free')}", "to alice/free", ", public")
    expect(public).to_be_checked()  # as it was chosen
    expect(page.locator("#target")).not_to_contain_text(there)
    private.check()
    told(genuine, f"to {genuine}, {there}, public", "A private copy is refused there")
    expect(private).to_be_checked()  # nobody shows what a visitor wants to hide


# --- The tutorials' way ---------------------------------------------------------------------------------


def test_to_load_and_save_is_a_choice_that_says_what_it_takes_where_the_classic_engine_can_do_it(
    home: Site, visit: Visit, small: str
) -> None:
    page = advanced(visit(home, f"?repo={small}&size=90kB&engine=classic"))
    classic = page.get_by_label("Load the model and save it again")
    expect(classic).to_be_checked()
    said = r"takes about [\d.]+ MB of memory, 240\.1 kB of mapped files and [\d.]+ kB on the disk of this machine"
    expect(page.locator("#engine")).to_contain_text(re.compile(said))
    page.get_by_label("Between layers").check()
    expect(page.locator("#engine")).to_be_hidden()
    page.get_by_label("Wherever a file is full").check()
    expect(page.get_by_label("Move its bytes")).to_be_checked()
