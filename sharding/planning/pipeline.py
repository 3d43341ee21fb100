"""Tell in which order a pipeline needs the blocks of a model, and what stands between them. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from sharding.core.values import TensorEntry
from sharding.planning.blocks import blocks_around

_INPUT = re.compile(r"emb(?!ed_out)|wte|wpe|cls_token|(^|[._/])(pre|patch|pos|conv_in)(_|\.|$)|ln_pre")
_OUTPUT = re.compile(
    r"(^|[._/])(lm|head|heads|score|classifier|logits?|cls|qa|output|out|post|final|last|pooler|merger|norm|norm_f"
    r"|ln_f|layer_?norm|layernorm|conv_norm|vocab|predictions)([._]|$)|(^|/)decoder\.(weight|bias)$",
    re.IGNORECASE,
)
_BRIDGE = re.compile(r"projector|projection|connector|aligner|adapter|bridge", re.IGNORECASE)
_FIRST = re.compile(r"(^|[._/])(vision|visual|vit|image|audio|speech|acoustic|encoder|text_encoder)", re.IGNORECASE)
_SECOND = re.compile(r"qformer|resampler|perceiver|mid_block", re.IGNORECASE)
_LAST = re.compile(r"(^|[._/])(decoder|language|llm|lm|up_blocks)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Unit:
    """Tensors that stay together on one machine: a block with its name, or (name "") what stands between blocks."""

    block: str
    tensors: tuple[TensorEntry, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all its tensors."""
        return sum(tensor.bytes for tensor in self.tensors)


def in_pipeline_order(tensors: Iterable[TensorEntry], known: Mapping[str, str]) -> list[Unit]:
    """Return all of `tensors`, given in natural order, as units in the order of a pipeline, as far as names tell.

    Blocks of one list of modules are a tower: encoders and vision towers come before decoders and language
    models. Before the blocks of a tower stands what embeds its input, after them norms and heads.
    """
    tensors = list(tensors)
    outermost = {tensor.name: link(blocks_around(tensor.name, known)) for tensor in tensors}
    containers = dict.fromkeys(block.rpartition(".")[0] for block in outermost.values() if block)
    towers = sorted(containers, key=_rank)  # stable: the natural order decides among equals
    number = {tower: index for index, tower in enumerate(towers)}
    placed: list[tuple[int, int, TensorEntry]] = []
    for tensor in tensors:
        if block := outermost[tensor.name]:
            placed.append((number[block.rpartition(".")[0]], 1, tensor))
        else:
            placed.append((*_place(tensor.name, towers), tensor))
    placed.sort(key=lambda item: item[:2])
    units: list[Unit] = []
    for (_, side), run in groupby(placed, key=lambda item: item[:2]):
        members = [tensor for _, _, tensor in run]
        if side != 1:
            units.append(Unit("", tuple(members)))
            continue
        by_block: dict[str, list[TensorEntry]] = {}
        for tensor in members:
            by_block.setdefault(outermost[tensor.name], []).append(tensor)
        units += [Unit(block, tuple(inside)) for block, inside in by_block.items()]
    return units


def unit_that_uses(name: str, units: Sequence[Unit]) -> int:
    """Return which of `units`, in the order of a pipeline, would have a weight that is called `name` and is in none.

    >>> entries = [TensorEntry(name, "U8", (1,), "f", 0, 1) for name in ("h.0.w", "h.1.w", "wte.weight")]
    >>> units = in_pipeline_order(entries, {})
    >>> [unit.block for unit in units], unit_that_uses("lm_head.weight", units)
    (['', 'h.0', 'h.1'], 2)
    """
    towers = list(dict.fromkeys(unit.block.rpartition(".")[0] for unit in units if unit.block))
    for index, unit in enumerate(units):
        if unit.block and name.startswith(f"{unit.block}."):
            return index
    place = _place(name, towers)
    places = [
        (towers.index(unit.block.rpartition(".")[0]), 1) if unit.block else _place(unit.tensors[0].name, towers)
        for unit in units
    ]
    if place[1]:
        return max((index for index, other in enumerate(places) if other <= place), default=0)
    return next((index for index, other in enumerate(places) if other >= place), len(units) - 1)


def link(blocks: Sequence[str]) -> str:
    """Return the outermost block if it is one of a list of modules; what embeds the input may be a block as well."""
    return blocks[0] if blocks and blocks[0].rpartition(".")[2].isdecimal() else ""


def _rank(container: str) -> int:
    if _LAST.search(container):
        return 3
    return 1 if _SECOND.search(container) else 0 if _FIRST.search(container) else 2


def _place(name: str, towers: Sequence[str]) -> tuple[int, int]:
    """Return the tower that a tensor outside of blocks belongs to, and whether it comes before (0) or after (2) it."""
    if not towers:
        return 0, 0
    after = not _INPUT.search(name) and _OUTPUT.search(name) is not None
    if not after and _BRIDGE.search(name):
        return len(towers) - 1, 0
    shared = [_common(name, tower) for tower in towers]
    nearest = [index for index, count in enumerate(shared) if count == max(shared)]
    return (nearest[-1], 2) if after else (nearest[0], 0)


def _common(name: str, tower: str) -> int:
    count = 0
    for one, other in zip(name.split("."), tower.split("."), strict=False):
        if one != other:
            break
        count += 1
    return count
