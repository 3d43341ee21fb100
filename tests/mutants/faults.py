"""Say which small faults a file can have. The operators of mutmut make them."""

import ast
import difflib
from dataclasses import dataclass, field
from functools import cached_property
from os.path import commonprefix
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

PASSED_OVER = {"strict", "thread_name_prefix"}
"""Arguments that only people read, or that only a fault elsewhere would meet (those of `zip`)."""
NEVER_CALLS = {"TypeVar", "isinstance", "len"}
"""Calls that cannot run with another argument, or run once for a type checker."""


@dataclass(frozen=True)
class Fault:
    """One change to one node of `file`, in the function `within`.

    `lines` are those of its statement; none where it is executed when the module is imported, whoever does that.
    """

    file: str
    within: str
    lines: range
    module: cst.Module = field(repr=False)
    old: cst.CSTNode = field(repr=False)
    new: cst.CSTNode = field(repr=False)

    @cached_property
    def text(self) -> str:
        changed = self.module.deep_replace(self.old, self.new)
        assert isinstance(changed, cst.Module)
        return changed.code

    @property
    def is_one(self) -> bool:
        """Whether it parses, to something else than what it was."""
        try:
            return ast.dump(ast.parse(self.text)) != ast.dump(ast.parse(self.module.code))
        except SyntaxError:
            return False

    @property
    def was(self) -> str:
        """The source text that it changes, without indents."""
        return self._sides["-"]

    @property
    def becomes(self) -> str:
        """The source text in its place, without indents."""
        return self._sides["+"]

    @cached_property
    def _sides(self) -> dict[str, str]:
        old, new = self.module.code.splitlines(), self.text.splitlines()
        first = len(commonprefix([old, new]))
        last = len(commonprefix([old[first:][::-1], new[first:][::-1]]))
        lines = list(difflib.ndiff(old[first : len(old) - last], new[first : len(new) - last]))
        return {sign: " ".join(line[2:].strip() for line in lines if line[0] == sign) for sign in "-+"}

    def __str__(self) -> str:
        diff = difflib.unified_diff(self.module.code.splitlines(), self.text.splitlines(), n=1, lineterm="")
        return "\n".join([f"{self.file}, {self.within}:", *(f"    {line}" for line in list(diff)[2:])])


def faults_in(root: Path, file: str) -> list[Fault]:
    wrapper = MetadataWrapper(cst.parse_module((root / file).read_text()))
    visitor = _Visitor(file, wrapper.module)
    wrapper.visit(visitor)
    return visitor.found


class _Visitor(cst.CSTVisitor):
    """Collects faults; passes over what only people or type checkers read: annotations, decorators, sentences."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, file: str, module: cst.Module) -> None:
        super().__init__()
        self.found: list[Fault] = []
        self._file, self._module = file, module
        self._names: list[str] = []
        self._bodies = 0
        self._statement: range | None = None

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Annotation | cst.Decorator | cst.Import | cst.ImportFrom) or _is_for_others(node):
            return False
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            self._names.append(node.name.value)
        if isinstance(node, cst.SimpleStatementLine):
            self._statement = self._lines(node)
        for kind, operator in mutation_operators:
            if isinstance(node, kind) and not _is_sentence(node):
                self.found.extend(self._fault(node, new) for new in operator(node) if not _changes_words(node, new))
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if isinstance(original_node, cst.FunctionDef | cst.ClassDef):
            self._names.pop()
        if isinstance(original_node, cst.SimpleStatementLine):
            self._statement = None

    def visit_FunctionDef_body(self, node: cst.FunctionDef) -> None:
        self._bodies += 1

    def leave_FunctionDef_body(self, node: cst.FunctionDef) -> None:
        self._bodies -= 1

    def _fault(self, old: cst.CSTNode, new: cst.CSTNode) -> Fault:
        lines = (self._statement or self._lines(old)) if self._bodies else range(0)
        return Fault(self._file, ".".join(self._names), lines, self._module, old, new)

    def _lines(self, node: cst.CSTNode) -> range:
        place = self.get_metadata(PositionProvider, node, None)
        return range(place.start.line, place.end.line + 1) if place else range(0)


def _is_for_others(node: cst.CSTNode) -> bool:
    """Whether only people or type checkers read it, or it cannot be otherwise."""
    return (
        _is_passed_over(node)
        or (isinstance(node, cst.If) and isinstance(node.test, cst.Name) and node.test.value == "TYPE_CHECKING")
        or (isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value in NEVER_CALLS)
        or (isinstance(node, cst.Subscript) and isinstance(node.value, cst.Name) and node.value.value == "Literal")
    )


def _is_passed_over(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Arg) and node.keyword is not None and node.keyword.value in PASSED_OVER


def _is_sentence(node: cst.CSTNode) -> bool:
    """Whether it is text for people: what has a blank in it."""
    if isinstance(node, cst.ConcatenatedString):
        return _is_sentence(node.left) or _is_sentence(node.right)
    if isinstance(node, cst.FormattedString):
        return any(isinstance(part, cst.FormattedStringText) and " " in part.value for part in node.parts)
    return isinstance(node, cst.SimpleString) and " " in node.value


def _changes_words(old: cst.CSTNode, new: cst.CSTNode) -> bool:
    """Whether all that a call loses is passed over, or a sentence."""
    if not (isinstance(old, cst.Call) and isinstance(new, cst.Call)) or len(old.args) == 0:
        return False
    kept = {id(argument) for argument in new.args}
    lost = [argument for argument in old.args if id(argument) not in kept]
    return bool(lost) and all(_is_passed_over(argument) or _is_sentence(argument.value) for argument in lost)
