"""Read the faults that people wrote: each breaks a promise in `tests/promises/` as a tired engineer might."""

import ast
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.promises import read

FOLDER = Path("tests/mutants/by_hand")


class WrongFault(Exception):
    """A fault that cannot be put into the code as it stands."""


@dataclass(frozen=True)
class FaultByHand:
    """The text `was`, which stands in `file` once, becomes another; that breaks the promise `breaks`.

    `tests` are those that hold the promise, `sound` is the whole file without the fault.
    """

    file: str
    was: str
    becomes: str
    breaks: str
    tests: tuple[str, ...]
    sound: str

    @property
    def wing(self) -> str:
        """The folder below `sharding/`, or the file there."""
        return Path(self.file).parts[1]

    @cached_property
    def text(self) -> str:
        """The whole file with the fault."""
        return self.sound.replace(self.was, self.becomes)

    @cached_property
    def _first(self) -> int:
        return self.sound[: self.sound.index(self.was)].count("\n") + 1

    @property
    def lines(self) -> range:
        """The lines that it changes, as tests execute them; none outside of functions."""
        lines = range(self._first, self._first + self.was.rstrip("\n").count("\n") + 1)
        return lines if self.within else range(0)

    @cached_property
    def within(self) -> str:
        """The function that it changes; empty outside of all."""
        return _function_at(ast.parse(self.sound).body, self._first)

    def __str__(self) -> str:
        """Return it as text."""
        return f"{self.file}, {self.within}, against {self.breaks}:\n- {self.was}\n+ {self.becomes}"


def _function_at(body: Iterable[Any], line: int) -> str:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and (
            min([node.lineno, *(one.lineno for one in node.decorator_list)]) <= line <= (node.end_lineno or 0)
        ):
            inside = _function_at(node.body, line)
            is_function = not isinstance(node, ast.ClassDef)
            return ".".join(filter(None, [node.name, inside])) if inside or is_function else ""
    return ""


def faults_by_hand(root: Path) -> list[FaultByHand]:
    """Return the faults of all lists below `root`. Raises WrongFault where one is none of the code there."""
    promises = read(root)
    faults = []
    for path in sorted((root / FOLDER).glob("*.toml")):
        for entry in tomllib.loads(path.read_text())["fault"]:
            sound = (root / entry["file"]).read_text()
            if sound.count(entry["was"]) != 1:
                raise WrongFault(f"{path.name}: this stands in {entry['file']} not once:\n{entry['was']}")
            if entry["breaks"] not in promises:
                raise WrongFault(f"{path.name}: there is no promise {entry['breaks']}.")
            fault = FaultByHand(**entry, tests=tuple(promises[entry["breaks"]].tests), sound=sound)
            ast.parse(fault.text)
            if fault.text == sound:
                raise WrongFault(f"{path.name}: this changes nothing:\n{entry['was']}")
            faults.append(fault)
    return faults
