"""Say in words why a checkpoint does not load where its original does, and how to mend that. Pure."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

from sharding.checkpoint.trained import compare_with_base
from sharding.core.errors import SourceError
from sharding.core.text import count, name_some
from sharding.core.values import Content, Finding, Tensor
from sharding.planning.alike.comparison import Comparison, compared
from sharding.planning.alike.told import details_of, refuse_unlike
from sharding.planning.alike.units import plain_name
from sharding.planning.dequantize import ordinary

MEND = "To mend it: "
"""The beginning of the sentence with the command that mends a checkpoint."""


def advised(mine: Content, original: Content, named: tuple[str, str] | None = None) -> tuple[str, ...]:
    """Return how `mine` differs from its original, and the command that mends it; () if it does not."""
    of, theirs = ({tensor.name: tensor.shape for tensor in one.tensors} for one in (mine, original))
    if of == theirs or original.library != "transformers" or mine.library not in ("transformers", "unknown"):
        return ()
    try:
        found = compared(mine, mine.tensors, mine.configs.get("", ""), original, {})
    except SourceError as error:
        return (error.message,)
    if found.is_other_model:
        return ()
    first, second = map(shlex.quote, named or (mine.source.text, original.source.text))
    command = f"shard-my-repo shard {first} ./mended --like {second}"
    try:
        refuse_unlike(found, mine, original)
    except SourceError:
        return tuple(_sentences(found))
    return (*_sentences(found), f"{MEND}{command}")


def unlike_base(mine: Content, original: Content, named: tuple[str, str]) -> Iterator[Finding]:
    """Yield a finding if `mine` does not load where the original does. `named` are both, for a command."""
    if sentences := advised(mine, original, named):
        hint = sentences[-1] if sentences[-1].startswith(MEND) else ""
        reasons = " ".join(sentence for sentence in sentences if sentence != hint)
        message = f"It may not load where {named[1]} does, which its card names as its base. {reasons}"
        yield Finding("warning", "unlike-base", message, hint)


def _sentences(found: Comparison) -> Iterator[str]:
    match, lack, details = found.match, found.lack, details_of(found, (), (), is_kept=False)
    if "unwrapped" in details:
        yield f"A wrapper of the trainer is in the names of {details['unwrapped']}."
    for (old, new), times in match.prefixes.items():
        if old != new:
            which = "Every name" if times == len(match.of) else f"{count(times, 'name')}"
            has = "has" if times == 1 or which == "Every name" else "have"
            if not new:
                yield f"{which} {has} {old!r} in front, which the original does not have."
            elif new.endswith(old):
                yield f"{which} lack{'s' * (has == 'has')} {new.removesuffix(old) if old else new!r} in front."
            else:
                yield f"{which} begin{'s' * (has == 'has')} with {old!r} instead of {new!r}."
    if "separated" in details:
        yield f"Here, {details['separated']} are in one tensor for each layer. The original stores them one by one."
    if "fused" in details:
        yield f"Here, {details['fused']} are stored one by one. The original has one tensor for each layer."
    for module, names in lack.parts.items():
        yield f"{_missing(names)} missing: the whole part {module}."
    if lack.holes:
        holes = [found.theirs[name].tensors[0].name for name in lack.holes]
        yield f"{_missing(holes)} missing inside parts that are here: {name_some(holes)}."
    if match.misfits:
        here, there = match.misfits[0]
        shapes = f"{list(found.units[here].shape)} here and {list(found.theirs[there].shape)} in the original"
        yield f"The shape of {count(len(match.misfits), 'weight')} differs. For example, {here} is {shapes}."
    for name, one, other in match.unclear:
        yield f"{name} fits two places of the original: {one} and {other}."
    for name, one, other in match.twice:
        yield f"Two weights here fit {name} of the original: {one} and {other}."
    if found.tied:
        yield f"{name_some(list(found.tied))} is missing, because it is the embeddings here. The original stores both."
    if extra := list(found.extra):
        yield f"The original does not have {count(len(extra), 'weight')} of these: {name_some(extra)}."


def _missing(names: Sequence[str]) -> str:
    return f"{count(len(names), 'weight')} {'is' if len(names) == 1 else 'are'}"


def like_base(run: Content, base: Content) -> Content:
    """Return a training run with the names and the form of its base, and findings about their differences.

    Raises SourceError if `base` cannot be the model that was trained.
    """
    original = ordinary(base)
    named = _named_like(run, base, original.tensors) if original else run
    return compare_with_base(named, base, original.tensors if original else None)


def _named_like(run: Content, base: Content, ordinary: Sequence[Tensor]) -> Content:
    ready = replace(base, tensors=tuple(ordinary), configs={})
    try:
        found = compared(run, run.tensors, "", ready, {})
    except SourceError:  # experts that are not complete
        return run
    details = details_of(found, (), (), is_kept=False)
    is_clear = not (found.match.unclear or found.match.twice or found.is_other_model)
    if not is_clear or not details.keys() & {"prefix", "fused", "separated"}:
        return run
    tensors, taken = list[Tensor](), set[str]()
    for slot in found.original:
        if all(name in found.match.of for name in slot.units):
            names = [found.match.of[name] for name in slot.units]
            taken.update(names)
            tensors.append(slot.made_of([found.units[name] for name in names]))
    left = (slot.tensor for slot in found.slots if taken.isdisjoint(slot.units))
    tensors += (tensor._replace(name=plain_name(tensor.name)) for tensor in left)
    told = "; ".join(f"{what}: {details[what]}" for what in ("prefix", "fused", "separated") if what in details)
    message = f"Names and form are those of {base.source.words} ({told})."
    return replace(run, tensors=tuple(tensors), findings=(*run.findings, Finding("info", "named-like-base", message)))
