"""What somebody sees and types in a notebook: one bar in place, a line for each phase, a job that can begin again."""

import io
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from rich.console import Console

from sharding import job
from sharding.cli import show
from sharding.cli.terminal import Terminal
from sharding.core.errors import DestinationError
from sharding.core.events import Progress, ShardFinished
from sharding.core.options import Options, Request
from sharding.report.schema import Report
from tests.commands import run_process
from tests.conftest import environment
from tests.folders import finish, until_shard

UP = re.compile("\x1b\\[\\d*[AHf]|\x1b[78M]")
"""The cursor moves to another line, which the output of a notebook cannot do."""


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def drawn(events: list[Progress | ShardFinished]) -> str:
    """What a terminal of one line gets while `events` happen."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    with Terminal(console, console) as terminal:
        for event in events:
            terminal.event(event)
    return screen.getvalue()


def test_phases_side_by_side_are_one_bar_and_a_line_for_each_that_is_done() -> None:
    events = [
        *(Progress("check", done, 5) for done in range(6)),
        *(ShardFinished(f"{number}", 1, "", number, 300, kept=True) for number in range(300)),
        *(Progress(phase, done, 50) for done in range(50) for phase in ("transfer", "verify")),  # type: ignore[arg-type]
        *(Progress("transfer", 50, 50) for _ in range(10)),  # a phase may say more than once that it is done
        *(Progress("verify", done, 50) for done in (49, 50, 50)),
        Progress("numbers", 1, 9),
    ]
    output = drawn(events)
    assert not UP.search(output)
    lines = [re.sub("\x1b\\[[?\\d;]*[A-Za-z]", "", line).rpartition("\r")[2] for line in output.split("\n")]
    kept = "Kept from an earlier run: 300 shards (0, 1, 2, 3, 4 and 295 more)"
    phases = ["checking what is there", kept, "writing shards", "verifying", "comparing numbers"]
    assert [line.partition(" ━")[0].strip() for line in lines if line.strip()] == phases
    assert len(lines) <= 2 * len(phases)


def test_a_command_in_a_notebook_prints_few_lines_and_never_moves_up(checkpoint: Path, tmp_path: Path) -> None:
    """IPython runs `!command` at the end of a terminal of its own, with 80 columns."""
    script = (
        "import os, pty, sys\n"
        "sys.argv[0] = sys.executable\n"
        "status = pty.spawn([sys.executable, '-m', 'sharding', *sys.argv[1:]])\n"
        "sys.exit(os.waitstatus_to_exitcode(status))"
    )
    known = environment() | {"TERM": "xterm-color", "COLUMNS": "80"}
    done = run_process("shard", checkpoint, tmp_path / "out", "-s", "20kB", program=script, env=known, stdin=-3)
    assert done.returncode == 0 and not UP.search(done.stdout)
    assert "Published" in done.stdout and done.stdout.count("\n") < 40


def test_no_width_is_taken_for_the_usual_one(checkpoint: Path) -> None:
    done = run_process("plan", checkpoint, "-s", "60kB", env=environment() | {"COLUMNS": "0"})
    assert done.returncode == 0 and "model-00001-of-" in done.stdout


@pytest.mark.parametrize("here", [True, False], ids=["at a prompt", "in a program"])
def test_a_cell_that_was_interrupted_does_not_keep_the_next_one_waiting(
    checkpoint: Path, out: Path, here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its variables stay, and so does the generator in one of them. In a program, somebody may go on with it."""
    if here:
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    events = job.shard(str(checkpoint), str(out), "20kB")
    until_shard(events)
    again = job.shard(str(checkpoint), f"{out}/", "20kB")
    if here:
        assert finish(again).verification.identical and list(events) == []
        until_shard(events := job.shard(str(checkpoint), str(out), "60kB"))
        assert job.discard(str(out)).found
    else:
        with pytest.raises(DestinationError, match="Another job is writing"):
            finish(again)
        assert finish(events).verification.identical


FORMS: dict[str, Callable[[Path, Path], Report]] = {
    "shard": lambda source, out: show.shard(str(source), str(out), Options("20kB"), overwrite=True),
    "run": lambda source, out: show.run(Request(str(source), str(out), Options("20kB"))),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("is_notebook", [False, True])
def test_a_job_in_a_cell_shows_its_progress_and_returns_its_report(
    checkpoint: Path,
    out: Path,
    form: str,
    is_notebook: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if is_notebook:
        monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    assert FORMS[form](checkpoint, out).verification.identical
    said = capsys.readouterr().out
    assert ("writing shards" in said) and "Published" in said and not UP.search(said)
    assert ("\r" in said) == is_notebook, "a bar is drawn where one can be"
