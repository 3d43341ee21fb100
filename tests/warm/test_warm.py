"""A fork that stands in for a process takes what it was given, and ends as that would."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import environment

pytestmark = pytest.mark.usefixtures("warm_processes")


def command(code: str, *words: str) -> list[str]:
    return [sys.executable, "-c", f"import os, sys, signal, __main__\nimport torch\n{code}", *words]


@pytest.mark.parametrize(
    ("code", "status"),
    [("", 0), ("sys.exit(3)", 3), ("1 / 0", 1), ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL)],
    ids=["done", "status", "error", "signal"],
)
def test_its_files_its_folder_and_its_end_are_those_of_the_process(code: str, status: int, tmp_path: Path) -> None:
    begin = (
        "print(__main__.__file__.endswith('server.py'), os.getcwd(), os.environ['X'], sys.argv[1], sys.stdin.read())\n"
    )
    given: dict[str, Any] = {"env": {**environment(), "X": "y"}, "cwd": tmp_path, "input": "in", "text": True}
    done = subprocess.run(command(f"{begin}sys.stdout.flush()\n{code}", "word"), capture_output=True, **given)
    assert (done.returncode, done.stdout) == (status, f"True {tmp_path} y word in\n"), done.stderr
    assert ("ZeroDivisionError" in done.stderr) == (code == "1 / 0")


def test_it_ends_with_the_process_that_it_stands_in_for() -> None:
    code = "print(os.getpid(), flush=True)\nsignal.pause()"
    with subprocess.Popen(command(code), env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        fork = int(process.stdout.readline())
        process.kill()
        assert process.stdout.read() == "" and fork != process.pid  # nobody has it open any more
