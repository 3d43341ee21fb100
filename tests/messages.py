"""Every error and every finding in the code, as a person reads it: what is wrong, and what to do.

`make messages` writes them into docs/messages.md, so that they can be read one after the other.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, get_args

from sharding.checkpoint import documents
from sharding.core import errors, limits
from sharding.core.errors import RemedyKind, ShardingError
from sharding.formats import names
from sharding.planning import schemes
from sharding.storage.hub import client
from tests.conftest import ROOT

CODE = ROOT / "sharding"
KINDS = get_args(RemedyKind)
CLASSES = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, ShardingError)}
_MADE_BY = {*CLASSES, "Finding", "family", "kind", "super().__init__"}
_SHORT = {
    "format_bytes": "size",
    "name_some": "names",
    "join": "names",
    "repo_id": "repo",
    "strerror": "reason",
    "len": "n",
    "ceil": "n",
    "first_problem": "problem",
    "shown_name": "name",
    "source_name": "source",
    "command_path": "command",
}
"""What is put into a sentence, by the name of the function or the attribute."""
_FIXED = {
    name: str(value)
    for module in (names, limits, documents, schemes, client)
    for name, value in vars(module).items()
    if re.fullmatch(r"[A-Z][A-Z_]*", name) and isinstance(value, str | int)
}
_DEEP = 3
"""How many names are looked up one behind the other."""


class Message(NamedTuple):
    """An error or a finding in the code.

    `of` is its class, `about` the kind of its remedy or the code of the finding ("" for none). `messages` and `hints`
    are all texts in it, `message` and `hint` the sentences, with what is put into them in braces.
    """

    room: str
    line: int
    of: str
    messages: list[str]
    hints: list[str]
    about: str
    message: str
    hint: str


@cache
def every_message() -> tuple[Message, ...]:
    """Every error and finding, in the order of the rooms and of the lines."""
    rooms = sorted(CODE.rglob("*.py"))
    return tuple(each for path in rooms for each in _made_in(path.relative_to(CODE), ast.parse(path.read_text())))


def _made_in(path: Path, room: ast.Module) -> Iterator[Message]:
    for part, function in _functions(room):
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
            of = ast.unparse(call.func)
            if not call.args or of not in _MADE_BY:
                continue
            of = part.name if of == "super().__init__" and isinstance(part, ast.ClassDef) else of
            code, parts = (call.args[1], call.args[2:]) if of == "Finding" else (None, call.args)
            message, *more = (
                [*_meant(part, call.lineno, function, room, _DEEP if number else 1)]
                for number, part in enumerate(parts)
            )
            hint, remedy = (*more, [], [])[:2]
            about = _texts([code]) if code else [text for text in _texts(remedy) if text in KINDS]
            words = [_words(part, call.lineno, function, room, _DEEP) for part in parts[:2]]
            yield Message(str(path), call.lineno, of, _texts(message), _texts(hint), (*about, "")[0], *(*words, "")[:2])


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
    before = [value for value in _given(name, ast.walk(function)) if value.lineno < line]
    return sorted(before, key=lambda value: value.lineno)[-1:] or _given(name, room.body)


def _given(name: str, nodes: Iterable[ast.AST]) -> list[ast.expr]:
    """What a name is given; as one of several, all that these are given."""
    stored = [node for node in nodes if isinstance(node, ast.Assign)]
    return [node.value for node in stored if name in ast.unparse(node.targets[0]).strip("()").split(", ")]


def _texts(parts: Iterable[ast.AST]) -> list[str]:
    """The texts in some code; what is put into them is "x"."""
    nodes = [node for part in parts for node in ast.walk(part)]
    whole = [
        "".join(str(getattr(piece, "value", "x")) if isinstance(piece, ast.Constant) else "x" for piece in node.values)
        for node in nodes
        if isinstance(node, ast.JoinedStr)
    ]
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)] + whole


def _words(part: ast.expr, line: int, function: ast.FunctionDef, room: ast.Module, deep: int) -> str:
    """A sentence as a person reads it: `{name}` for what is put into it, `[…]` for what may stand there or not."""

    def words(of: ast.expr) -> str:
        return _words(of, line, function, room, deep)

    match part:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(map(words, values))
        case ast.FormattedValue(value=value):
            return words(value)
        case ast.IfExp(body=body, orelse=other):
            either = [text for text in (words(body), words(other)) if text]
            return f"[{' | '.join(either)}]"
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return words(left) + words(right)
        case ast.BinOp(op=ast.Mult(), left=ast.Constant(value=str(text)) | ast.Constant(value=str(text))):
            return f"[{text}]"
        case ast.BoolOp(values=values):
            return f"[{' | '.join(filter(None, map(words, values)))}]"
        case ast.Call(func=ast.Name(id="str" | "shortened" | "repr" | "list" | "sorted"), args=[value, *_]):
            return words(value)
        case ast.Call(func=ast.Name(id="count"), args=[_, ast.Constant(value=str(what)), *_]):
            return f"{{n}} {what}s"
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return _put_in(name)
        case ast.Name(id=name) if name in _FIXED:
            return _FIXED[name]
        case ast.Name(id=name):
            values = _last_given(name, line, function, room) if deep else []
            values = [_one_of(value, name, function) for value in values]
            if len(values) == 1 and not isinstance(values[0], ast.Tuple):
                shown = _words(values[0], min(line, values[0].lineno), function, room, deep - 1)
                if not re.fullmatch(r"\{[^} ]*\}", shown):
                    return shown + _added(name, values[0], line, function, room)
            return _put_in(name)
        case ast.Attribute(attr=name):
            return _put_in(name)
        case ast.Subscript(value=value):
            return words(value)
        case ast.Starred(value=value) | ast.GeneratorExp(elt=value):
            return words(value)
    return "{…}"


def _one_of(value: ast.expr, name: str, function: ast.FunctionDef) -> ast.expr:
    """The part of a tuple that a name is given, as one of several. Any other value as it is."""
    before: ast.Assign | None = None
    for node in sorted(
        (node for node in ast.walk(function) if isinstance(node, ast.Assign)), key=lambda node: node.lineno
    ):
        names = ast.unparse(node.targets[0]).strip("()").split(", ")
        if node.value is value and isinstance(value, ast.Tuple) and len(names) == len(value.elts):
            is_for_some = before and before.col_offset < node.col_offset and not isinstance(before.value, ast.Tuple)
            return value if is_for_some else value.elts[names.index(name)]
        before = node if name in names else before
    return value


def _added(name: str, first: ast.expr, last: int, function: ast.FunctionDef, room: ast.Module) -> str:
    """What is added to a name after its `first` value and before a line. It is in brackets if it may be missing."""
    columns = [node.col_offset for node in ast.walk(function) if isinstance(node, ast.Assign) and node.value is first]
    added = ""
    for node in ast.walk(function):
        if isinstance(node, ast.AugAssign) and ast.unparse(node.target) == name and first.lineno < node.lineno < last:
            text = _words(node.value, node.lineno, function, room, _DEEP)
            is_sure = node.col_offset in columns or text.startswith("[")
            added += text if is_sure else f"[{text}]"
    return added


def _put_in(name: str) -> str:
    return f"{{{_SHORT.get(name, name.strip('_').lower().replace('_', ' '))}}}"


# --- The page with all of them ----------------------------------------------------------------------------

PAGE = ROOT / "docs/messages.md"
_HEAD = """\
# Messages

Read every message of the tool: what is wrong, and what to do. To find the cause of one, see
[troubleshooting](troubleshooting.md).

`{name}` stands for what the tool puts in. `[this | that]` stands for one of the two, or for words that may be missing.
Errors are named by their class; [troubleshooting](troubleshooting.md#the-classes-of-errors) says how each of them ends.
Findings are named by their code; they are remarks, and the job goes on. `make messages` writes this page from the code.
"""
_EITHER = {"family": "SourceError, DestinationError", "kind": "SourceError, DestinationError"}
"""What is raised where the code does not know yet which side a fault is on."""
_WINGS = {
    "cli": "The command line",
    "core": "Options and environment",
    "checkpoint": "What a source holds",
    "formats": "Files of weights",
    "model_class": "What transformers knows of a model",
    "planning": "The plan",
    "transfer": "Copying",
    "storage": "Folders and the Hub",
    "verify": "Checking",
    "report": "Reports",
    "loading": "Loading, comparing, devices",
    "drawing": "Pictures",
    "fleet": "Many machines",
    "desk": "Jobs of the page",
    "page": "The page and its API",
    "job.py": "The job",
}


def whole_messages() -> list[Message]:
    """Every message that stands in the code as a sentence."""
    return [each for each in every_message() if _is_whole(each)]


def page_of_messages() -> str:
    """What docs/messages.md holds."""
    lines = [_HEAD]
    for wing, heading in _WINGS.items():
        shown = dict.fromkeys(_row(each) for each in whole_messages() if each.room.startswith(wing))
        if shown:
            lines += [f"## {heading}\n", "| kind | what is wrong | what to do |", "|---|---|---|", *shown, ""]
    return "\n".join(lines)


def _is_whole(message: Message) -> bool:
    """Whether the sentence stands where the error is made; others are only handed on."""
    of_parts = message.of == "ReplaceRefused" and message.room != "core/errors.py"
    handed_on = message.of not in {*CLASSES, *_EITHER, "Finding"} or re.fullmatch(
        r"(\{[^}]*\})*|\[[^]]*\]", message.message
    )
    return not of_parts and not handed_on


def _row(message: Message) -> str:
    kind = message.about or "several" if message.of == "Finding" else _EITHER.get(message.of, message.of)
    cells = [kind, message.message, message.hint or "nothing"]
    return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"


if __name__ == "__main__":
    PAGE.write_text(page_of_messages())
