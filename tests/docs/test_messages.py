"""Every message stands on one page, and says what is wrong and what to do."""

import re

import pytest

from tests.messages import CLASSES, PAGE, Message, page_of_messages, whole_messages

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
