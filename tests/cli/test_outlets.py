"""What becomes of a command whose output nobody reads any more, or that cannot be written, and whose terminal closes."""

import fcntl
import json
import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

from tests.commands import invoke, run_process
from tests.conftest import LONGEST_SECONDS, ROOT, environment, in_two_files, listing
from tests.folders import recorded_in, reshard, staged
from tests.forks import CLOSED, UNREAD, Order

Run = Callable[..., "subprocess.CompletedProcess[str]"]

INDEX = "new/model.safetensors.index.json"
SHARD = "shard ./in ./new -s 60kB"
ENDS = {
    **dict.fromkeys(("--help", "localhub --help", "--version", "inspect ./in", "plan ./in --json"), 0),
    **{SHARD: 0, f"{SHARD} --json": 0, f"{SHARD} --events": 130, "discard ./copy": 0},
    **{"verify ./in ./copy --events": 130, "verify ./in ./other": 1},
}
"""What is typed, and the status where nobody reads what it prints."""
FULL = ["--help", "inspect ./in", "plan ./in --json", SHARD, f"{SHARD} --json", f"{SHARD} --events"]
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


@pytest.fixture(scope="module")
def forks() -> Iterator["subprocess.Popen[str]"]:
    """A process that has imported what the command line needs, torch excepted, and forks for each command."""
    modules = ("sharding.cli.start", "sharding.cli.commands", "sharding.cli.terminal", "sharding.job")
    command = [sys.executable, "-m", "tests.forks", *modules]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with subprocess.Popen(command, cwd=ROOT, env=environment(), **pipes) as process:
        yield process
        process.communicate()


@pytest.fixture
def run(forks: "subprocess.Popen[str]", place: Path, tmp_path: Path) -> Run:
    """Run a command whose outputs go to files, unless one of them is said to go elsewhere."""

    def run(words: list[str], output: str = "", error: str = "") -> "subprocess.CompletedProcess[str]":
        files = {name: tmp_path / name for name in ("output", "error")}
        out, err = output or str(files["output"]), error or str(files["error"])
        assert forks.stdin and forks.stdout
        forks.stdin.write(Order("sharding.cli.start:main", words, out, err, str(place), environment()).line())
        hangs = Timer(LONGEST_SECONDS, os.kill, [int(forks.stdout.readline()), signal.SIGKILL])
        hangs.start()
        status = int(forks.stdout.readline())
        hangs.cancel()
        texts = ["" if other else files[name].read_text() for name, other in (("output", output), ("error", error))]
        return subprocess.CompletedProcess(words, status, *texts)

    return run


def is_quiet(stderr: str) -> bool:
    """Whether nothing is said of a pipe, and nothing of Python's own."""
    return not any(word in stderr for word in ("Traceback", "Exception ignored", "roken pipe", "bug in the program"))


@pytest.mark.parametrize("typed", ENDS)
def test_where_the_reader_goes_away_the_output_ends_quietly_and_the_status_is_that_of_the_command(
    typed: str, run: Run, place: Path
) -> None:
    done = run(typed.split(), output=UNREAD)
    assert done.returncode == ENDS[typed], done.stderr
    assert is_quiet(done.stderr)
    assert ("nobody reads the events any more" in done.stderr) == ("--events" in typed)
    assert (place / INDEX).exists() == ("shard" in typed and "--events" not in typed)


@pytest.mark.parametrize("typed", FULL)
def test_standard_output_that_cannot_be_written_is_a_sentence_and_status_3(typed: str, run: Run, place: Path) -> None:
    done = run(typed.split(), output="/dev/full")
    assert done.returncode == 3 and done.stderr.count(SENTENCE) == 1, done.stderr
    assert is_quiet(done.stderr)
    assert (place / INDEX).exists() == ("shard" in typed and "--json" in typed)  # which prints at its end only


@pytest.mark.parametrize(
    ("error", "typed", "status"),
    [
        *((error, SHARD, 0) for error in (UNREAD, "/dev/full", CLOSED)),
        (UNREAD, "verify ./in ./other --json", 1),
        ("/dev/full", "inspect", 2),
        (CLOSED, "inspect ./nowhere --json", 3),
    ],
)
def test_without_standard_error_a_command_works(error: str, typed: str, status: int, run: Run, place: Path) -> None:
    done = run(typed.split(), error=error)
    assert done.returncode == status
    assert (place / INDEX).exists() == ("shard" in typed)
    assert ("Identical" in done.stdout) == ("shard" in typed)
    if "--json" in typed:
        assert len(json.loads(done.stdout)) >= 1


def test_a_process_that_is_no_fork_ends_as_quietly_also_without_a_standard_output(run: Run, place: Path) -> None:
    for words in (["--version"], ["inspect", "./in"]):
        done = run(words, output=CLOSED)
        assert done.returncode == 0 and is_quiet(done.stderr), done.stderr
    job = ["shard", "./in", "./new", "-s", "60kB", "--events"]
    done = run_process(*job, cwd=place, stdout=None, preexec_fn=lambda: os.close(1))  # it imports without one, too
    assert done.returncode == 0 and is_quiet(done.stderr), done.stderr
    assert invoke("verify", place / "in", place / "new").exit_code == 0
    reading, writing = os.pipe()
    os.close(reading)
    done = run_process("--help", stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def hear_hangups() -> None:
    """Undo what nohup does, in which tests may have been started."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


SLOW = """
import time
from sharding.storage.folder_destination import FolderDestination

opened, open_shard = [], FolderDestination.open_shard

def slow(*arguments):
    opened.append(1)
    for _ in range(1200 * (len(opened) > 1)):  # in short sleeps: a signal just before one begins does not end it
        time.sleep(0.05)
    return open_shard(*arguments)

FolderDestination.open_shard = slow
from sharding.cli.start import main; main()
"""
"""The command, whose job is certainly still at work after its first shard: writing the next one takes it a minute."""


def start_slow_job(checkpoint: Path, out: Path, **more: Any) -> "subprocess.Popen[str]":
    """Start such a job, and wait until it has finished a shard."""
    command = [sys.executable, "-c", SLOW, "shard", str(checkpoint), str(out), "-s", "20kB", "--events"]
    usual: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "preexec_fn": hear_hangups}
    job = subprocess.Popen(command, text=True, env=environment(), **(usual | more))
    assert job.stdout
    assert any('"shard-finished"' in line for line in iter(job.stdout.readline, "")), "it has ended too early"
    return job


def test_a_job_at_work_is_left_alone_and_an_interrupt_ends_it_cleanly(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    job = start_slow_job(checkpoint, out)
    try:
        before = listing(out)
        for words in (["shard", checkpoint, out, "-s", "20kB"], ["shard", checkpoint, out], ["discard", out]):
            refused = invoke(*words)
            who = f"process {job.pid} on {socket.gethostname()}"
            assert f"Another job is writing to {out} right now: {who}.\nWait until it ends, " in refused.stderr
            assert "could not be removed" not in refused.stderr
            assert refused.exit_code == 3 and listing(out) == before
    finally:
        job.send_signal(signal.SIGINT)
        stdout, stderr = job.communicate(timeout=LONGEST_SECONDS)
    assert job.returncode == 130
    assert "run the same command again" in stderr and "Traceback" not in stderr
    assert json.loads(stdout.splitlines()[-1])["error"]["kind"] == "Cancelled"
    parts = {path.name for path in staged(out).glob("*.safetensors*.part")}
    assert {f"{file}.part" for file in recorded_in(out)} == {part for part in parts if "record" not in part}
    shutil.copytree(out, tmp_path / "again")
    assert invoke("discard", out).exit_code == 0 and listing(out) == {}
    (tmp_path / "again").rename(out)
    again = invoke("shard", checkpoint, out, "-s", "20kB")
    assert again.exit_code == 0 and "Kept from an earlier run: " in again.stderr


def own_terminal() -> None:
    hear_hangups()
    fcntl.ioctl(2, termios.TIOCSCTTY, 0)


def test_a_terminal_that_closes_cancels_its_job_as_ctrl_c_does(checkpoint: Path, tmp_path: Path) -> None:
    screen, terminal = pty.openpty()
    job = start_slow_job(checkpoint, tmp_path / "out", stderr=terminal, start_new_session=True, preexec_fn=own_terminal)
    os.close(terminal)
    os.close(screen)
    stdout, _ = job.communicate(timeout=LONGEST_SECONDS)
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
    ignoring: dict[str, Any] = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
    words = ("shard", "./in", "./new", "-s", "60kB")
    done = run_process(*words, program=SENT_IN_BETWEEN, cwd=place, stdout=terminal, stderr=terminal, **ignoring)
    os.close(terminal)
    assert done.returncode == 0 and (place / INDEX).exists()
