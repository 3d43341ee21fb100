"""Every error says what to do, and the page about errors shows those of the code."""

import re
from pathlib import Path

import pytest

from sharding.core import errors
from tests.commands import invoke
from tests.docs.pages import TROUBLE, blocks, code, table
from tests.messages import CLASSES, every_message, every_text


def test_every_error_says_what_to_do() -> None:
    assert len(every_message()) > 300
    silent = [each for each in every_message() if each.of in CLASSES and each.messages and not each.has_hint]
    assert silent == []


_PUT_IN = r"\{[^}]*\}|[\[\]]| \\\| |\S*\w[._]\w\S*|shard-my-repo-\w+|\d[\d,.]*"
"""What code puts into a message: names, files that it knows by a constant, numbers."""

# --- Troubleshooting ---------------------------------------------------------------------------------------------


def test_every_class_of_errors_stands_on_the_page_with_its_exit_status() -> None:
    rows = {code(name)[0]: int(status) for name, status, *_ in table(TROUBLE, "class | exit status")}
    assert rows == {name: getattr(errors, name).exit_status for name in CLASSES - {"ShardingError"}}


def test_every_finding_stands_on_the_page() -> None:
    codes = {each.about for each in every_message() if each.of == "Finding" and each.about}
    assert {code(first)[0] for first, *_ in table(TROUBLE, "code | what it means")} == codes


def test_the_messages_that_the_page_explains_are_those_of_the_code() -> None:
    """Each part of them, without what is put in."""
    rows = [message for message, *_ in table(TROUBLE, "message | cause")]
    known = [" ".join(text.split()) for text in every_text()]
    for message in rows:
        parts = [part.strip(" |.") for part in re.split(_PUT_IN, message)]
        assert [part for part in parts if len(part) > 2 and not any(part in text for text in known)] == [], message
    assert len(rows) > 30


def test_the_error_that_the_page_shows_is_the_real_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shown,) = blocks(TROUBLE, "console")
    monkeypatch.chdir(tmp_path)
    assert invoke("plan", "./nowhere").stderr.strip().splitlines() == shown.splitlines()[1:]
