"""What a person is shown of each value: all of it that matters, in plain words, and nothing that steers a terminal."""

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
from rich.console import Console

from sharding.cli.terminal import Terminal
from sharding.core.errors import Refused
from sharding.core.events import Planned, Progress, Published, ShardFinished, Verified
from sharding.core.hints import PipelineCut
from sharding.core.options import Options
from sharding.core.values import (
    Checkpoint,
    Component,
    Discarded,
    FileEntry,
    Finding,
    Mismatch,
    Plan,
    RepoRef,
    Shard,
    Stage,
    TensorEntry,
    TiedTensor,
    Verification,
)
from sharding.loading.costs import Comparison, LoadCost, Prediction, Probed, Verdict
from sharding.loading.devices import DeviceLoad, DevicePlan

GB = 1_000_000_000
STRANGE = "\x1b]0;owned\x07[bold red]x\u202e"
ESCAPED = r"\x1b]0;owned\x07[bold red]x\x202e"


@dataclass
class Screen:
    """A terminal, and what stands on it by now."""

    out: io.StringIO
    err: io.StringIO
    terminal: Terminal

    @property
    def results(self) -> str:
        return self.out.getvalue()

    @property
    def passing(self) -> str:
        return self.err.getvalue()

    @property
    def rows(self) -> list[list[str]]:
        """The cells of what stands in lines."""
        return [re.split(r" {2,}|(?<=\)) ", line.strip()) for line in self.results.splitlines()]


@pytest.fixture
def screen() -> Screen:
    out, err = io.StringIO(), io.StringIO()
    results, passing = (Console(file=file, soft_wrap=True, width=200) for file in (out, err))
    return Screen(out, err, Terminal(results, passing))


def entry(name: str, file: str, size: int = 4, start: int = 0) -> TensorEntry:
    return TensorEntry(name, "U8", (size,), file, start, start + size)


def plan_of(files: Sequence[str], **more: object) -> Plan:
    shards = tuple(Shard(file, (entry(f"w{n}", "in"),), 4) for n, file in enumerate(files))
    return replace(Plan(shards, (Component(),), 4 * len(shards), 4 * len(shards), Options(), ()), **more)  # type: ignore[arg-type]


def checkpoint_of(files: Sequence[str], **more: object) -> Checkpoint:
    tensors = tuple(entry(f"w{n}", file) for n, file in enumerate(files))
    entries = tuple(FileEntry(file, 4) for file in files)
    return replace(Checkpoint(RepoRef("hub", "a/b", ""), tensors, (Component(),), entries, (), ()), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [1, 39, 40, 41, 42, 90, 1300])
@pytest.mark.parametrize("kind", ["plan", "checkpoint"])
def test_a_long_table_has_its_first_and_last_rows_and_counts_the_others(screen: Screen, count: int, kind: str) -> None:
    files = [f"file{number}" for number in range(count)]
    if kind == "plan":
        screen.terminal.plan(plan_of(files))
    else:
        screen.terminal.checkpoint(checkpoint_of(files))
    shown = [row[0] for row in screen.rows if row[0].startswith("file") and row[0] != "file"]
    assert shown == (files if count <= 40 else files[:20] + files[-20:])
    said = [row[0] for row in screen.rows if row[0].endswith("more)")]
    assert said == ([f"({count - 40} more)"] if count > 40 else [])
    if said:
        names = [row[0] for row in screen.rows]
        assert names.index(said[0]) == names.index("file19") + 1, "they are left out in the middle"


def test_findings_are_shown_up_to_a_number_and_the_others_are_counted(screen: Screen) -> None:
    found = [Finding("warning" if n else "info", "code", f"Remark {n}.", f"Hint {n}.") for n in range(43)]
    screen.terminal.findings(found[:40])
    assert "more such" not in screen.passing
    screen.terminal.findings(found)
    assert screen.passing.count("Remark") == 80 and "and 3 more such remarks" in screen.passing
    assert "info: Remark 0. Hint 0." in screen.passing and "warning: Remark 39. Hint 39." in screen.passing
    assert screen.results == ""


def test_findings_of_the_source_and_of_the_plan_are_shown_when_a_job_is_planned(screen: Screen) -> None:
    of_source, of_plan = Finding("info", "a", "Of the source."), Finding("warning", "b", "Of the plan.")
    checkpoint = checkpoint_of(["a"], findings=(of_source,))
    screen.terminal.event(Planned(checkpoint, plan_of(["b"], findings=(of_plan,))))
    assert screen.passing.count("info: Of the source.") == screen.passing.count("warning: Of the plan.") == 1


def test_no_name_reaches_the_screen_as_markup_or_control(screen: Screen) -> None:
    terminal, file = screen.terminal, f"{STRANGE}.safetensors"
    cut = PipelineCut("5.0", ((0, 1),))
    stage = Stage((STRANGE,), (), (file,), 4, (TiedTensor(STRANGE, file, (STRANGE,)),))
    shown: list[Callable[[], object]] = [
        lambda: terminal.checkpoint(
            checkpoint_of(
                [file],
                source=RepoRef("folder", STRANGE, ""),
                side_files=(FileEntry(STRANGE, 1),),
                architecture=STRANGE,
            )
        ),
        lambda: terminal.plan(plan_of([file], stages=(stage,), pipeline=cut)),
        lambda: terminal.findings([Finding("warning", "x", STRANGE, STRANGE)]),
        lambda: terminal.verification(
            replace(SAME, method=STRANGE, mismatches=(Mismatch(STRANGE, STRANGE),), unreached=(f"{STRANGE}@1",))
        ),
        lambda: terminal.event(Published(RepoRef("hub", "a/b", ""), STRANGE, STRANGE)),
        lambda: terminal.event(ShardFinished(file, 4, "0", 1, 1, kept=True)),
        lambda: terminal.discarded(Discarded(True, False, STRANGE)),
        lambda: terminal.error(Refused(STRANGE, STRANGE)),
        lambda: terminal.devices(replace(DEVICES, class_name=STRANGE, snippet=f"# {STRANGE}")),
        lambda: terminal.comparison(
            replace(MEASURED, verdict=Verdict("gain", None, STRANGE), machine=STRANGE, reason_not_measured=STRANGE)
        ),
        lambda: terminal.event(Probed("original", 1, 1, replace(COST, outcome="failed", message=STRANGE))),
    ]
    for show in shown:
        before = len(screen.results), len(screen.passing)
        show()
        said = screen.results[before[0] :] + screen.passing[before[1] :]
        assert ESCAPED in said
        assert said.replace("\n", "").isprintable(), said


SAME = Verification(3, 12, 0.5, "all read", ())


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({}, "Identical: all 3 tensors, 12 B."),
        ({"tensors": 1}, "Identical: all 1 tensor, 12 B."),
        ({"dtype": "bf16"}, "Equal to the original cast to bf16: all 3 tensors, 12 B."),
        ({"dtype": "bf16", "dequantized": "FP8"}, "Equal to the original dequantized to bf16: all 3 tensors, 12 B."),
        ({"unstated": True}, "Matches what was read: all 3 tensors, 12 B."),
        ({"unstated": True, "dtype": "fp16"}, "Matches what was read, cast to fp16: all 3 tensors, 12 B."),
        (
            {"unstated": True, "dtype": "bf16", "dequantized": "FP8"},
            "Matches what was read, dequantized to bf16: all 3 tensors, 12 B.",
        ),
    ],
)
def test_what_is_proved_of_a_copy_is_said_and_no_more(screen: Screen, choices: dict[str, object], said: str) -> None:
    screen.terminal.event(Verified(replace(SAME, **choices)))  # type: ignore[arg-type]
    assert screen.results.splitlines() == [said, "(all read; 0.5 s)"]


def test_where_copies_differ_is_said_of_each_place_up_to_a_number(screen: Screen) -> None:
    wrong = tuple(Mismatch(f"w{n}", "its bytes differ") for n in range(41))
    screen.terminal.verification(replace(SAME, mismatches=wrong[:1], unchecked=("code", "tokenizer")))
    assert screen.results.splitlines() == [
        "Different: 1 mismatch.",
        "  w0: its bytes differ",
        "(all read; 0.5 s)",
        "Not checked: code and tokenizer.",
    ]
    screen.terminal.verification(replace(SAME, mismatches=wrong, unstated=True))
    assert "Different: 41 mismatches." in screen.results and "Matches" not in screen.results
    assert screen.results.count("its bytes differ") == 1 + 40


def test_what_is_known_of_no_branch_is_said_of_each_side(screen: Screen) -> None:
    screen.terminal.verification(replace(SAME, unreached=("a/b@0123456789abcdef", "c/d@fedcba9876543210")))
    for repo, commit in (("a/b", "0123456789ab"), ("c/d", "fedcba987654")):
        assert f"No branch and no tag of {repo} is known to lead to its commit {commit}" in screen.results


COST = LoadCost(
    outcome="loaded", message="", method="from_pretrained", dtype_asked=None, memory_limited_by=None, cache="cold",
    seconds={"import": 50.0, "load": 2.0, "forward": 1.0}, peak_anon_bytes=GB // 4, peak_file_bytes=2 * GB,
    peak_total_bytes=3 * GB, format="safetensors", files=8,
)  # fmt: skip
MEASURED = Comparison(
    "from_pretrained", None, True, None,
    original=(
        COST,
        replace(COST, seconds={"load": 9.0}, peak_anon_bytes=GB, peak_file_bytes=4 * GB),
        replace(COST, seconds={"load": 4.0, "tokens": 1.5}, peak_anon_bytes=3 * GB, peak_file_bytes=0),
    ),
    sharded=(replace(COST, files=1), replace(COST, files=1), replace(COST, files=1)),
    verdict=Verdict("gain", None, "It is better."), predicted=(Prediction(1, 1), Prediction(1, 1)), machine="a machine",
)  # fmt: skip


def test_a_comparison_has_its_verdict_and_then_medians_with_their_spread(screen: Screen) -> None:
    screen.terminal.comparison(MEASURED)
    assert screen.rows[0] == ["It is better."]
    assert screen.rows[1] == ["files", "time", "anonymous memory", "mapped files"]
    original, sharded = screen.rows[2:4]
    assert original == [
        "original",
        "8 safetensors",
        "5.5 s (3.0..9.0)",
        "1.00 GB (0.25..3.00)",
        "2.00 GB (0.00..4.00)",
    ]
    assert sharded == ["sharded", "1 safetensors", "3.0 s (3.0..3.0)", "0.25 GB (0.25..0.25)", "2.00 GB (2.00..2.00)"]
    assert screen.results.splitlines()[4] == (
        "(from_pretrained, dtype as stored, cache cold; medians of 3 runs; a machine)"
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
    assert rows[side] == [f"{runs[0].files} safetensors", "out-of-memory"]
    (other,) = rows.keys() - {side}
    assert len(rows[other]) == 4
    assert "(from_pretrained, float16, cache cold, memory mapping off, limited to 4.0 GB by" in screen.results


def test_what_was_not_measured_has_a_reason_and_no_table(screen: Screen) -> None:
    nothing = replace(MEASURED, original=(), sharded=(), reason_not_measured="there is no room.")
    screen.terminal.comparison(nothing)
    assert screen.results == "It is better.\n" and screen.passing.strip() == "Not measured: there is no room."


@pytest.mark.parametrize(
    ("discarded", "said"),
    [
        (Discarded(False), "There is no unfinished job."),
        (Discarded(True), "The staged shards are gone."),
        (Discarded(True, True), "The staged shards are gone, and the repo that was made for them."),
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
    assert f"What rank {rank} of 3 loads: layers {layers} of 7." in screen.results


def test_which_transformers_a_pipeline_is_cut_for_is_said_and_what_each_stage_has(screen: Screen) -> None:
    tied = TiedTensor("embed.weight", "a", ("lm_head.weight", "shared"))
    stages = (Stage(("h.0", "h.1", "h.2"), (), ("a", "b", "c"), 9), Stage(("h.3",), (), ("d",), 4, (tied,)))
    cut = PipelineCut("5.1.0", ((0, 3), (3, 4)))
    screen.terminal.plan(plan_of(["a", "b", "c", "d"], stages=stages, pipeline=cut, options=Options(strategy="pp:2")))
    assert ["1", "9 B", "h.0 to h.2", "a to c"] in screen.rows and ["2", "4 B", "h.3", "d"] in screen.rows
    assert "Stage 2 needs a as well: embed.weight in it is lm_head.weight, shared too." in screen.results
    assert "Cut where transformers 5.1.0 cuts: stage 1 is rank 0." in screen.results


DEVICES = DevicePlan(
    "LlamaForCausalLM",
    ("LlamaDecoderLayer",),
    2,
    (DeviceLoad("cuda:0", 16 * GB, 9, ("h.0", "h.1"), ("a", "b")), DeviceLoad("cpu", None, 4, ("head",), ("c",))),
    {"h.0": "cuda:0", "head": "cpu"},
    "import torch\nload()",
)


def test_where_blocks_go_is_shown_with_the_code_and_whether_they_fit(screen: Screen) -> None:
    screen.terminal.devices(DEVICES)
    assert screen.results.startswith("LlamaForCausalLM: 2 blocks (LlamaDecoderLayer) that are never split\n")
    assert ["cuda:0", "9 B", "16.0 GB", "2", "2"] in screen.rows and ["cpu", "4 B", "1", "1"] in screen.rows
    assert "It fits." in screen.results and screen.results.endswith("import torch\nload()\n")
    screen.terminal.devices(replace(DEVICES, device_map={"h.0": "disk"}))
    assert "It does not fit: what is left stays on the disk" in screen.results


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
        for stage in ("check", "transfer", "verify"):
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
