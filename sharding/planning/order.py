"""Sort tensors: in natural order, as stored, or as transformers saves them. Pure."""

from functools import lru_cache

from sharding.core.errors import Remedy, SourceError
from sharding.core.hints import ModelHints
from sharding.core.text import count, name_some
from sharding.core.values import Finding, Tensor

_LONGEST_NUMBER = 18
"""The most digits of a name that count as a number. No layer has more, and Python refuses very long ones."""
_LONGEST_KNOWN = 64
"""The most characters of a word whose key is kept. Keys of words as long as names may be would fill memory."""


def in_order(
    tensors: list[Tensor], order: str, folder: str, hints: ModelHints | None
) -> tuple[list[Tensor], list[Finding]]:
    """Return `tensors` sorted by `order`, and findings about that.

    `tensors` come as stored, from the component in `folder`. Raises SourceError if you ask for the order of
    transformers and `hints` do not know it.
    """
    if order == "stored":
        return tensors, []
    queue = sorted(tensors, key=lambda tensor: natural_key(tensor.name.removeprefix(folder)))
    if order == "natural":
        return queue, []
    if hints is None or hints.unknown:
        reason = hints.unknown if hints else "There is no config.json, so the model is unknown."
        message = f"The order of transformers is not known: {reason}"
        raise SourceError(message, "Choose the natural order instead.", Remedy("choose_order", "natural"))
    position = {saved.name: index for index, saved in enumerate(hints.saved)}
    unknown = [tensor.name for tensor in queue if tensor.name not in position]
    queue.sort(key=lambda tensor: position.get(tensor.name, len(position)))
    if not unknown:
        return queue, []
    message = f"{hints.class_name} does not save {count(len(unknown), 'tensor')}: {name_some(unknown)}. "
    message += "They are kept, after all other tensors."
    return queue, [Finding("warning", "not-saved-by-class", message)]


def natural_key(name: str) -> str:
    """Return the key that sorts tensor names in natural order: numbers by value, and before words.

    It sorts as transformers' `dot_natural_key` does, for every name that transformers can read. The key is a text and
    not a list of tuples, because a hundred thousand keys are in memory at once.

    >>> sorted(["h.10.w", "h.2.w", "h.norm"], key=natural_key)
    ['h.2.w', 'h.10.w', 'h.norm']
    """
    return "".join((_known_key if len(word) <= _LONGEST_KNOWN else _key_of_word)(word) for word in name.split("."))


def _key_of_word(word: str) -> str:
    letters = word.rstrip("0123456789")
    digits = word[len(letters) :]
    if word.isdecimal() and len(word) <= _LONGEST_NUMBER:
        return f"\1{_by_value(word)}"
    if digits and len(digits) <= _LONGEST_NUMBER:
        return f"\2{letters}\0\3{_by_value(digits)}"
    return f"\2{word}\0"


_known_key = lru_cache(maxsize=1 << 14)(_key_of_word)  # the names of a model share few words


def _by_value(digits: str) -> str:
    # A longer number is a larger one.
    number = str(int(digits))
    return chr(len(number)) + number
