"""The page on every screen, for every hand and eye, in a real browser: widths, keyboard, axe, console; and no token."""

import base64
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

import psutil
import pytest
from playwright.sync_api import Page, expect

from tests.localhub.conftest import Server
from tests.page.conftest import Site, advanced, copy_name, files, sign_in, start_job

Visit = Callable[..., Page]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_scrolls_sideways_and_the_console_is_silent(
    home: Site, visit: Visit, genuine: str, long: str, theme: Literal["light", "dark"]
) -> None:
    plan = visit(home, f"?repo={long}&size=40kB", color_scheme=theme)
    expect(files(plan)).to_have_count(20)
    advanced(plan)
    plan.locator("#start:not([disabled])").wait_for()
    result = visit(home, f"?result={genuine}", color_scheme=theme)
    expect(result.locator("#result")).to_contain_text("bit-identical")
    for page in (plan, result):
        for width in (390, 1440):
            page.set_viewport_size({"width": width, "height": 900})
            assert fits(page)
        assert not page.complaints  # type: ignore[attr-defined]
    background = plan.evaluate("getComputedStyle(document.querySelector('.step')).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (theme == "light")
    plan.set_viewport_size({"width": 390, "height": 900})
    plan.get_by_label("Model", exact=True).fill("bob/nothing-here")
    plan.get_by_label("Model", exact=True).press("Enter")
    expect(plan.locator("#repo-message").get_by_role("alert")).to_be_visible()
    assert fits(plan)


def fits(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"))


def test_the_keyboard_is_enough_to_choose_and_push(home: Site, visit: Visit, small: str) -> None:
    page = visit(home)
    tab_to(page, "Model")
    page.keyboard.type(f"{small}\n")
    expect(page.locator("#facts")).to_contain_text(small)
    page.locator("#start:not([disabled])").wait_for()
    page.get_by_label("Model", exact=True).focus()
    assert tab_to(page, "Shard and push") <= 12
    tab_to(page, "Advanced")
    page.keyboard.press("Enter")
    tab_to(page, "Name of the new repo")
    page.keyboard.press("Control+a")
    page.keyboard.type(copy_name())
    tab_to(page, "Shard and push", "Shift+Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#result")).to_contain_text("bit-identical")


def tab_to(page: Page, label: str, key: str = "Tab") -> int:
    """Press Tab until the part with this label has the focus; return how often."""
    for pressed in range(1, 80):
        page.keyboard.press(key)
        found = page.evaluate(
            """() => { const it = document.activeElement;
            return [it.getAttribute('aria-label'), it.labels?.[0]?.innerText, it.innerText].join(' ') }"""
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


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_serious_violation(
    space: Site, home: Site, visit: Visit, small: str, genuine: str, theme: Literal["light", "dark"]
) -> None:
    script, site = axe(), space if theme == "light" else home
    page = visit(site, f"?repo={small}&size=70kB", color_scheme=theme)
    expect(files(page)).to_have_count(4)
    advanced(page)
    expect(page.locator("#start")).to_be_enabled(enabled=site is home)  # who is signed in there already may push
    assert violations(page, script) == []
    if theme == "light":
        sign_in(page, "alice")
        start_job(page, copy_name())
    else:
        page.goto(f"{site.address}/?result={genuine}")
    expect(page.locator("#result")).to_contain_text("bit-identical")
    assert violations(page, script) == []
    page.goto(f"{site.address}/?repo=bob/nothing-here")
    expect(page.locator("#repo-message").get_by_role("alert")).to_be_visible()
    assert violations(page, script) == []


def violations(page: Page, script: Path) -> list[str]:
    page.add_script_tag(path=script)
    # Colours on their way to others are nobody's choice.
    page.evaluate(
        "Promise.allSettled(document.getAnimations()"
        ".filter((moving) => moving.effect.getComputedTiming().endTime !== Infinity).map((moving) => moving.finished))"
    )
    found = page.evaluate("axe.run()")["violations"]
    return [
        f"{one['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


def test_the_token_is_found_nowhere_after_a_job(space: Site, visit: Visit, hub: Server, long: str) -> None:
    site = space
    page = visit(site, f"?repo={long}&size=200kB")
    sign_in(page, "alice")
    cookie = next(cookie["value"] for cookie in page.context.cookies() if cookie["name"] == "session")
    token = json.loads(base64.b64decode(cookie.split(".")[0] + "=="))["oauth_info"]["access_token"]
    assert token.startswith("hf_oauth_")
    name = copy_name("slow")
    start_job(page, name)
    assert site.process
    arguments = []
    while page.locator("#result").count() == 0 or "bit-identical" not in page.locator("#result").inner_text():
        for process in psutil.Process(site.process.pid).children(recursive=True):
            with suppress(psutil.Error):
                arguments.append(" ".join(process.cmdline()))
    assert any("sharding shard" in line for line in arguments)
    said = [*arguments, page.content(), site.log]
    for path in site.folder.rglob("*"):
        if path.is_file():
            said.append(path.read_bytes().decode(errors="replace"))
    for file in hub.api().list_repo_files(f"alice/{name}"):
        said.append(hub.ask("GET", f"/alice/{name}/resolve/main/{file}").body.decode(errors="replace"))
    assert len(said) > 20
    assert not [text[:200] for text in said if token in text or "hf_alice" in text]
