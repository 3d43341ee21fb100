"""A goal sets the size, the cut, the dtype and the format of a copy, and can be linked."""

import re
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import expect

from sharding import job
from sharding.core.options import SINGLE_FILE, Options
from sharding.core.values import Content
from sharding.page.links import choices_for
from tests.page.conftest import Visit, enter, size
from tests.page.site import Site
from tests.page.sources import save_one


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
    options = choices_for(checkpoint, goal)
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
        said = choices_for(narrow, goal)
        assert isinstance(said, str) and reason in said


def test_a_goal_that_is_linked_sets_the_plan_and_arrow_keys_move_it(home: Site, visit: Visit, small: str) -> None:
    page = visit(home, "?goal=one-file")
    expect(page.get_by_role("radio", name="One file")).to_be_checked()
    expect(page.locator("#goal-hint")).to_contain_text("ComfyUI")
    # The model is the first field of the page, and Enter in it makes the plan.
    first = page.locator("input:visible, textarea:visible").first
    expect(first).to_have_attribute("aria-label", "Model")
    enter(first, small)
    expect(page.locator("#summary")).to_contain_text("2 → 1 file,")
    expect(page).to_have_url(re.compile(f"repo={small}&goal=one-file&size=single-file$"))
    page.get_by_role("radio", name="One file").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("radio", name="Slow connection")).to_be_checked()
    expect(size(page)).to_have_value("50kB")
    expect(page.locator("#summary")).to_contain_text("2 → 6 files,")
    # One stop of Tab for the whole group, which has a name.
    expect(page.get_by_role("group", name="What is it for?")).to_be_visible()
    page.keyboard.press("Tab")
    assert not page.evaluate("document.activeElement.matches('#goal input')")
