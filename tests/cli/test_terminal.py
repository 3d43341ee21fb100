"""What a person is shown of each value: in plain words, and nothing that steers a terminal."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from sharding.core.errors import Refused
from sharding.core.events import Planned, Published, ShardFinished, Verified
from sharding.core.hints import PipelineCut
from sharding.core.protocols import Discarded
from sharding.core.values import FileEntry, Finding, Mismatch, RepoRef, Stage, TiedTensor
from sharding.loading.costs import Probed, Verdict
from tests.cli.screen import COST, DEVICES, MEASURED, SAME, Screen, checkpoint_of, plan_of, screen

__all__ = ["screen"]
STRANGE = "\x1b]0;owned\x07[bold red]x\u202e"
ESCAPED = r"\x1b]0;owned\x07[bold red]x\x202e"


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
        assert f"No known branch or tag of {repo} contains commit {commit}" in screen.results
