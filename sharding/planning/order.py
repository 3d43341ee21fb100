"""Put tensors in order: as people count, as they are stored, or as transformers saves them. Pure."""

from functools import lru_cache

from sharding.core.errors import Remedy, SourceError
from sharding.core.hints import ModelHints
from sharding.core.text import name_some
from sharding.core.values import Finding, Tensor

_LONGEST_NUMBER = 18
"""Digits of a name read as a number; no layer has a longer one, and Python refuses to read some that do."""


def in_order(
    tensors: list[Tensor], order: str, folder: str, hints: ModelHints | None
) -> tuple[list[Tensor], list[Finding]]:
    """Return `tensors` (as stored, of the component in `folder`) in `order`, and what there is to know of that.

    Raises SourceError where `hints` do not know the order of transformers.
    """
    if order == "stored":
        return tensors, []
    queue = sorted(tensors, key=lambda tensor: natural_key(tensor.name.removeprefix(folder)))
    if order == "natural":
        return queue, []
    if hints is None or hints.unknown:
        reason = hints.unknown if hints else "There is no config.json, which says what model it is."
        message = f"The order of transformers is not known: {reason}"
        raise SourceError(message, "Choose the natural order.", Remedy("choose_order", "natural"))
    position = {saved.name: index for index, saved in enumerate(hints.saved)}
    unknown = [tensor.name for tensor in queue if tensor.name not in position]
    queue.sort(key=lambda tensor: position.get(tensor.name, len(position)))
    if not unknown:
        return queue, []
    message = f"{len(unknown)} tensors are not among those that {hints.class_name} saves: {name_some(unknown)}."
    return queue, [Finding("warning", "not-saved-by-class", message, "They are kept, after all others.")]


def natural_key(name: str) -> str:
    """Return the key that sorts tensor names as people count: numbers by value, and before words.

    The order is that of transformers' `dot_natural_key` for every name that it can read; a text instead of
    a list of tuples, because a hundred thousand of them are held at once.

    >>> sorted(["h.10.w", "h.2.w", "h.norm"], key=natural_key)
    ['h.2.w', 'h.10.w', 'h.norm']
    """
    return "".join(map(_key_of_word, name.split(".")))


@lru_cache(maxsize=1 << 14)  # names are made of few words
def _key_of_word(word: str) -> str:
    letters = word.rstrip("0123456789")
    digits = word[len(letters) :]
    if word.isdecimal() and len(word) <= _LONGEST_NUMBER:
        return f"\1{_by_value(word)}"
    if digits and len(digits) <= _LONGEST_NUMBER:
        return f"\2{letters}\0\3{_by_value(digits)}"
    return f"\2{word}\0"


def _by_value(digits: str) -> str:
    # A longer number is a larger one.
    number = str(int(digits))
    return chr(len(number)) + number
