"""Every example in a docstring is run, and says what it says."""

import doctest
import importlib
from pathlib import Path

import pytest

from tests.conftest import ROOT


def rooms(below: Path, root: Path) -> list[str]:
    """The names, seen from `root`, of all modules that have an example."""
    paths = [path.relative_to(root) for path in sorted(below.rglob("*.py")) if ">>> " in path.read_text()]
    return [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths]


@pytest.mark.parametrize("room", [*rooms(ROOT / "sharding", ROOT), *rooms(ROOT / "bench", ROOT / "bench")])
def test_the_examples_say_what_comes_out(room: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "bench")
    monkeypatch.chdir(tmp_path)
    found = doctest.testmod(importlib.import_module(room))
    assert found.attempted > 0
    assert found.failed == 0
