"""What a person is shown in the end: a comparison, what was discarded, a pipeline, devices; and the bar is gone."""

import io
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console

from sharding.cli.terminal import Terminal
from sharding.core.errors import Refused
from sharding.core.events import Progress, Verified
from sharding.core.hints import PipelineCut
from sharding.core.options import Options
from sharding.core.protocols import Discarded
from sharding.core.values import Stage, TiedTensor
from tests.cli.screen import DEVICES, GB, MEASURED, SAME, Screen, plan_of, screen

__all__ = ["screen"]


def test_a_comparison_has_its_verdict_and_then_medians_with_their_spread(screen: Screen) -> None:
    screen.terminal.comparison(MEASURED)
    assert screen.rows[0] == ["It is better."]
    assert screen.rows[1] == ["files", "load and compute", "anonymous memory", "mapped files"]
    original, sharded = screen.rows[2:4]
    assert original == [
        "original",
        "8 safetensors",
        "5.5 s (3.0-9.0)",
        "1.00 GB (0.25-3.00)",
        "2.00 GB (0.00-4.00)",
    ]
    assert sharded == [
        "sharded copy", "1 safetensors", "3.0 s (3.0-3.0)", "0.25 GB (0.25-0.25)", "2.00 GB (2.00-2.00)",
    ]  # fmt: skip
    assert screen.results.splitlines()[4] == (
        "Medians of 3 runs each, in fresh processes (from_pretrained, dtype as stored, cache cold; a machine)."
    )


@pytest.mark.parametrize("failed", [0, 1, 2])
@pytest.mark.parametrize("side", ["original", "sharded"])
def test_a_side_of_which_any_run_failed_has_no_figures(screen: Screen, side: str, failed: int) -> None:
    runs = list(getattr(MEASURED, side))
    runs[failed] = replace(runs[failed], outcome="out-of-memory", message="Killed.")
    screen.terminal.comparison(
        replace(MEASURED, **{side: tuple(runs)}, with_mapping=False, dtype_asked="float16", memory_limit_bytes=4 * GB)  # type: ignore[arg-type]
    )
    rows = {row[0]: row[1:] for row in screen.rows[2:4]}
    side = {"sharded": "sharded copy"}.get(side, side)
    assert rows[side] == [f"{runs[0].files} safetensors", "out-of-memory"]
    (other,) = rows.keys() - {side}
    assert len(rows[other]) == 4
    assert "(from_pretrained, float16, cache cold, memory mapping off, limited to 4.0 GB" in screen.results


def test_what_was_not_measured_has_a_reason_and_no_table(screen: Screen) -> None:
    nothing = replace(MEASURED, original=(), sharded=(), reason_not_measured="there is no room.")
    screen.terminal.comparison(nothing)
    assert screen.results == "It is better.\n" and screen.passing.strip() == "Not measured: there is no room."


@pytest.mark.parametrize(
    ("discarded", "said"),
    [
        (Discarded(False), "There is no unfinished job."),
        (Discarded(True), "Removed the staged shards."),
        (Discarded(True, True), "Removed the staged shards and the repo that the job made."),
    ],
)
def test_what_was_discarded_is_said(screen: Screen, discarded: Discarded, said: str) -> None:
    screen.terminal.discarded(discarded)
    screen.terminal.discarded(replace(discarded, remark="Its branch is still there."))
    assert screen.results.splitlines() == [said, said]
    assert screen.passing == "Its branch is still there.\n"


@pytest.mark.parametrize(("rank", "layers"), [(0, "0 to 1"), (1, "2 to 2"), (2, "3 to 6")])
def test_which_layers_a_rank_loads_is_said(screen: Screen, rank: int, layers: str) -> None:
    cut = PipelineCut("5.1.0", ((0, 2), (2, 3), (3, 7)))
    screen.terminal.plan(plan_of(["model.safetensors"], pipeline=cut, options=Options(strategy="pp:3", rank=rank)))
    assert f"Rank {rank} of 3 loads layers {layers} of 7." in screen.results


def test_which_transformers_a_pipeline_is_cut_for_is_said_and_what_each_stage_has(screen: Screen) -> None:
    tied = TiedTensor("embed.weight", "a", ("lm_head.weight", "shared"))
    stages = (Stage(("h.0", "h.1", "h.2"), (), ("a", "b", "c"), 9), Stage(("h.3",), (), ("d",), 4, (tied,)))
    cut = PipelineCut("5.1.0", ((0, 3), (3, 4)))
    screen.terminal.plan(plan_of(["a", "b", "c", "d"], stages=stages, pipeline=cut, options=Options(strategy="pp:2")))
    assert ["1", "9 B", "h.0 to h.2", "a to c"] in screen.rows and ["2", "4 B", "h.3", "d"] in screen.rows
    assert "Stage 2 also needs a: embed.weight in it is also lm_head.weight, shared." in screen.results
    assert "Cut as transformers 5.1.0 cuts. Stage 1 is rank 0." in screen.results


def test_where_blocks_go_is_shown_with_the_code_and_whether_they_fit(screen: Screen) -> None:
    screen.terminal.devices(DEVICES)
    assert screen.results.startswith("LlamaForCausalLM: 2 blocks (LlamaDecoderLayer) that are never split\n")
    assert ["cuda:0", "9 B", "16.0 GB", "2", "2"] in screen.rows and ["cpu", "4 B", "1", "1"] in screen.rows
    assert "It fits." in screen.results and screen.results.endswith("import torch\nload()\n")
    screen.terminal.devices(replace(DEVICES, device_map={"h.0": "disk"}))
    assert "It does not fit. The rest stays on disk" in screen.results


HIDDEN, SHOWN = "\x1b[?25l", "\x1b[?25h"
"""A bar hides the cursor while it is drawn."""


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (lambda terminal: terminal.event(Verified(SAME)), "Identical"),
        (lambda terminal: terminal.comparison(MEASURED), "It is better"),
        (lambda terminal: terminal.error(Refused("It is full.")), "It is full"),
        (lambda terminal: None, ""),
    ],
    ids=["verified", "compared", "error", "end"],
)
def test_the_bar_ends_before_an_outcome_is_shown_and_with_the_command(
    outcome: Callable[[Terminal], object], said: str
) -> None:
    screen = io.StringIO()
    consoles = [Console(file=screen, force_terminal=True, width=200) for _ in range(2)]
    with Terminal(*consoles) as terminal:
        for stage in ("check", "transfer", "verify", "numbers"):
            terminal.event(Progress(stage, 1, 2))  # type: ignore[arg-type]
        assert screen.getvalue().count(HIDDEN) == 1 and SHOWN not in screen.getvalue()
        outcome(terminal)
        drawn, _, after = screen.getvalue().partition(SHOWN)
        assert said in after and (not said or said not in drawn)
    assert screen.getvalue().count(SHOWN) == 1


def test_the_bar_ends_where_a_command_is_interrupted() -> None:
    screen = io.StringIO()
    consoles = [Console(file=screen, force_terminal=True, width=200) for _ in range(2)]
    with pytest.raises(KeyboardInterrupt), Terminal(*consoles) as terminal:
        terminal.event(Progress("transfer", 1, 2))
        raise KeyboardInterrupt
    assert screen.getvalue().count(HIDDEN) == screen.getvalue().count(SHOWN) == 1
