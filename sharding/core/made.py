"""Say what was done to the numbers of a copy. The step of the planner that does it chooses the words. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sharding.core.bounds import Count, Line, Word
from sharding.core.origin import Place
from sharding.core.text import count


@dataclass(frozen=True, slots=True)
class Change:
    """What one step did to the tensors of a copy.

    - `kind`: the option that asks for it.
    - `done`: a phrase that goes on "a copy of X, …": "cast to bf16". It names `by`, the input it took, by its `text`.
    - `called`: the subject of a sentence about it: "The cast".
    - `how`: sentences that say what the new numbers are, and what else a reader of the card has to know.
    - `then`: what somebody who loads the copy has of it, in a sentence.
    - `changed` of the `of` tensors of the copy have other numbers, or another dtype.
    - `is_exact`: another machine computes the same bits. Otherwise they may differ within a tolerance.
    - `keeps_size`: every tensor has as many bytes as before.
    - `relation`: how the Hub calls the copy's relation to its base model, "" if the copy is that model.
    - `evidence`: what decided the numbers, such as a file with its SHA-256.
    - `caveat`: what a comparison of two repos does not tell about it.
    """

    kind: Word
    done: Line
    called: Word
    how: Line
    then: Line
    changed: Count
    of: Count
    by: Place | None = None
    is_exact: bool = True
    keeps_size: bool = True
    relation: Word = ""
    evidence: Line = ""
    caveat: Line = ""


Made = tuple[Change, ...]
"""All that was done to the numbers of a copy, in order."""


def phrase(made: Sequence[Change], show: Callable[[Place], str] = lambda place: place.text) -> str:
    """Return what was done, behind a comma: ", dequantized to bf16, cast to fp16". "" for a copy with the same numbers.

    `show` writes an input.
    """
    said = (one.done.replace(one.by.text, show(one.by)) if one.by else one.done for one in made)
    return "".join(f", {done}" for done in said)


def explained(made: Sequence[Change]) -> list[str]:
    """Return what each step did, in sentences."""
    return [
        f"{one.called} changes {f'{one.changed:,}' if one.changed else 'none'} of {count(one.of, 'tensor')}. {one.how}"
        for one in made
    ]


def says_the_same(said: Sequence[Change], known: Sequence[Change]) -> bool:
    """Return whether a report says of each step what the planner does.

    Headers do not show where the numbers of another input are zero.
    """

    def may_be(one: Change, other: Change) -> bool:
        fewer = replace(other, changed=one.changed) if 0 < one.changed < other.changed else other
        return one in ((fewer, without_effect(other)) if other.by else (other,))

    return len(said) == len(known) and all(may_be(*pair) for pair in zip(said, known, strict=True))


def without_effect(change: Change) -> Change:
    """Return a step that turned out to change no number."""
    return replace(change, changed=0, how="What it adds is zero, or is lost in the rounding.")


def is_exact(made: Sequence[Change]) -> bool:
    """Return whether another machine computes the same bits."""
    return all(one.is_exact for one in made)


def keeps_sizes(made: Sequence[Change]) -> bool:
    """Return whether every tensor keeps its number of bytes, and so its dtype."""
    return all(one.keeps_size for one in made)
