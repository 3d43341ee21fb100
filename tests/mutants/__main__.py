"""Put small faults into the code and ask whether a test notices: `python -m tests.mutants N`, or `all` for N.

Each is put into a copy of the tree, so that child processes have it too, and is tried with the tests of its room:
those of its wing and those of `tests/scenarios` that execute its line, the wing's and the quickest first.
"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Timer
from typing import Any

import psutil

from tests.conftest import ROOT
from tests.mutants.faults import Fault, faults_in
from tests.mutants.nursery import OUTPUT
from tests.mutants.watch import seconds_of_tests, settings, tests_of_lines

WINGS = ("planning", "transfer", "verify", "storage", "desk")
SHARED = ("tests/scenarios", "tests/loading", "tests/cli", "tests/test_job.py")
"""Tests that cross wings."""
NOT_COPIED = {".git", ".venv", "build", "demo", "fuzz", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"}
HARMLESS = Path("tests/mutants/harmless.toml")
# The nursery has imported what plugins would like to rewrite.
PYTEST = ("-Wignore:Module already imported", "-x", "-pno:cacheprovider", "--hypothesis-seed=0", "-m", "not thorough")
ROOM_SECONDS = 120.0
"""The tests of a room end here, the slowest left out; it holds for one fault."""
STARTING_SECONDS = 30.0
"""What a run may take besides three times what its tests have taken: then it hangs."""
KINDS = ("noticed", "harmless", "survived")


@dataclass(frozen=True)
class Tried:
    """What came of one fault: a word of `KINDS`."""

    wing: str
    fault: Fault
    outcome: str


class Refused(Exception):
    """Faults cannot be tried, for the reason given."""


class Trial:
    """A copy of the tree in which faults are tried."""

    def __init__(self, root: Path, folder: Path, wings: Sequence[str]) -> None:
        """Copy `root`, and start what runs tests there."""
        self._tree, self._seen, temporary = folder / "tree", folder / "seen", folder / "temporary"
        shutil.copytree(
            root, self._tree, ignore=lambda place, _: NOT_COPIED if Path(place) == root else {"node_modules"}
        )
        self._seen.mkdir()
        temporary.mkdir()
        listed = root / HARMLESS
        self._harmless = tomllib.loads(listed.read_text()).get("harmless", []) if listed.exists() else []
        # By hash: a file that is changed within a second is compiled again, and the rest never.
        compiling = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "sharding", "tests"]
        subprocess.run([sys.executable, *compiling], cwd=self._tree, check=True)
        self._output = folder / "output"
        environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(self._tree),
            "TMPDIR": str(temporary),
            "HF_HOME": str(temporary),
            OUTPUT: str(self._output),
        }
        command = [sys.executable, "-m", "tests.mutants.nursery"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        self._nursery = subprocess.Popen(command, cwd=self._tree, env=environment, **pipes)
        self._settings = settings(self._seen, [self._tree / "sharding" / wing for wing in wings])
        self._wings = wings

    def begin(self) -> None:
        """Run the tests without a fault. Raises Refused where they fail."""
        own = [f"tests/{wing}" for wing in self._wings]
        tests = [path for path in (*own, *SHARED) if (self._tree / path).exists()]
        if self._fails(["-p", "tests.mutants.watch", "--watch", str(self._settings), *tests], None):
            said = self._output.read_text()
            raise Refused(f"The tests fail without a fault, so that nothing can be learnt from one:\n{said}")
        self._seconds = seconds_of_tests(self._seen)
        self._lines = cache(lambda file: tests_of_lines(self._settings, self._tree / file))

    def faults(self, wing: str) -> list[Fault]:
        """Return all faults of a wing."""
        files = sorted((self._tree / "sharding" / wing).rglob("*.py"))
        return [fault for path in files for fault in faults_in(self._tree, path.relative_to(self._tree).as_posix())]

    def room(self, wing: str, fault: Fault) -> tuple[list[str], list[str]]:
        """Return the tests that execute the fault's line, those of the wing apart from others, the quickest first.

        Where none is known to, as on import or in a child process of another environment, all of its wing and file.
        """
        lines: dict[int, set[str]] = self._lines(fault.file)
        own = {test for test in self._seconds if test.startswith(f"tests/{wing}/")}
        tests = {test for line in fault.lines for test in lines.get(line, ())} or own.union(*lines.values())
        rooms: tuple[list[str], list[str]] = ([], [])
        left = ROOM_SECONDS
        for test in sorted(tests & self._seconds.keys(), key=lambda test: (test not in own, self._seconds[test], test)):
            left -= self._seconds[test]
            if any(rooms) and left < 0:
                break
            rooms[test not in own].append(test)
        return rooms

    def attempt(self, wing: str, fault: Fault) -> Tried:
        """Put one fault into the copy, run the tests of its room, and take it out again."""
        path = self._tree / fault.file
        sound = path.read_text()
        path.write_text(fault.text)
        try:
            # The wing's alone first: what others import may take longer than they do.
            noticed = any(tests and self._fails(tests, self._patience(tests)) for tests in self.room(wing, fault))
        finally:
            path.write_text(sound)
        return Tried(wing, fault, "noticed" if noticed else "harmless" if self._is_listed(fault) else "survived")

    def _patience(self, tests: Sequence[str]) -> float:
        return STARTING_SECONDS + 3 * sum(self._seconds[test] for test in tests)

    def _fails(self, arguments: Sequence[str], seconds: float | None) -> bool:
        """Whether a test fails, or they hang for so many seconds."""
        assert self._nursery.stdin and self._nursery.stdout
        self._nursery.stdin.write(json.dumps([*PYTEST, *arguments]) + "\n")
        run = psutil.Process(int(self._nursery.stdout.readline()))
        hangs = Timer(seconds or 1e6, _kill, [run])
        hangs.start()
        try:
            return int(self._nursery.stdout.readline()) != 0
        finally:
            hangs.cancel()
            _kill(run)  # where this is interrupted it is still there

    def close(self) -> None:
        """End the process that runs the tests."""
        with self._nursery:
            self._nursery.communicate()

    def _is_listed(self, fault: Fault) -> bool:
        return any(
            (one["file"], one["within"], one["was"]) == (fault.file, fault.within, fault.was)
            and fault.becomes in one.get("becomes", [fault.becomes])
            for one in self._harmless
        )


def _kill(run: psutil.Process) -> None:
    """Kill a run with its children: a job has a session of its own."""
    with suppress(psutil.NoSuchProcess):
        for process in (*run.children(recursive=True), run):
            process.kill()


def draw(faults: Sequence[Fault], count: int | None, seed: str) -> Iterator[Fault]:
    """Yield that many of the faults at random, or all of them in order."""
    drawn = faults if count is None else random.Random(seed).sample(faults, len(faults))
    left = len(faults) if count is None else count
    for fault in drawn:
        if left and fault.is_one:
            left -= 1
            yield fault


def try_faults(
    root: Path, wings: Sequence[str], count: int | None, seed: int, say: Callable[[str], None] = print
) -> list[Tried]:
    """Try `count` faults, as many of each wing, or all of them. Raises Refused where tests fail without one."""
    tried = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, closing(Trial(root, Path(folder), wings)) as trial:
        trial.begin()
        for number, wing in enumerate(wings):
            share = None if count is None else (count + len(wings) - 1 - number) // len(wings)
            for fault in draw(trial.faults(wing), share, f"{seed} {wing}"):
                tried.append(trial.attempt(wing, fault))
                say(f"{tried[-1].outcome}: {fault.file}, {fault.within}: {fault.was} → {fault.becomes}")
    return tried


def table(tried: Sequence[Tried]) -> str:
    """Return how many were tried, noticed, harmless and survived in each wing, and the share that survived."""
    rows = ["| wing | tried | noticed | harmless | survived |", "|---|---|---|---|---|"]
    for wing in [*dict.fromkeys(one.wing for one in tried), "all"]:
        outcomes = Counter(one.outcome for one in tried if wing in (one.wing, "all"))
        rows.append(f"| {wing} | {outcomes.total()} | {' | '.join(str(outcomes[kind]) for kind in KINDS)} |")
    outcomes = Counter(one.outcome for one in tried)
    faults = outcomes["noticed"] + outcomes["survived"]
    share = 100 * outcomes["survived"] / faults if faults else 0
    return "\n".join(
        [*rows, "", f"Of {faults} faults that are not harmless {outcomes['survived']} survived: {share:.1f} %."]
    )


HEADING = "## Mutants"
INTRODUCTION = """Small faults put into the code at random (mutmut's operators), each tried with the tests of its room: those of its wing and
those of `tests/scenarios` that execute its line. Harmless are those that change nothing anybody could notice, listed with
a reason in `tests/mutants/harmless.toml`. Seed {seed}. Command: `make mutants MUTANTS={count}`."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Try faults, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", help='how many faults, spread evenly over the wings; "all" takes hours')
    parser.add_argument("--wings", nargs="+", choices=WINGS, default=WINGS)
    parser.add_argument("--seed", type=int, default=0, help="another seed draws others")
    parser.add_argument("--note", action="store_true", help="write the outcome into bench/RESULTS.md")
    options = parser.parse_args(arguments)
    if not re.fullmatch("all|[1-9][0-9]*", options.count):
        parser.error(f"{options.count} is neither a number nor all.")
    print(f"seed {options.seed}", flush=True)
    count = None if options.count == "all" else int(options.count)
    try:
        tried = try_faults(ROOT, options.wings, count, options.seed, lambda line: print(line, flush=True))
    except Refused as refused:
        sys.exit(str(refused))
    survivors = [str(one.fault) for one in tried if one.outcome == "survived"]
    print(*survivors, table(tried), sep="\n\n")
    if options.note:
        from bench.harness.sections import RESULTS, replace_section

        introduction = INTRODUCTION.format(seed=options.seed, count=options.count)
        replace_section(RESULTS, HEADING, f"{introduction}\n\n{table(tried)}")


if __name__ == "__main__":
    main()
