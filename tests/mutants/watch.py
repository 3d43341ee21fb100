"""A plugin of pytest: note which test executes which line, in child processes too, and how long each takes."""

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from coverage import Coverage, CoverageData

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

    def __init__(self, settings: Path) -> None:
        self._folder = settings.parent
        self._seconds: dict[str, float] = defaultdict(float)
        os.environ["COVERAGE_PROCESS_START"] = str(settings)
        # A process of pytest-xdist is watched since it began, as any child process.
        watched = Coverage.current()
        self._coverage = watched or Coverage(config_file=str(settings))
        if watched is None:
            self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._coverage.stop()
        self._coverage.save()
        if not hasattr(session.config, "workerinput"):
            (self._folder / TESTS).write_text(json.dumps(self._seconds))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--watch", type=Path, help="what coverage is to watch, and beside it what was seen")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    # Before any of ours is imported.
    early_config.pluginmanager.register(Watch(early_config.known_args_namespace.watch))


def settings(folder: Path, sources: list[Path]) -> Path:
    path = folder / "coverage.ini"
    path.write_text(SETTINGS % {"folder": folder, "sources": "\n  ".join(map(str, sources))})
    return path


def seconds_of_tests(folder: Path) -> dict[str, float]:
    seconds: dict[str, float] = json.loads((folder / TESTS).read_text())
    return seconds


def lines_seen(settings: Path) -> CoverageData:
    watched = Coverage(config_file=str(settings))
    if list(settings.parent.glob("lines.*")):
        watched.combine()
    else:
        watched.load()
    return watched.get_data()


def tests_of_lines(seen: CoverageData, file: Path) -> dict[int, set[str]]:
    """Return which tests execute each line of a file; none for what is executed while a module is imported."""
    # A child process says "name of the test (phase)".
    lines = seen.contexts_by_lineno(str(file))
    return {line: {name.rsplit(" (", 1)[0] for name in names if name} for line, names in lines.items()}
