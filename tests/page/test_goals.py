"""A goal sets the size, the cut, the dtype and the format of a copy, and can be linked."""

import re
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Route, expect

from sharding import job
from sharding.core.options import SINGLE_FILE, Options
from sharding.core.values import Content
from sharding.page.goals import GOALS
from tests.page.conftest import Visit, enter, model, size
from tests.page.site import Site
from tests.page.sources import save_one

SHIFTS = """window.shifts = 0; new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifts += entry.value;
}).observe({ type: "layout-shift", buffered: true });"""
"""Adds up by how much what is visible moves by itself."""


@pytest.fixture
def wide(tmp_path: Path) -> Content:
    """A checkpoint in fp32, with one tensor that is larger than the others."""
    small = {f"layers.{n}.weight": np.zeros(25_000, np.float32) for n in range(8)}
    return job.inspect(str(save_one(tmp_path / "wide", {**small, "embed.weight": np.zeros(60_000, np.float32)})))


@pytest.fixture
def narrow(tmp_path: Path) -> Content:
    halves = {f"layers.{n}.weight": np.zeros(50_000, np.float16) for n in range(8)}
    return job.inspect(str(save_one(tmp_path / "narrow", halves)))


def chosen(goal: str, checkpoint: Content) -> Options:
    options = GOALS[goal].choose(checkpoint)
    assert isinstance(options, Options), options
    return options


def test_each_goal_sets_what_its_title_says_and_none_a_size_below_the_largest_tensor(
    wide: Content, narrow: Content
) -> None:
    assert chosen("one-file", narrow).max_shard_size == SINGLE_FILE
    assert chosen("two-machines", narrow).strategy == "pp:2"
    assert chosen("half-size", wide).dtype == "bf16"
    assert chosen("free-colab", wide).dtype == "fp16"  # a T4 has no bf16
    assert chosen("free-colab", narrow).dtype == chosen("slow-connection", narrow).dtype == "keep"
    assert not any(chosen(name, narrow).dequantize for name in ("free-colab", "one-file", "two-machines"))
    largest = max(tensor.bytes for tensor in wide.tensors)
    for name in ("free-colab", "slow-connection", "two-machines", "half-size"):
        assert (chosen(name, wide).max_shard_bytes or 0) >= largest, name


def test_a_goal_that_makes_no_sense_for_a_model_says_why(narrow: Content) -> None:
    reasons = {"half-size": "not in fp32", "unquantize": "not quantized", "training-run": "an ordinary model"}
    for goal, reason in reasons.items():
        said = GOALS[goal].choose(narrow)
        assert isinstance(said, str) and reason in said


def test_a_goal_is_chosen_from_its_card_and_another_from_what_fits_the_model(
    home: Site, visit: Visit, small: str
) -> None:
    page = visit(home)
    assert page.locator("#goals .card").count() == len(GOALS)
    page.locator("#goals .card", has_text="As ComfyUI").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#goals")).to_contain_text("ComfyUI")
    expect(page).to_have_url(re.compile(r"\?goal=one-file$"))
    # The form has only the model, which is where a visitor writes next, and Enter in it makes the plan.
    expect(model(page)).to_be_focused()
    expect(page.locator("#size")).to_be_hidden()
    enter(model(page), small)
    expect(page.locator("#summary")).to_contain_text("2 → 1 file,")
    expect(page).to_have_url(re.compile(f"repo={small}&goal=one-file&size=single-file$"))
    expect(page.locator("#goals [aria-current]")).to_have_text("One file")
    page.locator("#goals .chip", has_text="Smaller files").click()
    expect(size(page)).to_have_value("50kB")
    expect(page.locator("#summary")).to_contain_text("2 → 6 files,")
    page.go_back()
    expect(page.locator("#goals .card").first).to_be_visible()


@pytest.mark.parametrize("with_scripts", [False, True])
def test_the_first_view_takes_a_model_before_gradio_is_there(
    browser: Browser, home: Site, small: str, with_scripts: bool
) -> None:
    with browser.new_context(java_script_enabled=with_scripts) as context:
        page = context.new_page()
        held: list[Route] = []
        page.route("**/assets/**", lambda route: held.append(route))
        page.goto(f"{home.address}/?goal=one-file", wait_until="commit")
        page.locator("#first-repo").fill(small)
        if with_scripts:
            for route in held:
                route.continue_()
            page.unroute("**/assets/**")
            expect(model(page)).to_have_value(small)
            expect(page.locator("#first")).to_have_count(0)
        else:
            page.keyboard.press("Enter")
            expect(page).to_have_url(re.compile(rf"\?repo={small.replace('/', '(/|%2F)')}&goal=one-file$"))


@pytest.mark.parametrize("width", [1440, 390])
def test_nothing_moves_while_a_link_opens(browser: Browser, home: Site, small: str, width: int) -> None:
    with browser.new_context(viewport={"width": width, "height": 844}) as context:
        page = context.new_page()
        page.add_init_script(SHIFTS)
        for link, shown in (("", "#goals .card"), ("?goal=merge-lora", "#adapter"), (f"?repo={small}", "#summary p")):
            page.goto(f"{home.address}/{link}")
            expect(page.locator("#first")).to_have_count(0)
            expect(page.locator(shown).first).to_be_visible()
            assert page.evaluate("window.shifts") <= 0.05, link
