"""The page on every screen, for every hand and eye, in a real browser: widths, keyboard, axe, console; and no token."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Literal

import psutil
import pytest
from playwright.sync_api import Page, expect

from tests.inhouse import InHouse
from tests.page.conftest import Visit, advanced, enter, files, fits, held_job, model, sign_in, where
from tests.page.site import Site, answer_in, call, copy_name, token_of

Theme = Literal["light", "dark"]
THEMES: tuple[Theme, ...] = ("light", "dark")


def in_theme(page: Page, theme: Theme) -> None:
    """Have the system ask for light or dark while the page is open."""
    page.emulate_media(color_scheme=theme)
    page.wait_for_function("(dark) => document.body.classList.contains('dark') === dark", arg=theme == "dark")


def test_nothing_scrolls_sideways_the_console_is_silent_and_axe_finds_nothing(
    home: Site, space: Site, visit: Visit, genuine: str, long: str
) -> None:
    plan = visit(home, f"?repo={long}&size=40kB")
    expect(files(plan)).to_have_count(20)
    advanced(plan)
    plan.locator("#start:not([disabled])").wait_for()
    result = visit(space, f"?result={genuine}")
    expect(result.locator("#check-message")).to_contain_text("Sign in to check every byte.")
    for theme in THEMES:
        for page in (plan, result):
            in_theme(page, theme)
            for width in (390, 1440):
                page.set_viewport_size({"width": width, "height": 900})
                assert fits(page)
        assert not plan.complaints  # type: ignore[attr-defined]
        background = plan.evaluate("getComputedStyle(document.querySelector('.step')).backgroundColor")
        assert (background == "rgb(255, 255, 255)") == (theme == "light")
    # On a phone a table is not wider than its window: a row becomes a name with its values below.
    for page in (plan, result):
        page.set_viewport_size({"width": 390, "height": 900})
    plan.locator(".strip.after").focus()
    plan.keyboard.press("ArrowRight")
    plan.keyboard.press("Enter")
    expect(plan.locator(".tensors tbody tr").first).to_be_visible()
    result.get_by_text("The files (", exact=False).click()
    for page, table in ((plan, plan.locator(".tensors .scroll")), (result, result.locator("details.numbers .scroll"))):
        expect(table).to_be_visible()
        assert table.evaluate("(window) => window.scrollWidth <= window.clientWidth")
        assert fits(page)
    # Where there is no axe-core, this is skipped here.
    script = axe()
    plan.set_viewport_size({"width": 1440, "height": 900})
    for page, theme in ((plan, "dark"), (plan, "light"), (result, "light")):
        in_theme(page, theme)
        assert violations(page, script) == []
    plan.set_viewport_size({"width": 390, "height": 900})
    enter(model(plan), "bob/nothing-here")
    expect(plan.locator("#repo-message").get_by_role("alert")).to_be_visible()
    assert fits(plan)
    assert violations(plan, script) == []


def tab_to(page: Page, label: str, key: str = "Tab") -> int:
    """Press Tab until the part with this label has the focus; return how often."""
    for pressed in range(1, 80):
        page.keyboard.press(key)
        found = page.evaluate(
            """() => { const it = document.activeElement;
            const nowhere = it === document.body;
            return nowhere ? '' : [it.getAttribute('aria-label'), it.labels?.[0]?.innerText, it.innerText].join(' ') }"""
        )
        if label in found:
            return pressed
    raise AssertionError(f"Tab never reaches {label}.")


def axe() -> Path:
    path = Path(__file__).parent / "node_modules/axe-core/axe.min.js"
    if not path.exists():
        if os.environ.get("CI"):
            pytest.fail("There is no axe-core, and in CI the page must be checked with it: make browser.")
        pytest.skip("There is no axe-core: make browser.")
    return path


def violations(page: Page, script: Path) -> list[str]:
    page.add_script_tag(path=script)
    # Colours on their way to others are nobody's choice.
    page.evaluate(
        "Promise.allSettled(document.getAnimations()"
        ".filter((moving) => moving.effect.getComputedTiming().endTime !== Infinity).map((moving) => moving.finished))"
    )
    found = page.evaluate("axe.run()")["violations"]
    return [
        f"{one['id']}: {node['html'][:200]} {node['failureSummary'][:300]}" for one in found for node in one["nodes"]
    ]


def test_a_job_that_was_pushed_by_keyboard_alone_leaves_its_token_nowhere_and_its_result_opens_for_anybody(
    space: Site, visit: Visit, hub: InHouse, small: str
) -> None:
    page = visit(space)
    # The keyboard is enough to choose and push.
    tab_to(page, "Model")
    page.keyboard.type(f"{small}\n")
    sign_in(page, "alice")  # before the plan is there
    expect(page.locator("#facts")).to_contain_text(small)
    page.locator("#start:not([disabled])").wait_for()
    expect(page.locator("#target")).to_contain_text("to alice/small-sharded-50kB, public")
    expect(files(page)).to_have_count(6)  # what was chosen is kept through the login
    token = token_of(next(cookie["value"] for cookie in page.context.cookies() if cookie["name"] == "session"))
    assert token.startswith("hf_oauth_")
    where(page).get_by_label("Owner of the copy").click()
    page.get_by_role("option", name="acme").click()  # an organisation that alice may write to
    page.locator("#where > button").click()
    model(page).focus()
    assert tab_to(page, "Start") <= 12
    tab_to(page, "Change this, or measure loading too")
    page.keyboard.press("Enter")
    tab_to(page, "Name of the new repo")
    page.keyboard.press("Control+a")
    page.keyboard.type(name := copy_name())
    with held_job(hub, name):
        tab_to(page, "Start", "Shift+Tab")
        page.keyboard.press("Enter")
        expect(page.locator("#progress .running")).to_contain_text("Writing the files")
        expect(page.locator("#run-heading h2")).to_be_focused()
        # Nobody finds the token where the job runs, nor in what it leaves.
        assert space.process
        children = psutil.Process(space.process.pid).children(recursive=True)
        arguments = []
        for process in children:
            with suppress(psutil.Error):  # it has ended
                arguments.append(" ".join(process.cmdline()))
    assert any("sharding shard" in line for line in arguments)
    expect(page.locator("#result")).to_contain_text(f"All 14 tensors bit-identical to {small}@")
    kept = [path for path in space.folder.rglob("*") if path.is_file()]
    published = hub.api().list_repo_files(f"acme/{name}")
    assert kept and len(published) > 8, published
    said = [*arguments, page.content(), *(path.read_bytes().decode(errors="replace") for path in kept)]
    for file in published:
        said.append(hub.ask("GET", f"/acme/{name}/resolve/main/{file}").body.decode(errors="replace"))
    assert not [text[:200] for text in said if token in text or "hf_alice" in text]
    link = page.locator("#result-details pre", has_text="?result=").inner_text()
    assert link.startswith(f"https://huggingface.co/spaces/carol/shard-my-repo?result=acme/{name}@")
    assert hub.api(False).model_info(f"acme/{name}").private is False
    anybody = answer_in(call(space, "result", [f"acme/{name}"])[1])
    assert anybody["trust"]["level"] == "made-here"
