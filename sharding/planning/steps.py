"""Turn a checkpoint into what its copy will hold, one step for each thing that can be done to numbers. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from sharding.core.extras import require
from sharding.core.hints import Hints
from sharding.core.options import Options
from sharding.core.values import Checkpoint
from sharding.model_class.architecture import hints_for, stored_names
from sharding.planning.adapters.merged import merged, unknown_names
from sharding.planning.adapters.replaced import as_classifier
from sharding.planning.cast import cast_change, cast_findings, cast_tensors, refuse_cast
from sharding.planning.dequantize import dequantized, without_left_over


class Asks(NamedTuple):
    """How a plan gets answers that take seconds.

    - `hints`: what transformers knows of the model class.
    - `names`: the stored names of names in memory, for an adapter that has others.
    - `run`: do a step that takes seconds for a hundred thousand tensors, given its name.
    """

    hints: Callable[[Checkpoint, Options], Hints] = hints_for
    names: Callable[[Checkpoint], Mapping[str, str]] = stored_names
    run: Callable[[str, Callable[[], Any]], Any] = lambda what, make: make()


ASKS = Asks()
NO_CLASS = Asks(lambda checkpoint, options: {}, lambda checkpoint: {})
"""Asks nobody. A cast then leaves no tensor in fp32."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What a copy will hold, and the options that are true of it. `hints` are what its model class says."""

    checkpoint: Checkpoint
    options: Options
    hints: Hints = field(default_factory=dict)


def drafted(checkpoint: Checkpoint, options: Options, asks: Asks = NO_CLASS) -> Draft:
    """Return what a copy of `checkpoint` with `options` will hold. Raises UsageError, SourceError, and Refused."""
    draft = Draft(checkpoint, options)
    for step in STEPS:
        draft = step(draft, asks)
    for what in {tensor.recipe.needs for tensor in draft.checkpoint.tensors} - {""}:
        require(what)
    return draft


def _plain(draft: Draft, asks: Asks) -> Draft:
    after = without_left_over(draft.checkpoint, drops=bool(draft.options.computing))
    # If an entry was left over, the weights are ordinary ones already.
    is_done = draft.options.dequantize and after.reconfigured > draft.checkpoint.reconfigured
    return replace(
        draft, checkpoint=after, options=replace(draft.options, dequantize=False) if is_done else draft.options
    )


def _dequantized(draft: Draft, asks: Asks) -> Draft:
    if not draft.options.dequantize:
        return draft
    return replace(draft, checkpoint=dequantized(draft.checkpoint, draft.options.dtype))


def _merged(draft: Draft, asks: Asks) -> Draft:
    checkpoint = draft.checkpoint
    if checkpoint.adapter is None:
        return draft
    known = asks.names(as_classifier(checkpoint)) if asks.run("names", partial(unknown_names, checkpoint)) else {}
    merge = partial(merged, checkpoint, may_overflow=draft.options.allow_overflow, known=known)
    return replace(draft, checkpoint=asks.run("merge", merge))


def _cast(draft: Draft, asks: Asks) -> Draft:
    checkpoint, options = draft.checkpoint, draft.options
    hints = asks.hints(checkpoint, options)
    if options.dtype == "keep":
        return replace(draft, hints=hints)
    refuse_cast(checkpoint)
    tensors = cast_tensors(checkpoint.tensors, options.dtype, hints, may_overflow=options.allow_overflow)
    findings = (*checkpoint.findings, *cast_findings(tensors, options.dtype, hints))
    changed = sum(one.dtype != other.dtype for one, other in zip(checkpoint.tensors, tensors, strict=True))
    made = (*checkpoint.made, *([cast_change(options.dtype, changed, len(tensors))] if changed else []))
    return replace(draft, checkpoint=replace(checkpoint, tensors=tensors, findings=findings, made=made), hints=hints)


STEPS: tuple[Callable[[Draft, Asks], Draft], ...] = (_plain, _dequantized, _merged, _cast)
"""All that can be done to the numbers of a copy, in order."""
