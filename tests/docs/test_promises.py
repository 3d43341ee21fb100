"""What README and docs promise has a test that says so, and no test names a promise that nobody makes."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import ROOT
from tests.docs.pages import FORMATS, README, slugs

SECURITY = ROOT / "docs/security.md"
PROMISE_NOTHING = {"shard-my-repo", "how-it-compares", "where-to-read-on", "what-goes-in-and-what-comes-out"}
CANNOT = re.compile(r"^(?:They|It) cannot:\n\n((?:- .*\n)+)", re.M)


def first_words(item: str) -> str:
    """The place of an item in a list: its words in small letters."""
    return "-".join(re.findall(r"[a-z0-9]+", re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", item).lower()))


def attacks() -> list[str]:
    """What somebody cannot do, as docs/security.md lists it."""
    return [first_words(item) for items in CANNOT.findall(SECURITY.read_text()) for item in items.splitlines()]


def marked() -> Iterator[tuple[str, str]]:
    """Yield each place that a test names, with the name of the test."""
    for path in sorted(Path(ROOT, "tests").rglob("test_*.py")):
        text = path.read_text()
        for node in ast.parse(text).body if "@promise(" in text else ():
            for mark in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
                if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name) and mark.func.id == "promise":
                    yield from ((place.value, node.name) for place in mark.args if isinstance(place, ast.Constant))  # type: ignore[misc]


def needed() -> set[str]:
    """The places that need a test: each heading of README and of docs/formats.md, and each attack."""
    headings = {page: slugs(page) - PROMISE_NOTHING for page in (README, FORMATS)}
    places = {f"{page.relative_to(ROOT).as_posix()}#{slug}" for page, names in headings.items() for slug in names}
    return places | {f"docs/security.md#{item}" for item in attacks()}


def test_every_promise_has_a_test_and_every_marker_a_promise() -> None:
    places, wanted = {place for place, _ in marked()}, needed()
    items = {f"docs/security.md#{item}" for item in attacks()}
    assert len(items) > 40
    of_items = {item: {place for place in places if item.startswith(place)} for item in items}
    assert sorted(item for item, marks in of_items.items() if not marks) == []
    assert sorted(wanted - items - places) == []
    headings = {
        f"{page.relative_to(ROOT).as_posix()}#{slug}" for page in (README, FORMATS, SECURITY) for slug in slugs(page)
    }
    known = headings.union(*of_items.values())
    assert sorted(places - known) == []
    assert all(len([item for item in items if item.startswith(place)]) <= 1 for place in places)
