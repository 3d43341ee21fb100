"""Find which weight of a checkpoint is which of its original, by names and shapes. Pure."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sharding.core.errors import SourceError
from sharding.core.text import as_object, parsed_json
from sharding.core.values import Content, Tensor
from sharding.model_class.class_table import EMBEDDINGS, HEADS, USUAL_HEAD, tied_names, ties
from sharding.planning.alike.configs import layers_of, words_of
from sharding.planning.alike.units import Slot, Unit, slots_of, units_of
from sharding.planning.dequantize import ordinary

_SHARED = re.compile(r"\b(?:encoder|decoder)\.embed_tokens\.weight$")
"""Embeddings that are `shared.weight` beside them (T5, BART)."""

_CONSTANTS = re.compile(r"(?:\.inv_freq|\.position_ids|\b(?:attn|attention)\.(?:masked_)?bias)$")
"""What older versions of transformers stored with the weights. All libraries compute it."""

_DEEPEST = 5
"""The most parts of a name that a prefix has: "base_model.model.model.language_model." has four."""

_OFTEN = 10
"""A prefix that this part of all weights change is one. Any other must be of containers."""

_CONTAINERS = frozenset(["model", "thinker", "transformer", "base_model", "language_model", "module"])
"""Modules that hold the parts of a model: its text model, its towers, its MTP head."""

_SMALL_PARTS = (
    "projector", "connector", "merger", "mtp", "embed_vision", "embed_audio", "adapter", "resampler", "newline",
)  # fmt: skip
"""What parts without layers of their own are called, beside towers."""

Prefix = tuple[str, str]  # What names begin with here, and in the original.


@dataclass(frozen=True, slots=True)
class Match:
    """How two checkpoints belong together.

    - `of`: the name of the unit here, by the unit's name in the original.
    - `prefixes`: which prefix became which, and how many units have it.
    - `twice`: pairs of names that both fit one unit of the original; `unclear`: a unit here with two names there.
    - `misfits`: units of the same name and another shape: (here, there).
    - `absent`: units of the original that are not here. `extra`: units that the original does not have.
    """

    of: Mapping[str, str]
    prefixes: Mapping[Prefix, int]
    twice: tuple[tuple[str, str, str], ...] = ()
    unclear: tuple[tuple[str, str, str], ...] = ()
    misfits: tuple[tuple[str, str], ...] = ()
    absent: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """A checkpoint beside its original: the tensors and units of both, how they belong together, and what is not here.

    `untied` are output heads of the checkpoint that its original does not store, each with its name in the copy, and
    `copies` those with the bytes of the embeddings. `tied` are heads that are stored there and are the embeddings here,
    each with the unit that it gets. `has_own_head`: a head is here that is not the embeddings. `constants` are stored
    there and not here. Of all else that is not here, `parts` are whole parts of the original, by name, and `holes` are
    missing in parts that are here. `config` and `form` are the content of both config.json.
    """

    slots: tuple[Slot, ...]
    units: Mapping[str, Unit]
    original: tuple[Slot, ...]
    theirs: Mapping[str, Unit]
    match: Match
    parts: Mapping[str, tuple[str, ...]]
    holes: tuple[str, ...]
    untied: Mapping[str, str]
    copies: frozenset[str]
    tied: Mapping[str, str]
    has_own_head: bool
    constants: tuple[str, ...]
    config: Mapping[str, Any]
    form: Mapping[str, Any]

    @property
    def is_other_model(self) -> bool:
        """Whether the two have little in common."""
        return 2 * (len(self.match.of) + len(self.match.unclear)) < min(len(self.units), len(self.theirs))

    @property
    def extra(self) -> tuple[str, ...]:
        """Units that the original does not have, without output heads that it has as its embeddings."""
        return tuple(name for name in self.match.extra if name not in self.untied and name not in self.copies)


def compared(
    mine: Content, tensors: Sequence[Tensor], config: str, original: Content, known: Mapping[str, str]
) -> Comparison:
    """Return `mine` beside its original, by `known` stored names of names in memory. Raises SourceError."""
    after = ordinary(original)
    if after is None:
        how = "in a way that this version does not read"
        hint = "Name the ordinary model that it was quantized from."
        raise SourceError(f"The weights of {original.source.words} are quantized, {how}.", hint)
    both = {**{stored: name for name, stored in known.items()}, **known}
    there = {tensor.name: tensor.shape for tensor in after.tensors}
    slots = tuple(slots_of((_renamed(tensor, both, there) for tensor in tensors) if known else tensors))
    theirs_slots = tuple(slots_of(after.tensors))
    units, theirs = units_of(slots), units_of(theirs_slots)
    ours, form = as_object(parsed_json(config)), as_object(parsed_json(original.configs.get("", "")))
    match = _matched(units, theirs, partial(_fit, (words_of(ours), words_of(form))))
    is_tied = ties(ours)
    is_real = is_tied is False or mine.head_is_copy is False
    tied = {}
    if is_tied and not is_real:
        words = next((name for name in match.of if EMBEDDINGS.search(name)), "")
        tied = {name: words for name in match.absent if words and HEADS.search(name)}
        tied = {name: words for name in tied if theirs[name].shape == theirs[words].shape}
    copied = {name: _SHARED.sub("shared.weight", name) for name in match.absent if _SHARED.search(name)}
    tied |= {name: words for name, words in copied.items() if words in match.of}
    usual = tied_names(form)[:1] or (USUAL_HEAD,)
    heads = [name for name in match.extra if f".{name}".endswith(f".{usual[0]}") and usual[0] not in theirs]
    untied = dict(zip(heads, usual, strict=False)) if is_real else {}
    copies = frozenset(heads if mine.head_is_copy else ())
    absent = [name for name in match.absent if name not in tied]
    of_weights = [name for name in absent if name.endswith("bias") and len(theirs[name].shape) == 1]
    constants = tuple(name for name in absent if _CONSTANTS.search(name) and name not in of_weights)
    absent = [name for name in absent if name not in constants]
    parts, holes = _lacking(match.of, absent, theirs, layers_of(form))
    own = bool(untied) or is_real and any(f".{name}".endswith(f".{usual[0]}") for name in match.of)
    return Comparison(
        slots, units, theirs_slots, theirs, match, parts, holes, untied, copies, tied, own, constants, ours, form
    )


def _renamed(tensor: Tensor, known: Mapping[str, str], there: Mapping[str, tuple[int, ...]]) -> Tensor:
    """Return `tensor` with its other name behind its prefix, if the original has that one and not this one."""
    for prefix in _prefixes_of(tensor.name):
        name = tensor.name.removeprefix(prefix)
        if (other := known.get(name, name)) in there:
            is_other = name not in there and len(there[other]) == len(tensor.shape)
            return tensor._replace(name=prefix + other) if is_other else tensor
    return tensor


_Fits = Callable[[tuple[int, ...], tuple[int, ...]], bool]


def _fit(words: tuple[int | None, int | None], mine: tuple[int, ...], theirs: tuple[int, ...]) -> bool:
    """Return whether shapes are equal, but for the rows of `words`, of which each model has its own number."""
    if mine == theirs:
        return True
    is_words = bool(mine and theirs) and mine[1:] == theirs[1:] and None not in words
    return is_words and (mine[0], theirs[0]) == words


def _matched(mine: Mapping[str, Unit], theirs: Mapping[str, Unit], fits: _Fits) -> Match:
    """Return which unit of `mine` is which of `theirs`: by name, or as most neighbours change their prefix."""
    exact = {name for name in mine.keys() & theirs.keys() if fits(mine[name].shape, theirs[name].shape)}
    found, votes = _candidates(mine, theirs, fits, exact)
    of, prefixes = {name: name for name in exact}, Counter[Prefix]({("", ""): len(exact)} if exact else {})
    twice, unclear = list[tuple[str, str, str]](), list[tuple[str, str, str]]()
    for name, candidates in found.items():
        best, *more = sorted(candidates, key=lambda prefix: (-votes[prefix], prefix))
        if more and votes[more[0]] == votes[best]:
            unclear.append((name, _moved(name, best), _moved(name, more[0])))
            continue
        target = _moved(name, best)
        if target in exact and votes[best] <= votes[("", "")]:
            continue
        if target in of:
            twice.append((target, of[target], name))
            continue
        of[target] = name
        prefixes[best] += 1
    taken = {*of.values(), *(name for name, *_ in unclear), *(name for *_, name in twice)}
    left = [name for name in mine if name not in taken]
    misfits = dict.fromkeys((name, name) for name in sorted(left) if name in theirs and name not in of)
    for name in left:  # what has its place by a prefix that others changed, and another shape there
        moved = (_moved(name, prefix) for prefix in prefixes if name.startswith(prefix[0]))
        if place := next((one for one in moved if one in theirs and one not in of), None):
            misfits[name, place] = None
    here, there = ({pair[side] for pair in misfits} for side in (0, 1))
    absent = tuple(name for name in theirs if name not in of and name not in there)
    extra = tuple(name for name in left if name not in here)
    return Match(of, prefixes, tuple(twice), tuple(unclear), tuple(misfits), absent, extra)


def _candidates(
    mine: Mapping[str, Unit], theirs: Mapping[str, Unit], fits: _Fits, exact: Collection[str]
) -> tuple[dict[str, list[Prefix]], Counter[Prefix]]:
    """Return the prefixes that each name of `mine` may change, and how many names would find their place by each."""
    endings = dict[str, list[str]]()
    for name in theirs:
        for prefix in _prefixes_of(name):
            endings.setdefault(name[len(prefix) :], []).append(prefix)
    found, votes = dict[str, list[Prefix]](), Counter[Prefix]()
    for name, unit in mine.items():
        for prefix in _prefixes_of(name):
            ending = name[len(prefix) :]
            targets = [there for there in endings.get(ending, ()) if fits(unit.shape, theirs[there + ending].shape)]
            votes.update((prefix, there) for there in targets)
            if targets and name not in exact:
                found[name] = [(prefix, there) for there in targets]
            if targets:
                break
    usual = [prefix for prefix, times in votes.items() if _OFTEN * times >= len(mine)]
    held = {prefix for prefix in votes if all(_is_usual(prefix[side], side, usual) for side in (0, 1))}
    found = {name: [one for one in prefixes if one in held] for name, prefixes in found.items()}
    return {name: prefixes for name, prefixes in found.items() if prefixes}, votes


def _is_usual(start: str, side: int, usual: Iterable[Prefix]) -> bool:
    """Return whether names begin with `start` because a model is inside another, and not by chance."""
    return all(step in _CONTAINERS for step in start.split(".") if step) or any(
        prefix[side].startswith(start) for prefix in usual
    )


def _prefixes_of(name: str) -> Iterator[str]:
    """Yield what a name may begin with: nothing, its first module, its first two. The last one stays, if it tells more.

    >>> list(_prefixes_of("model.layers.weight")), list(_prefixes_of("module.logit_scale"))
    (['', 'model.'], ['', 'module.'])
    """
    yield ""
    at, steps = 0, name.split(".")
    has_own_name = steps[-1] not in ("weight", "bias") and not any(step.isdecimal() for step in steps)
    for step in steps[: min(len(steps) - 2 + has_own_name, _DEEPEST)]:
        if at and step.isdecimal():  # a layer, and not a model inside another
            return
        at = name.index(".", at) + 1
        yield name[:at]


def _moved(name: str, prefix: Prefix) -> str:
    return prefix[1] + name[len(prefix[0]) :]


def _lacking(
    of: Container[str], absent: Iterable[str], theirs: Iterable[str], layers: int | None
) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Return `absent` as parts, of which nothing is here (a tower, an MTP head behind `layers`), and holes."""
    here = {module for name in theirs if name in of for module in _modules(name)}
    inside = dict[str, list[str]]()
    for name in absent:
        inside.setdefault(next(one for one in (*_modules(name), name) if one not in here), []).append(name)
    parts = {module: tuple(names) for module, names in inside.items() if _is_part(module, names, layers)}
    return parts, tuple(name for module, names in inside.items() if module not in parts for name in names)


def _modules(name: str) -> list[str]:
    steps = name.split(".")
    return [".".join(steps[:count]) for count in range(1, len(steps))]


def _is_part(module: str, inside: Collection[str], layers: int | None) -> bool:
    """Return whether a module, of which nothing is here, is a whole part of a model and not a hole in one."""
    around, _, last = module.rpartition(".")
    if last.isdecimal():
        return layers is not None and int(last) >= layers and around.endswith("layers")
    if not all(step in _CONTAINERS for step in around.split(".") if step):
        return False
    if any(word in last for word in _SMALL_PARTS):
        return True
    steps = [name[len(module) + 1 :].split(".") for name in inside]
    has_layers = any(step.isdecimal() for names in steps for step in names)
    return has_layers and not any(names[0].isdecimal() for names in steps) and last not in _CONTAINERS
