"""Every promise in `tests/promises/` is said where the list says so and has tests; every fault by hand breaks one."""

import ast
from functools import cache

from tests import promises
from tests.conftest import ROOT
from tests.docs.pages import DEVELOPMENT, PAGES, slugs
from tests.mutants.by_hand import FaultByHand, faults_by_hand

WINGS = ("storage", "transfer", "recipes", "verify", "desk", "fleet", "report", "cli")
"""The wings whose docstrings promise something to others."""
PROMISES = promises.read(ROOT)
FEWEST_FAULTS = 150


@cache
def names(file: str) -> set[str]:
    """Every function, class and method of a file: `Class.method` for the last."""
    found: set[str] = set()

    def look(body: list[ast.stmt], before: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(before + node.name)
                look(node.body, f"{before}{node.name}.")

    look(ast.parse((ROOT / file).read_text()).body, "")
    return found


def is_there(place: str) -> bool:
    """Whether there is such a heading of a page, or such a name in a file."""
    if place.partition("#")[0].endswith(".md"):
        page, _, anchor = place.partition("#")
        return (ROOT / page).is_file() and (not anchor or anchor in slugs(ROOT / page))
    file, _, name = place.partition("::")
    return (ROOT / file).is_file() and (not name or name in names(file))


def test_every_promise_is_said_somewhere_and_held_by_tests() -> None:
    for name, promise in PROMISES.items():
        assert promise.says.endswith("."), name
        assert promise.where and promise.tests, name
        assert [place for place in (*promise.where, *promise.tests) if not is_there(place)] == [], name


def test_every_page_and_every_room_of_the_wings_is_in_the_list() -> None:
    places = {place.partition("#")[0].partition("::")[0] for promise in PROMISES.values() for place in promise.where}
    rooms = {path for wing in WINGS for path in (ROOT / "sharding" / wing).glob("*.py") if path.stem != "__init__"}
    pages = set(PAGES) - {DEVELOPMENT}  # which promises nothing to those who use it
    assert {path.relative_to(ROOT).as_posix() for path in pages | rooms} - places == set()


def test_faults_by_hand_are_faults_of_this_code() -> None:
    faults = faults_by_hand(ROOT)  # raises where one is not
    assert len(faults) >= FEWEST_FAULTS
    assert {fault.wing for fault in faults} >= set(WINGS)


def test_a_fault_by_hand_names_the_function_that_it_changes() -> None:
    sound = "X = 1\n\n\nclass A:\n    def f(self):\n        def g():\n            return 1 + 2\n        return g\n"
    fault = FaultByHand("sharding/job.py", "1 + 2", "1 - 2", "p", (), sound)
    assert (fault.within, fault.lines, "1 - 2" in fault.text) == ("A.f.g", range(7, 8), True)
    assert FaultByHand("sharding/job.py", "X = 1", "X = 2", "p", (), sound).lines == range(0)
