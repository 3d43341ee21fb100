"""Every error and every finding in the code: what is wrong, and what to do."""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple, get_args

from sharding.core import errors
from sharding.core.errors import RemedyKind, ShardingError
from tests.conftest import ROOT

CODE = ROOT / "sharding"
KINDS = get_args(RemedyKind)
CLASSES = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, ShardingError)}
_MADE_BY = {*CLASSES, "Finding", "family", "kind", "super().__init__"}
_DEEP = 3
"""How many names are looked up one behind the other."""


class Message(NamedTuple):
    """An error or a finding in the code.

    `of` is its class, `about` the kind of its remedy or the code of the finding ("" for none). `messages` and `hints`
    are all texts in it. With `has_hint`, something stands where the hint does, perhaps the hint of another error.
    """

    room: str
    line: int
    of: str
    messages: list[str]
    hints: list[str]
    about: str
    has_hint: bool


@cache
def _rooms() -> dict[str, ast.Module]:
    return {str(path.relative_to(CODE)): ast.parse(path.read_text()) for path in sorted(CODE.rglob("*.py"))}


@cache
def every_message() -> tuple[Message, ...]:
    """Every error and finding, in the order of the rooms and of the lines."""
    return tuple(each for name, room in _rooms().items() for each in _made_in(name, room))


def every_text() -> list[str]:
    """Every text in the code, and every part of one into which something is put."""
    nodes = (node for room in _rooms().values() for node in ast.walk(room))
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def _made_in(name: str, room: ast.Module) -> Iterator[Message]:
    for part, function in _functions(room):
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
            of = ast.unparse(call.func)
            if not call.args or of not in _MADE_BY:
                continue
            of = part.name if of == "super().__init__" and isinstance(part, ast.ClassDef) else of
            given = [value for part in call.args for value in _unpacked(part, room)]
            code, parts = (given[1], given[2:]) if of == "Finding" else (None, given)
            message, *more = (
                [*_meant(part, call.lineno, function, room, _DEEP if number else 1)]
                for number, part in enumerate(parts)
            )
            hint, remedy = (*more, [], [])[:2]
            about = _texts([code]) if code else [text for text in _texts(remedy) if text in KINDS]
            has_hint = len(parts) > 1 and not (isinstance(parts[1], ast.Constant) and not parts[1].value)
            yield Message(name, call.lineno, of, _texts(message), _texts(hint), (*about, "")[0], has_hint)


def _unpacked(part: ast.expr, room: ast.Module) -> Iterable[ast.expr]:
    """What `*NAME` stands for, if NAME is a tuple of the room; else the part itself."""
    for value in _given(ast.unparse(part.value), room) if isinstance(part, ast.Starred) else ():
        if isinstance(value, ast.Tuple):
            return value.elts
    return [part]


def _functions(room: ast.Module) -> Iterator[tuple[ast.stmt, ast.FunctionDef]]:
    """Every function of a room, with the class or function at the top that it stands in."""
    for part in room.body:
        yield from ((part, node) for node in ast.walk(part) if isinstance(node, ast.FunctionDef))


def _meant(part: ast.expr, line: int, function: ast.FunctionDef, room: ast.Module, deep: int) -> Iterator[ast.expr]:
    """A part, and what its names were given last: in the function, else in the room."""
    yield part
    for name in {node.id for node in ast.walk(part) if isinstance(node, ast.Name)} if deep else ():
        for value in _last_given(name, line, function, room):
            yield from _meant(value, line, function, room, deep - 1)


def _last_given(name: str, line: int, function: ast.FunctionDef, room: ast.Module) -> list[ast.expr]:
    before = [value for value in _given(name, function) if value.lineno < line]
    return sorted(before, key=lambda value: value.lineno)[-1:] or _given(name, room)


def _given(name: str, where: ast.FunctionDef | ast.Module) -> list[ast.expr]:
    """What a name is given; as one of several, all that these are given."""
    return [value for names, value in _stored(where) if name in names]


@cache
def _stored(where: ast.FunctionDef | ast.Module) -> list[tuple[list[str], ast.expr]]:
    """What is given to names anywhere in a function, or at the top of a room."""
    nodes = where.body if isinstance(where, ast.Module) else ast.walk(where)
    stored = [node for node in nodes if isinstance(node, ast.Assign)]
    return [(ast.unparse(node.targets[0]).strip("()").split(", "), node.value) for node in stored]


def _texts(parts: Iterable[ast.AST]) -> list[str]:
    """The texts in some code; what is put into them is "x"."""
    nodes = [node for part in parts for node in ast.walk(part)]
    whole = [
        "".join(str(getattr(piece, "value", "x")) if isinstance(piece, ast.Constant) else "x" for piece in node.values)
        for node in nodes
        if isinstance(node, ast.JoinedStr)
    ]
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)] + whole
