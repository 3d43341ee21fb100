"""Every message stands on one page, and says what is wrong and what to do."""

import re
from pathlib import Path

import pytest

from sharding.core import errors
from tests.docs.pages import MESSAGES as PAGE
from tests.docs.pages import TROUBLE, Run, blocks, code, table
from tests.messages import CLASSES, Message, every_message, page_of_messages, whole_messages

MESSAGES = whole_messages()


def test_the_page_of_messages_has_all_of_them_as_they_are() -> None:
    assert PAGE.read_text() == page_of_messages(), "Run `make messages`."


@pytest.mark.parametrize("each", MESSAGES, ids=lambda each: f"{each.room}:{each.line}")
def test_a_message_is_a_sentence(each: Message) -> None:
    assert re.match(r"[A-Z\d`{\[(]|[a-z_]+[._]|transformers |safetensors |size ", each.message), each.message
    assert re.search(r"[.?!}\])]$", each.message.strip()), each.message


def test_every_error_says_what_to_do() -> None:
    silent = [each for each in MESSAGES if each.of in CLASSES and not each.hint]
    assert silent == []


# --- Troubleshooting ---------------------------------------------------------------------------------------------


def test_every_class_of_errors_stands_on_the_page_with_its_exit_status() -> None:
    rows = {code(name)[0]: int(status) for name, status, *_ in table(TROUBLE, "class | exit status")}
    assert rows == {name: getattr(errors, name).exit_status for name in CLASSES - {"ShardingError"}}


def test_what_the_page_says_of_a_class_is_what_the_code_says() -> None:
    tree = " ".join(re.sub(r"[│├└─]", " ", errors.__doc__ or "").split())
    for name, _, raised, helps in table(TROUBLE, "class | exit status"):
        assert raised in tree and f"→ {helps}" in tree, name


def test_every_finding_stands_on_the_page() -> None:
    codes = {each.about for each in every_message() if each.of == "Finding" and each.about}
    assert {code(first)[0] for first, *_ in table(TROUBLE, "code | what it means")} == codes


def test_the_messages_that_the_page_explains_are_those_of_the_code() -> None:
    rows = [row for row in table(TROUBLE, "message | cause")]
    known = {" ".join(each.message.split()) for each in whole_messages()}
    assert len(rows) > 30 and [message for message, *_ in rows if message.replace("\\|", "|") not in known] == []


def test_the_error_that_the_page_shows_is_the_real_one(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shown,) = blocks(TROUBLE, "console")
    monkeypatch.chdir(tmp_path)
    done = run("plan", "./nowhere")
    assert done.stderr.strip().splitlines() == shown.splitlines()[1:]
