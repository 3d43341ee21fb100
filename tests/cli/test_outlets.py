"""What becomes of a command whose output nobody reads any more, or that cannot be written, and whose terminal closes."""

import fcntl
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sharding import __version__
from sharding.cli.start import main
from tests.cli.test_commands import hear_hangups, start_slow_job
from tests.conftest import environment, in_two_files
from tests.folders import reshard, staged

INDEX = "new/model.safetensors.index.json"
ENDS = {
    "help": (["--help"], 0),
    "help of a command": (["shard", "--help"], 0),
    "help of localhub": (["localhub", "--help"], 0),
    "version": (["--version"], 0),
    "inspect": (["inspect", "./in"], 0),
    "inspect --json": (["inspect", "./in", "--json"], 0),
    "plan": (["plan", "./in"], 0),
    "plan --json": (["plan", "./in", "--json"], 0),
    "shard": (["shard", "./in", "./new", "-s", "60kB"], 0),
    "shard --json": (["shard", "./in", "./new", "-s", "60kB", "--json"], 0),
    "shard --events": (["shard", "./in", "./new", "-s", "60kB", "--events"], 130),
    "verify": (["verify", "./in", "./copy"], 0),
    "verify --json": (["verify", "./in", "./copy", "--json"], 0),
    "verify --events": (["verify", "./in", "./copy", "--events"], 130),
    "verify another": (["verify", "./in", "./other"], 1),
    "discard": (["discard", "./copy"], 0),
}
"""What is typed, and the status where nobody reads what it prints."""
LIKE_OTHERS = ("help of a command", "help of localhub", "inspect", "plan", "verify", "verify --json", "discard")
"""Each a process of half a second, in which nothing is another than in one of those that stay."""
COMMANDS = [pytest.param(name, marks=[pytest.mark.thorough] * (name in LIKE_OTHERS)) for name in ENDS]
SENTENCE = "Standard output cannot be written: No space left on device."


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    reshard(in_two_files(folder / "in"), folder / "copy")
    reshard(in_two_files(folder / "other"), folder / "copy of other")
    weights = next((folder / "other").glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "place"))


@contextmanager
def nobody() -> Iterator[int]:
    """The end of a pipe whose other end is closed."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


@contextmanager
def full() -> Iterator[int]:
    with open("/dev/full", "wb") as stream:
        yield stream.fileno()


def run(words: list[str], place: Path, **more: Any) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "sharding", *words]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more
    return subprocess.run(command, cwd=place, env=environment(), text=True, timeout=120, **pipes)


def is_quiet(stderr: str) -> bool:
    """Whether nothing is said of a pipe, and nothing of Python's own."""
    return not any(word in stderr for word in ("Traceback", "Exception ignored", "roken pipe", "bug in the program"))


@pytest.mark.parametrize("command", COMMANDS)
def test_where_the_reader_goes_away_the_output_ends_quietly_and_the_status_is_that_of_the_command(
    command: str, place: Path
) -> None:
    words, status = ENDS[command]
    with nobody() as stdout:
        done = run(words, place, stdout=stdout)
    assert done.returncode == status, done.stderr
    assert is_quiet(done.stderr)
    assert ("nobody reads the events any more" in done.stderr) == (status == 130)
    assert (place / INDEX).exists() == (command in ("shard", "shard --json"))


@pytest.mark.parametrize("command", COMMANDS)
def test_standard_output_that_cannot_be_written_is_a_sentence_and_status_3(command: str, place: Path) -> None:
    with full() as stdout:
        done = run(ENDS[command][0], place, stdout=stdout)
    assert done.returncode == 3 and done.stderr.count(SENTENCE) == 1, done.stderr
    assert is_quiet(done.stderr)
    assert (place / INDEX).exists() == (command == "shard --json")  # which prints at its end only


def closed(descriptor: int) -> Callable[[], None]:
    return lambda: os.close(descriptor)


@pytest.mark.parametrize("how", ["nobody", "full", "closed"])
@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["shard", "./in", "./new", "-s", "60kB"], 0),
        (["verify", "./in", "./other", "--json"], 1),
        (["inspect"], 2),
        (["inspect", "./nowhere", "--json"], 3),
    ],
)
def test_without_standard_error_a_command_does_what_it_does(
    how: str, words: list[str], status: int, place: Path
) -> None:
    if how == "closed":
        done = run(words, place, stderr=None, preexec_fn=closed(2))
    else:
        with {"nobody": nobody, "full": full}[how]() as stderr:
            done = run(words, place, stderr=stderr)
    assert done.returncode == status
    assert (place / INDEX).exists() == (words[0] == "shard")
    assert ("Identical" in done.stdout) == (words[0] == "shard")
    if "--json" in words:
        assert len(json.loads(done.stdout)) >= 1


def test_a_standard_output_that_was_closed_from_the_start_is_none(place: Path) -> None:
    for words in (["--version"], ["inspect", "./in"], ["shard", "./in", "./new", "-s", "60kB", "--events"]):
        done = run(words, place, stdout=None, preexec_fn=closed(1))
        assert done.returncode == 0 and is_quiet(done.stderr), done.stderr
    assert run(["verify", "./in", "./new"], place).returncode == 0


def test_a_job_whose_events_nobody_reads_any_more_ends_and_keeps_what_is_finished(
    checkpoint: Path, tmp_path: Path
) -> None:
    job = start_slow_job(checkpoint, tmp_path / "out")
    assert job.stdout and job.stderr
    job.stdout.close()
    assert "Cancelled: nobody reads the events any more.\nWhat is finished is kept. " in job.stderr.read()
    job.stderr.close()
    assert job.wait(60) == 130
    again = run(["shard", str(checkpoint), str(tmp_path / "out"), "-s", "20kB"], tmp_path)
    assert again.returncode == 0 and "was finished by an earlier run and is kept" in again.stderr


def own_terminal() -> None:
    hear_hangups()
    fcntl.ioctl(2, termios.TIOCSCTTY, 0)


def test_a_terminal_that_closes_cancels_its_job_as_ctrl_c_does(checkpoint: Path, tmp_path: Path) -> None:
    screen, terminal = pty.openpty()
    job = start_slow_job(checkpoint, tmp_path / "out", stderr=terminal, start_new_session=True, preexec_fn=own_terminal)
    os.close(terminal)
    os.close(screen)
    stdout, _ = job.communicate(timeout=60)
    assert job.returncode == 130
    assert json.loads(stdout.splitlines()[-1])["error"]["kind"] == "Cancelled"
    assert list(staged(tmp_path / "out").glob("*.safetensors.part"))


SENT_IN_BETWEEN = """
import os, signal
from sharding.storage.folder_destination import FolderDestination

note = FolderDestination.note

def note_and_send(*arguments):
    note(*arguments)
    os.kill(os.getpid(), signal.SIGHUP)

FolderDestination.note = note_and_send
from sharding.cli.start import main; main()
"""
"""The command, whose terminal closes whenever it has finished a shard."""


def test_a_job_that_was_started_with_nohup_goes_on_when_its_terminal_closes(place: Path) -> None:
    screen, terminal = pty.openpty()
    os.close(screen)
    command = [sys.executable, "-c", SENT_IN_BETWEEN, "shard", "./in", "./new", "-s", "60kB"]
    done = subprocess.run(
        command,
        cwd=place,
        env=environment(),
        stdout=terminal,
        stderr=terminal,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    os.close(terminal)
    assert done.returncode == 0 and (place / INDEX).exists()


def test_within_another_program_its_outputs_stay_what_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sys.stdout, sys.stderr, signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP)
    monkeypatch.setattr("gc.set_threshold", lambda *_: None)
    monkeypatch.setattr("sys.argv", ["shard-my-repo", "--version"])
    try:
        with pytest.raises(SystemExit):
            main()
    finally:
        for number, handler in zip((signal.SIGTERM, signal.SIGHUP), before[2:], strict=True):
            signal.signal(number, handler)
    assert (sys.stdout, sys.stderr) == before[:2]
    assert capsys.readouterr().out == f"shard-my-repo {__version__}\n"
