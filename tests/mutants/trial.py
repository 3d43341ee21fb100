"""Put one fault at a time into a copy of the tree, and run the tests that execute its line."""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Timer
from typing import Any

import psutil
from pytest import ExitCode

from tests.forks import Order
from tests.mutants.faults import Fault, faults_in
from tests.mutants.watch import lines_seen, seconds_of_tests, settings, tests_of_lines

NOT_COPIED = {".git", ".venv", "build", "demo", "fuzz", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"}
HARMLESS = Path("tests/mutants/harmless.toml")
HEAVY = ("pytest", "hypothesis", "numpy", "torch", "transformers.core_model_loading")
"""What takes long to import, and is not ours."""
# What has been imported plugins cannot rewrite any more.
PYTEST = ("-Wignore:Module already imported", "-x", "-pno:cacheprovider", "--hypothesis-seed=0", "-m", "not thorough")
NOT_WATCHED = ("tests/mutants", "tests/docs")
"""Tests of the faults themselves, and of texts."""
ROOM_SECONDS = 120.0
"""The tests of a room end here, the slowest left out; it holds for one fault."""
SERVED = ("page", "localhub")
"""Wings that run in processes which outlive a test: of their lines only the test that started one is known."""
STARTING_SECONDS = 30.0
"""What a run may take besides three times what its tests have taken: then it hangs."""


@dataclass(frozen=True)
class Tried:
    """What came of one fault: "noticed", "harmless" or "survived"."""

    wing: str
    fault: Fault
    outcome: str


class Refused(Exception):
    """Faults cannot be tried, for the reason given."""


class Trial:
    """A copy of the tree in which faults are tried."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.tree, temporary = folder / "tree", folder / "t"  # short: paths of sockets below it have a bound
        shutil.copytree(
            root, self.tree, ignore=lambda place, _: NOT_COPIED if Path(place) == root else {"node_modules"}
        )
        temporary.mkdir()
        # By hash: a file that is changed within a second is compiled again, and the rest never.
        compiling = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "sharding", "tests"]
        subprocess.run([sys.executable, *compiling], cwd=self.tree, check=True)
        self._output = folder / "output"
        environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        environment |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(self.tree)}
        (home := temporary / "home").mkdir()
        environment |= {"TMPDIR": str(temporary), "HF_HOME": str(home)}
        command = [sys.executable, "-m", "tests.forks", *HEAVY]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        self._forks = subprocess.Popen(command, cwd=self.tree, env=environment, **pipes)

    def fails(self, arguments: Sequence[str], seconds: float | None = None) -> bool:
        assert self._forks.stdin and self._forks.stdout
        order = Order("pytest:console_main", [*PYTEST, *arguments], str(self._output), cwd=str(self.tree))
        self._forks.stdin.write(order.line())
        run = psutil.Process(int(self._forks.stdout.readline()))
        hangs = Timer(seconds or 1e6, _kill, [run])
        hangs.start()
        try:
            # Killed, it has ended with less than nothing; of a test that is thorough nothing is run.
            return int(self._forks.stdout.readline()) not in (ExitCode.OK, ExitCode.NO_TESTS_COLLECTED)
        finally:
            hangs.cancel()
            _kill(run)  # where this is interrupted it is still there

    def notices(self, fault: Fault, rooms: Sequence[Sequence[str]], seconds: Mapping[str, float]) -> bool:
        """Put one fault into the copy, run the tests of its rooms, and take it out again."""
        path = self.tree / fault.file
        sound = path.read_text()
        path.write_text(fault.text)
        try:
            most = [STARTING_SECONDS + 3 * sum(map(seconds.__getitem__, tests)) for tests in rooms]
            return any(map(self.fails, rooms, most))
        finally:
            path.write_text(sound)

    def output(self) -> str:
        return self._output.read_text()

    def close(self) -> None:
        with self._forks:
            self._forks.communicate()


class Rooms:
    """Which tests may notice a fault: those that execute its line."""

    def __init__(self, trial: Trial, wings: Sequence[str], processes: int = 1) -> None:
        seen = trial.tree.parent / "seen"
        seen.mkdir()
        settled = settings(seen, [trial.tree / "sharding" / wing for wing in wings])
        spread = ["-n", str(processes)] if processes > 1 else []
        passed_over = [f"--ignore={path}" for path in NOT_WATCHED]
        if trial.fails(["-p", "tests.mutants.watch", "--watch", str(settled), *spread, *passed_over, "tests"]):
            said = trial.output()
            raise Refused(f"The tests fail without a fault, so that nothing can be learnt from one:\n{said}")
        self.seconds = seconds_of_tests(seen)
        watched = lines_seen(settled)
        self._lines = cache(lambda file: tests_of_lines(watched, trial.tree / file))

    def of(self, wing: str, fault: Fault) -> list[list[str]]:
        """Return the tests that execute the fault's line: those of its wing, then the others.

        The quickest first. Where none is known to, as on import or in a child process of another environment, all of
        its wing and file.
        """
        lines: dict[int, set[str]] = self._lines(fault.file)
        own = {test for test in self.seconds if test.startswith(f"tests/{wing}/")}
        tests = {test for line in fault.lines for test in lines.get(line, ())} or own.union(*lines.values())
        if wing in SERVED:
            tests |= own
        rooms: tuple[list[str], ...] = ([], [])
        left = ROOM_SECONDS
        for test in sorted(tests & self.seconds.keys(), key=lambda test: (test not in own, self.seconds[test], test)):
            left -= self.seconds[test]
            if any(rooms) and left < 0:
                break
            rooms[0 if test in own else 1].append(test)
        # One after another: what others import may take longer than they do.
        return [room for room in rooms if room]


def is_harmless(root: Path, fault: Fault) -> bool:
    """Whether the list says that nobody could notice it."""
    listed = root / HARMLESS
    asked = (fault.file, fault.within, fault.was)
    return any(
        (one["file"], one["within"], one["was"]) == asked and fault.becomes in one.get("becomes", [fault.becomes])
        for one in (tomllib.loads(listed.read_text()).get("harmless", []) if listed.exists() else [])
    )


def faults_of(root: Path, wing: str) -> list[Fault]:
    files = sorted((root / "sharding" / wing).rglob("*.py"))
    return [fault for path in files for fault in faults_in(root, path.relative_to(root).as_posix())]


def _kill(run: psutil.Process) -> None:
    """Kill a run with its children: a job has a session of its own."""
    with suppress(psutil.NoSuchProcess):
        for process in (*run.children(recursive=True), run):
            process.kill()
