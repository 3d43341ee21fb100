"""The page speaks the language of the page: no option of the command line reaches a visitor."""

import ast
import re
from collections.abc import Iterator

from sharding.core.errors import ShardingError
from sharding.page.panels import problem
from sharding.page.words import in_page_words
from tests.conftest import ROOT

OF_THE_TERMINAL = re.compile(r"(?<![\w-])--[a-z]|hf auth login|HF_TOKEN")
WINGS = ("checkpoint", "core", "desk", "formats", "loading", "planning", "storage", "transfer", "verify")


def said() -> Iterator[str]:
    """Every sentence of the program, f-strings with their values left out; docstrings are none."""
    for path in [
        ROOT / "sharding/job.py",
        *(path for wing in WINGS for path in (ROOT / "sharding" / wing).rglob("*.py")),
    ]:
        tree = ast.parse(path.read_text())
        alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if id(node) in alone or path.name == "environment.py":
                continue
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                yield node.value
            elif isinstance(node, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "x" for part in node.values)  # type: ignore[misc]


def test_no_sentence_of_the_program_shows_an_option_on_the_page() -> None:
    of_terminal = [text for text in said() if OF_THE_TERMINAL.search(text)]
    assert len(of_terminal) > 15
    shown = [in_page_words(text) for text in of_terminal]
    assert not [text for text in shown if OF_THE_TERMINAL.search(text)]


def test_an_error_is_shown_in_the_words_of_the_page() -> None:
    shown = problem(
        ShardingError(
            "It is gated.", "If its terms allow it, say so (--yes), or make the copy private (leave --public out)."
        )
    )
    assert "say so" not in shown and "tick that under Advanced" in shown


def test_what_has_no_option_stays_as_it_is() -> None:
    text = "Write it like 200MB, 2GB or 1GiB - or look at a--b."
    assert in_page_words(text) == text
