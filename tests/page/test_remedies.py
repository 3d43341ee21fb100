"""What helps is said in the words of the page, as a button where the page has its control; no option is shown."""

import re
from functools import cache
from pathlib import Path

import gradio as gr
import pytest
from playwright.sync_api import Locator, expect

from sharding.core.errors import Remedy, RemedyKind, ShardingError
from sharding.core.values import Finding
from sharding.page.panels import findings_panel, message, problem
from sharding.page.render import help_with, in_page_words, without_options
from tests.conftest import in_a_loop
from tests.hubs import push, shard
from tests.localhub.conftest import Server
from tests.messages import KINDS, Message, every_message
from tests.page.conftest import Visit, advanced, enter, model, where
from tests.page.rooms import form
from tests.page.site import Site, copy_name
from tests.page.sources import save_one

OPTION = re.compile(r"(?<![\w-])--[a-z]|HF_TOKEN(?!_)")
COMMAND = re.compile(r"[Rr]un again|hf auth|HF_ENDPOINT")
APART = ("cli", "page", "demo", "localhub", "probe")
"""Folders whose sentences are shown in a terminal only, or are the page's own."""
OF_WHO_STARTS_IT = ("HF_ENDPOINT", "RAY_ADDRESS")
"""What a message is about that only who starts the program can help."""


@cache
def made() -> tuple[Message, ...]:
    """Every error and finding that the page may show."""
    return tuple(each for each in every_message() if not {*APART} & {*each.room.split("/")})


def test_no_message_names_an_option_of_the_command_line() -> None:
    assert len(made()) > 250
    assert [each for each in made() if any(map(OPTION.search, each.messages))] == []


def is_of_who_starts_it(each: Message) -> bool:
    return any(variable in text for variable in OF_WHO_STARTS_IT for text in each.messages)


def test_an_error_whose_hint_names_an_option_has_a_remedy_and_the_page_shows_no_option() -> None:
    of_terminal = [each for each in made() if each.of != "Finding" and any(map(OPTION.search, each.hints))]
    assert len(of_terminal) > 20
    silent = [each for each in of_terminal if each.about not in KINDS and each.of != "VariantMissing"]
    assert [each for each in silent if not is_of_who_starts_it(each)] == []
    for each in of_terminal:
        remedy = Remedy(each.about) if each.about in KINDS else None  # type: ignore[arg-type]
        for hint in each.hints:
            assert not OPTION.search(problem(ShardingError("It is so.", hint, remedy)))


def test_a_hint_for_who_starts_the_program_is_not_for_who_visits_the_page() -> None:
    hints = [hint for each in made() for hint in each.hints if COMMAND.search(hint)]
    assert len(hints) > 3
    assert [hint for hint in hints if COMMAND.search(message("It is so.", hint))] == []


def test_a_finding_whose_hint_names_an_option_has_words_of_the_page() -> None:
    of_terminal = [each for each in made() if each.of == "Finding" and any(map(OPTION.search, each.hints))]
    assert len(of_terminal) == 11
    for each in of_terminal:
        for hint in each.hints:
            finding = Finding("info", each.about, "It is so.", hint)
            assert in_page_words(finding).hint != without_options(hint), "it says no less"
            assert not OPTION.search(findings_panel([finding]))


@pytest.mark.parametrize("kind", KINDS)
def test_each_remedy_is_worded_without_options(kind: RemedyKind) -> None:
    shown = problem(ShardingError("It is so.", "Do this. Or add --that. What is finished is kept.", Remedy(kind)))
    assert "Do this. What is finished is kept." in shown and not OPTION.search(shown)


def test_a_job_and_a_plan_are_opened_by_a_link() -> None:
    job = problem(ShardingError("You have a job.", "Wait.", Remedy("open_job", "k3J9/alice/it")))
    assert re.findall('<a class="remedy" href="([^"]*)">([^<]*)</a>', job) == [("?job=k3J9/alice/it", "Open it")]
    plan = problem(ShardingError("It has no result.", "", Remedy("plan_repo", "me/it@v2")))
    assert re.findall('<a class="remedy" href="([^"]*)">([^<]*)</a>', plan) == [("?repo=me/it@v2", "Plan this model")]
    assert "<button" not in job + plan


def test_each_button_works_a_field_of_the_form() -> None:
    fields = {block.elem_id: block for block in in_a_loop(form()).by_name.values()}
    helps = [help_with(Remedy(kind)) for kind in KINDS]
    controls = {each.control for each in helps if each.control} - {"#sign-in"}
    assert len(controls) == 8
    for control in controls:
        match = re.fullmatch(r"#(\w+) input(?:\[value=(\w+)\])?", control)
        assert match, control
        field = fields[match[1]]
        if match[2]:
            assert match[2] in [value for _, value in field.choices]
        else:
            assert isinstance(field, gr.Checkbox)


def test_a_file_of_a_repo_keeps_its_name_in_a_message() -> None:
    shown = message("The header of --odd.safetensors is not valid.", "Download a--b again.")
    assert "The header of --odd.safetensors is not valid." in shown and "Download a--b again." in shown


# --- Buttons --------------------------------------------------------------------------------------------


def press(button: Locator) -> None:
    """As somebody does who has a keyboard only."""
    button.focus()
    expect(button).to_be_focused()
    button.press("Enter")


def test_who_signs_out_is_led_back_and_from_a_refusal_to_the_login_and_back_again(
    space: Site, visit: Visit, gated: str
) -> None:
    page = visit(space, f"?repo={gated}", user="alice")
    refusal = page.locator("#repo-message")
    expect(refusal).to_contain_text("is gated")
    page.locator("#sign-in").click()
    expect(page.locator("#account")).to_contain_text("Sign in to push")
    expect(refusal).to_contain_text("is gated")
    expect(refusal.get_by_text("hf auth login")).to_be_hidden()
    press(refusal.get_by_role("button", name="Sign in"))
    page.get_by_role("button", name="Continue as bob").click()
    expect(page.locator("#facts")).to_contain_text(gated)


def test_who_pushes_at_home_is_helped_by_buttons_for_the_fields_of_the_page_and_by_words_without_them(
    home: Site, visit: Visit, hub: Server, quantized: str, small: str, long: str, tmp_path: Path
) -> None:
    page = visit(home, f"?repo={quantized}&size=90kB&dtype=bf16")
    refusal = page.locator("#size-message")
    expect(refusal).to_contain_text("It cannot be cast")
    press(refusal.get_by_role("button", name="Dequantize"))
    expect(page.locator("#dequantize").get_by_role("checkbox")).to_be_checked()
    expect(refusal).to_be_empty()
    # A public copy of a private model.
    hidden = push(hub, save_one(tmp_path), f"alice/{copy_name('hidden')}", private=True)
    private = page.get_by_label("Private", exact=True)
    advanced(page).locator("#dtype").get_by_label("As it is").check()
    enter(model(page), hidden)
    expect(page.locator("#facts")).to_contain_text(hidden)
    expect(private).to_be_checked()
    where(page).get_by_label("Public", exact=True).check()
    page.locator("#where > button").click()
    refusal = page.locator("#start-message").get_by_role("alert")
    page.locator("#start:not([disabled])").click()
    expect(refusal).to_contain_text("A public copy would show it to everybody")
    expect(refusal.get_by_text("Both are below the plan")).to_be_hidden()
    press(refusal.get_by_role("button", name="Make it private"))
    expect(private).to_be_checked()
    expect(private).to_be_focused()
    # A copy of another model. To tick is not to start.
    name = copy_name()
    shard(hub, long, f"alice/{name}", "5GB")
    page.goto(f"{home.address}/?repo={small}&size=70kB&to=alice/{name}")
    page.locator("#start:not([disabled])").click()
    press(page.locator("#start-message").get_by_role("button", name="Replace it"))
    tick = page.get_by_label(f"Replace the copy of {long} in alice/{name} with this copy of {small}")
    expect(tick).to_be_checked()
    expect(tick).to_be_focused()
    assert "?job=" not in page.url
    # Without the field on the page, here that to sign in, there are words and no button.
    page.evaluate(
        "html => document.querySelector('#repo-message .prose, #repo-message').innerHTML = html",
        problem(ShardingError("It is gated.", "Sign in.", Remedy("sign_in"))),
    )
    refusal = page.locator("#repo-message")
    expect(refusal).to_contain_text("Run hf auth login on the machine")
    expect(refusal.get_by_role("button")).to_have_count(0)
