"""A goal sets the size, the cut, the dtype and the format of a copy, and can be linked."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from sharding import job
from sharding.core.options import SINGLE_FILE, Options
from sharding.core.values import Checkpoint
from sharding.page.links import choices_for
from tests.conftest import write_checkpoint
from tests.page.conftest import Site

Visit = Callable[..., Page]


def of(folder: Path, tensors: dict[str, np.ndarray]) -> Checkpoint:
    return job.inspect(str(write_checkpoint(folder, {"model.safetensors": tensors}, False)))


@pytest.fixture
def wide(tmp_path: Path) -> Checkpoint:
    """A checkpoint in fp32, with one tensor that is larger than the others."""
    small = {f"layers.{n}.weight": np.zeros(25_000, np.float32) for n in range(8)}
    return of(tmp_path / "wide", {**small, "embed.weight": np.zeros(60_000, np.float32)})


@pytest.fixture
def narrow(tmp_path: Path) -> Checkpoint:
    return of(tmp_path / "narrow", {f"layers.{n}.weight": np.zeros(50_000, np.float16) for n in range(8)})


def chosen(goal: str, checkpoint: Checkpoint) -> Options:
    options = choices_for(checkpoint, goal)
    assert isinstance(options, Options), options
    return options


def test_no_goal_puts_a_file_below_the_largest_tensor(wide: Checkpoint) -> None:
    largest = max(tensor.bytes for tensor in wide.tensors)
    for name in ("free-colab", "slow-connection", "two-machines", "half-size"):
        assert (chosen(name, wide).max_shard_bytes or 0) >= largest, name


def test_each_goal_sets_what_its_title_says(wide: Checkpoint, narrow: Checkpoint) -> None:
    assert chosen("one-file", narrow).max_shard_size == SINGLE_FILE
    assert chosen("two-machines", narrow).strategy == "pp:2"
    assert chosen("half-size", wide).dtype == "bf16"
    assert chosen("free-colab", wide).dtype == "fp16"  # a T4 has no bf16
    assert chosen("free-colab", narrow).dtype == chosen("slow-connection", narrow).dtype == "keep"
    assert not any(chosen(name, narrow).dequantize for name in ("free-colab", "one-file", "two-machines"))


@pytest.mark.parametrize(
    ("goal", "reason"),
    [("half-size", "not in fp32"), ("unquantize", "not quantized"), ("training-run", "an ordinary model")],
)
def test_a_goal_that_makes_no_sense_for_a_model_says_why(narrow: Checkpoint, goal: str, reason: str) -> None:
    said = choices_for(narrow, goal)
    assert isinstance(said, str) and reason in said


def test_a_goal_that_is_linked_sets_the_plan_and_arrow_keys_move_it(home: Site, visit: Visit, small: str) -> None:
    page = visit(home, "?goal=one-file")
    expect(page.get_by_role("radio", name="One file")).to_be_checked()
    expect(page.locator("#goal-hint")).to_contain_text("ComfyUI")
    # The model is the first field of the page, and Enter in it makes the plan.
    first = page.locator("input:visible, textarea:visible").first
    expect(first).to_have_attribute("aria-label", "Model")
    first.fill(small)
    first.press("Enter")
    expect(page.locator("#summary")).to_contain_text("2 files → 1,")
    expect(page).to_have_url(re.compile(f"repo={small}&goal=one-file&size=single-file$"))
    expect(page.locator("#facts a").first).to_have_text(small)
    page.get_by_role("radio", name="One file").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("radio", name="Slow connection")).to_be_checked()
    expect(page.get_by_label("Maximum file size")).to_have_value("50kB")
    expect(page.locator("#summary")).to_contain_text("2 files → 6,")
    # One stop of Tab for the whole group, which has a name.
    expect(page.get_by_role("group", name="What is it for?")).to_be_visible()
    page.keyboard.press("Tab")
    assert not page.evaluate("document.activeElement.matches('#goal input')")
