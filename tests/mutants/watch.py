"""A plugin of pytest: note which test executes which line, in child processes too, and how long each takes."""

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from coverage import Coverage

TESTS = "tests.json"
SETTINGS = """[run]
parallel = true
context = ${PYTEST_CURRENT_TEST-}
data_file = %(folder)s/lines
source = %(sources)s
disable_warnings = module-not-imported, no-data-collected
"""
"""pytest names the running test in that variable, which child processes inherit."""


class Watch:
    """Tells coverage which test runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seconds: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        watching = Coverage.current()
        assert watching
        watching.switch_context(item.nodeid)
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        (self._folder / TESTS).write_text(json.dumps(self._seconds))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Watch(Path(os.environ["COVERAGE_PROCESS_START"]).parent))


def settings(folder: Path, sources: list[Path]) -> Path:
    """Write what coverage is to watch, and return that file."""
    path = folder / "coverage.ini"
    path.write_text(SETTINGS % {"folder": folder, "sources": "\n  ".join(map(str, sources))})
    return path


def seconds_of_tests(folder: Path) -> dict[str, float]:
    """Return how long each test has taken."""
    seconds: dict[str, float] = json.loads((folder / TESTS).read_text())
    return seconds


def tests_of_lines(settings: Path, file: Path) -> dict[int, set[str]]:
    """Return which tests execute each line of a file; none for what is executed while a module is imported."""
    watched = Coverage(config_file=str(settings))
    if list(settings.parent.glob("lines.*")):
        watched.combine()
    else:
        watched.load()
    lines = watched.get_data().contexts_by_lineno(str(file))
    # A child process says "name of the test (phase)".
    return {line: {name.rsplit(" (", 1)[0] for name in names if name} for line, names in lines.items()}
