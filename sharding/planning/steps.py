"""Turn a checkpoint into what its copy will hold, one step for each thing that can be done to numbers. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from sharding.core.hints import Hints
from sharding.core.options import Options
from sharding.core.values import Content
from sharding.model_class.architecture import hints_for, stored_names
from sharding.planning.adapters import merged, own
from sharding.planning.alike import alike
from sharding.planning.alike.comparison import Comparison
from sharding.planning.alike.selected import chosen
from sharding.planning.cast import cast_change, cast_findings, cast_tensors
from sharding.planning.dequantize import dequantized, refuse_cast, without_left_over
from sharding.planning.draft import Draft, draft_of


class Asks(NamedTuple):
    """How a plan gets answers that take seconds.

    - `hints`: what transformers knows of the model class.
    - `names`: the stored names of names in memory, for an input that has others.
    - `run`: do a step that takes seconds for a hundred thousand tensors, given its name.
    """

    hints: Callable[[Content, Options], Hints] = hints_for
    names: Callable[[Content], Mapping[str, str]] = stored_names
    run: Callable[[str, Callable[[], Any]], Any] = lambda what, make: make()


ASKS = Asks()
NO_CLASS = Asks(lambda content, options: {}, lambda content: {})
"""Asks nobody. A cast then leaves no tensor in fp32."""


def drafted(content: Content, options: Options, asks: Asks = NO_CLASS) -> Draft:
    """Return what a copy of `content` with `options` will hold. Raises UsageError, SourceError, and as `asks` do."""
    draft = draft_of(content, options)
    for step in STEPS:
        draft = step(draft, asks)
    return draft


def names_asked(content: Content) -> Content | None:
    """Return the model of which a step needs the names in memory (see `Asks.names`), None if no step needs them."""
    if content.of("like"):
        draft = draft_of(content, Options())
        return alike.names_asked(draft, alike.found_in(draft))
    return merged.names_asked(content)


def _merged(draft: Draft, asks: Asks) -> Draft:
    draft = own.with_alpha(draft)
    if draft.options.save_as == "adapter":
        return own.as_adapter(draft)
    content = draft.content
    if content.of("adapter") is None:
        return draft
    as_it_is = replace(content, tensors=draft.tensors, configs=draft.configs)
    asked = asks.run("names", partial(names_asked, as_it_is))
    known = asks.names(asked) if asked else {}
    merge: Draft = asks.run("merge", partial(merged.merged, draft, known))
    return merge


def _alike(draft: Draft, asks: Asks) -> Draft:
    if draft.content.of("like") is None:
        return draft
    found: Comparison = asks.run("compared", partial(alike.found_in, draft))
    if (asked := alike.names_asked(draft, found)) and (known := asks.names(asked)):
        found = asks.run("compared in memory", partial(alike.found_in, draft, known))
    made: Draft = asks.run("like", partial(alike.alike, draft, found))
    return made


def _cast(draft: Draft, asks: Asks) -> Draft:
    as_it_is = replace(draft.content, tensors=draft.tensors, configs=draft.configs)
    draft, dtype = replace(draft, hints=asks.hints(as_it_is, draft.options)), draft.options.dtype
    if dtype == "keep":
        return draft
    refuse_cast(draft)
    tensors = asks.run("cast", partial(cast_tensors, draft.tensors, dtype, draft.hints))
    changed = sum(one.dtype != other.dtype for one, other in zip(draft.tensors, tensors, strict=True))
    made = (*draft.made, *([cast_change(dtype, changed, len(tensors))] if changed else []))
    findings = (*draft.findings, *cast_findings(tensors, dtype, draft.hints))
    return replace(draft, tensors=tensors, made=made, findings=findings)


STEPS: tuple[Callable[[Draft, Asks], Draft], ...] = (
    lambda draft, _: without_left_over(draft),
    lambda draft, _: dequantized(draft) if draft.options.dequantize else draft,
    _merged,
    lambda draft, _: chosen(draft),
    _alike,
    _cast,
)
"""All that can be done to the numbers of a copy, in order."""
