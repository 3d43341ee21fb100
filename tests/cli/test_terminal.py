"""What a person is shown of long lists, and of the bar; `tests/report/golden` has the words."""

import io
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from rich.console import Console

from sharding.cli.terminal import Terminal
from sharding.core.errors import Refused
from sharding.core.events import Progress, Verified
from sharding.core.options import Options
from sharding.core.origin import Place
from sharding.core.values import Component, Content, FileEntry, Finding, Plan, Shard
from sharding.core.verification import Evidence, Mismatch, Verification
from sharding.loading.costs import Comparison, Prediction, Verdict
from tests.tensors import stored_tensor

SAME = Verification(3, 12, 0.5, Evidence("both"), ())
COMPARED = Comparison(
    *("from_pretrained", None, True, None, (), (), Verdict("gain", None, "It is better.")),
    *({"original": Prediction(1, 1), "sharded": Prediction(1, 1)}, "a machine", "there is no room."),
)


def shown(show: Callable[[Terminal], object]) -> tuple[str, str]:
    """What `show` writes: results, and what passes."""
    files = io.StringIO(), io.StringIO()
    show(Terminal(*(Console(file=file, soft_wrap=True, width=200) for file in files)))
    results, passing = (file.getvalue() for file in files)
    return results, passing


@pytest.mark.parametrize("count", [40, 41, 1300])
def test_a_long_table_has_its_first_and_last_rows_and_counts_the_others(count: int) -> None:
    files = [f"file{number}" for number in range(count)]
    tensors = [stored_tensor(file, "U8", (4,), file, 0, 4) for file in files]
    shards = tuple(Shard(file, (tensor,), 4) for file, tensor in zip(files, tensors, strict=True))
    plan = Plan(shards, (Component(),), 4 * count, 4 * count, Options(), ())
    entries = tuple(FileEntry(file, 4) for file in files)
    checkpoint = Content(Place("hub", "a/b", ""), tuple(tensors), (Component(),), entries, entries, ())
    expected = files if count <= 40 else [*files[:20], f"({count - 40}", *files[-20:]]
    for show in (lambda view: view.event(((), plan, None)), lambda view: view.event(checkpoint)):
        table, _, beside = shown(show)[0].partition("Other files: ")
        rows = [line.split()[0] for line in table.splitlines()]
        assert rows[rows.index("file") + 1 :] == expected
    assert beside == f"{', '.join(files[:5])} and {count - 5} more\n"


def test_findings_and_differences_are_shown_up_to_a_number_and_the_others_are_counted() -> None:
    found = [Finding("warning" if n else "info", "code", f"Remark {n}.", f"Hint {n}.") for n in range(43)]
    assert "more such" not in shown(lambda view: view.findings(found[:40]))[1]
    results, passing = shown(lambda view: view.findings(found))
    assert results == "" and passing.count("Remark") == 40 and "and 3 more such remarks" in passing
    assert "info: Remark 0. Hint 0." in passing and "warning: Remark 39. Hint 39." in passing
    wrong = tuple(Mismatch(f"w{n}", "its bytes differ") for n in range(41))
    results, _ = shown(lambda view: view.verification(replace(SAME, mismatches=wrong, unstated=True)))
    assert results.startswith("Different: 41 mismatches.") and "Matches" not in results
    assert results.count("its bytes differ") == 40


HIDDEN, SHOWN = "\x1b[?25l", "\x1b[?25h"
"""A bar hides the cursor while it is drawn."""


def interrupt(terminal: Terminal) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (lambda terminal: terminal.event(Verified(SAME)), "Identical"),
        (lambda terminal: terminal.comparison(COMPARED), "It is better"),
        (lambda terminal: terminal.error(Refused("It is full.")), "It is full"),
        (lambda terminal: None, ""),
        (interrupt, ""),
    ],
    ids=["verified", "compared", "error", "end", "interrupt"],
)
def test_the_bar_ends_before_an_outcome_and_with_the_command(outcome: Callable[[Terminal], object], said: str) -> None:
    screen = io.StringIO()
    consoles = [Console(file=screen, force_terminal=True, width=200) for _ in range(2)]
    with suppress(KeyboardInterrupt), Terminal(*consoles) as terminal:
        for stage in ("check", "transfer", "verify", "numbers"):
            terminal.event(Progress(stage, 1, 2))  # type: ignore[arg-type]
        assert screen.getvalue().count(HIDDEN) == 1 and SHOWN not in screen.getvalue()
        outcome(terminal)
        drawn, _, after = screen.getvalue().partition(SHOWN)
        assert said in after and (not said or said not in drawn)
    assert screen.getvalue().count(HIDDEN) == screen.getvalue().count(SHOWN) == 1
