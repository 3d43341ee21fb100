"""Say what was done to the numbers of a copy. The step of the planner that does it chooses the words. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from operator import attrgetter
from typing import Annotated

from pydantic import Field

from sharding.core.bounds import Count, Line, Word
from sharding.core.origin import Place
from sharding.core.text import count


@dataclass(frozen=True, slots=True)
class Change:
    """What one step did to the tensors of a copy.

    - `kind`: the option that asks for it.
    - `done`: a phrase that goes on "a copy of X, …": "cast to bf16". It names `by`, the input it took, by its `text`,
      with one word behind it.
    - `called`: the subject of a sentence about it: "The cast".
    - `how`: sentences that say what the new numbers are, and what else a reader of the card has to know.
    - `then`: what somebody who loads the copy has of it, in a sentence.
    - `changed` of the `of` tensors of the copy have other numbers, or another dtype.
    - `is_exact`: another machine computes the same bits. Otherwise they may differ within a tolerance.
    - `keeps_size`: every tensor has as many bytes as before.
    - `relation`: how the Hub calls the copy's relation to its base model, "" if the copy is that model.
    - `evidence`: what decided the numbers, such as a file with its SHA-256.
    - `caveat`: what a comparison of two repos does not tell about it.
    - `peer`: how people do it without this tool, if `from_pretrained` and `save_pretrained` do not.
    - `details`: more facts about it, by kind.
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
    peer: Line = ""
    details: Annotated[Mapping[Word, Line], Field(exclude_if=lambda details: not details)] = field(
        default_factory=dict, hash=False
    )

    @property
    def around(self) -> tuple[str, str]:
        """What `done` says before and after the name of `by`, which stands before its last word.

        >>> lora = Place("folder", "adapter", role="adapter")
        >>> Change("adapter", "with the adapter in adapter merged", "It", "", "", 1, 1, by=lora).around
        ('with the adapter in ', ' merged')
        """
        before, name, after = self.done.rpartition(f" {self.by.text} ") if self.by else ("", "", "")
        return (f"{before} ", f" {after}") if name else (self.done, "")


Made = tuple[Change, ...]
"""All that was done to the numbers of a copy, in order."""


def phrase(made: Sequence[Change], show: Callable[[Place], str] = lambda place: place.text) -> str:
    """Return what was done, behind commas: ", dequantized to bf16, cast to fp16". `show` writes an input."""
    return "".join(f", {one.around[0]}{show(one.by) if one.by else ''}{one.around[1]}" for one in made)


def explained(made: Sequence[Change]) -> list[str]:
    """Return what each step did, in sentences."""
    return [
        f"{one.called} changes {f'{one.changed:,}' if one.changed else 'none'} of {count(one.of, 'tensor')}. {one.how}"
        for one in made
    ]


_facts = attrgetter("kind", "of", "by", "is_exact", "keeps_size", "relation", "evidence")


def agreed(said: Sequence[Change], known: Sequence[Change]) -> Made | None:
    """Return what is `known`, with the changed counts of what a report `said`; None if the facts differ. Words may be
    of another version, and headers do not show where the numbers of another input are zero."""
    made = []
    for one, other in zip_longest(said, known):
        if one is None or other is None or _facts(one) != _facts(other):
            return None
        if one.changed != other.changed and not (other.by and one.changed < other.changed):
            return None
        made.append(replace(other, changed=one.changed) if one.changed or not other.changed else without_effect(other))
    return tuple(made)


def without_effect(change: Change) -> Change:
    """Return a step that turned out to change no number."""
    return replace(change, changed=0, how="What it adds is zero, or is lost in the rounding.")


def keeps_sizes(made: Sequence[Change]) -> bool:
    """Return whether every tensor keeps its number of bytes, and so its dtype."""
    return all(one.keeps_size for one in made)
