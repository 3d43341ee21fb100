"""Hold a checkpoint beside its original: which weight is which, and what one of them lacks. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sharding.core.errors import SourceError
from sharding.core.text import as_object, parsed_json
from sharding.core.values import Content, Tensor
from sharding.formats.torch_checkpoint import EMBEDDINGS, HEADS
from sharding.model_class.class_table import USUAL_HEAD, tied_names, ties
from sharding.planning.alike.configs import layers_of, words_of
from sharding.planning.alike.matching import Fits, Lack, Match, lacking, matched, prefixes_of
from sharding.planning.alike.units import Slot, Unit, slots_of, units_of
from sharding.planning.dequantize import ordinary

_SHARED = re.compile(r"\b(?:encoder|decoder)\.embed_tokens\.weight$")
"""Embeddings that are `shared.weight` beside them (T5, BART)."""

_CONSTANTS = re.compile(r"(?:\.inv_freq|\.position_ids|\b(?:attn|attention)\.(?:masked_)?bias)$")
"""What older versions of transformers stored with the weights. All libraries compute it."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A checkpoint beside its original: the tensors and units of both, how they belong together, and what is not here.

    `untied` are output heads of the checkpoint that its original does not store, each with its name in the copy, and
    `copies` those with the bytes of the embeddings. `tied` are heads that are stored there and are the embeddings here,
    each with the unit that it gets. `has_own_head`: a head is here that is not the embeddings. `constants` are stored
    there and not here. `config` and `form` are the content of both config.json.
    """

    slots: tuple[Slot, ...]
    units: Mapping[str, Unit]
    original: tuple[Slot, ...]
    theirs: Mapping[str, Unit]
    match: Match
    lack: Lack
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
    fits = Fits((words_of(ours), words_of(form)))
    match = matched(units, theirs, fits)
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
    match = replace(match, absent=tuple(name for name in match.absent if name not in tied))
    constants = tuple(
        name
        for name in match.absent
        if _CONSTANTS.search(name) and not (name.endswith("bias") and len(theirs[name].shape) == 1)
    )
    match = replace(match, absent=tuple(name for name in match.absent if name not in constants))
    lack = lacking(match, theirs, layers_of(form))
    own = bool(untied) or is_real and any(f".{name}".endswith(f".{usual[0]}") for name in match.of)
    return Comparison(slots, units, theirs_slots, theirs, match, lack, untied, copies, tied, own, constants, ours, form)


def _renamed(tensor: Tensor, known: Mapping[str, str], there: Mapping[str, tuple[int, ...]]) -> Tensor:
    """Return `tensor` with its other name behind its prefix, if the original has that one and not this one."""
    for prefix in prefixes_of(tensor.name):
        name = tensor.name.removeprefix(prefix)
        if (other := known.get(name, name)) in there:
            is_other = name not in there and len(there[other]) == len(tensor.shape)
            return tensor._replace(name=prefix + other) if is_other else tensor
    return tensor
