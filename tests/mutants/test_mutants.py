"""A fault that a test sees is noticed, in a child process too; one that none sees survives unless it is listed."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.mutants import __main__ as mutants
from tests.mutants import trial
from tests.mutants.faults import faults_in

SOURCE = '''
def seen(a: int | None, b: int) -> int:
    """Seen by a test."""
    return a - b


def child() -> None:
    print(1 + 1)


def unseen(a: int) -> int:
    return a * TWICE


TWICE = 2


def waits(seconds: float) -> None:
    if seconds < 0:
        raise ValueError("never less than nothing", seconds)


def listed() -> int:
    return 64 // 8
'''
TESTS = """
import subprocess
import sys

from sharding.planning import toy


def test_seen():
    assert toy.seen(3, 2) == 1


def test_child():
    code = "from sharding.planning import toy; toy.child()"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, env={}).stdout == b"2\\n"


def test_the_rest():
    assert toy.unseen(0) == 0
    assert toy.listed()
    toy.waits(1)
"""
LIST = """
[[harmless]]
file = "sharding/planning/toy.py"
within = "listed"
was = "return 64 // 8"
reason = "a size of which nothing depends"
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "root"
    for path, text in {
        "sharding/__init__.py": "",
        "sharding/planning/__init__.py": "",
        "sharding/planning/toy.py": SOURCE,
        "tests/__init__.py": "",
        "tests/planning/__init__.py": "",
        "tests/planning/test_toy.py": TESTS,
        "tests/mutants/harmless.toml": LIST,
        "pyproject.toml": "[tool.pytest.ini_options]",  # so that none above it counts
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    for name in ("forks.py", "mutants/__init__.py", "mutants/watch.py"):
        (root / "tests" / name).write_text((ROOT / "tests" / name).read_text())
    monkeypatch.setattr(trial, "HEAVY", ("pytest", "coverage", "hypothesis", "xdist.plugin", "anyio.pytest_plugin"))
    return root


def test_faults_are_noticed_listed_as_harmless_or_survive(tree: Path) -> None:
    expected = {
        ("seen", "return a + b"): "noticed",
        ("child", "print(1 - 1)"): "noticed",
        ("unseen", "return a / TWICE"): "survived",
        ("", "TWICE = None"): "noticed",
        ("listed", "return 65 // 8"): "harmless",
        ("seen", "return a - b"): "survived",  # no fault: those before have gone without a trace
    }
    faults = {(fault.within, fault.becomes): fault for fault in trial.faults_of(tree, "planning")}
    one = faults["seen", "return a + b"]
    faults["seen", "return a - b"] = replace(one, new=one.old)
    said: list[str] = []
    tried = mutants.try_faults(tree, [("planning", faults[key]) for key in expected], 1, said.append)
    assert [one.outcome for one in tried] == list(expected.values())
    assert len(said) == len(expected)
    assert "| planning | 6 | 3 | 1 | 2 |" in mutants.table(tried) and "2 survived: 40.0 %" in mutants.table(tried)
    assert (tree / "sharding/planning/toy.py").read_text() == SOURCE


def test_what_only_people_and_type_checkers_read_is_left_alone(tree: Path) -> None:
    changed = " ".join(fault.becomes for fault in faults_in(tree, "sharding/planning/toy.py"))
    assert "None, b" not in changed and "XX" not in changed


def test_nothing_is_tried_where_tests_fail_without_a_fault(tree: Path) -> None:
    (tree / "tests/planning/test_toy.py").write_text("def test_wrong(): assert False")
    with pytest.raises(trial.Refused, match="fail without a fault"):
        mutants.try_faults(tree, list(mutants.drawn(tree, ["planning"], 1, 0)))


def test_a_seed_draws_the_same_faults_again(tree: Path) -> None:
    first, again, other = ([str(one) for _, one in mutants.drawn(tree, ["planning"], 4, seed)] for seed in (1, 1, 2))
    assert first == again != other and len(first) == 4


def test_a_fault_that_hangs_is_noticed(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, tests = tree / "sharding/planning/toy.py", tree / "tests/planning/test_toy.py"
    source.write_text("def count():\n    n = 3\n    while n > 0:\n        n -= 1\n")
    tests.write_text("from sharding.planning import toy\n\n\ndef test_count():\n    toy.count()\n")
    monkeypatch.setattr(trial, "STARTING_SECONDS", 2)
    (endless,) = [fault for fault in trial.faults_of(tree, "planning") if fault.becomes == "n += 1"]
    assert [one.outcome for one in mutants.try_faults(tree, [("planning", endless)])] == ["noticed"]


def test_every_entry_of_the_list_is_a_fault_that_there_is_and_says_why() -> None:
    for one in tomllib.loads((ROOT / trial.HARMLESS).read_text())["harmless"]:
        lines = ["", *map(str.strip, (ROOT / one["file"]).read_text().splitlines())]
        inside = [fault for fault in faults_in(ROOT, one["file"]) if fault.within == one["within"]]
        # To write out what a fault changes takes long.
        there = [fault for fault in inside if any(lines[number] in one["was"] for number in fault.lines or [0])]
        becomes = {fault.becomes for fault in there if fault.was == one["was"]}
        assert becomes and becomes >= set(one.get("becomes", [])), one["was"]
        assert one["reason"]
