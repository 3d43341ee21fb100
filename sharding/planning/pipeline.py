"""Tell which tensors make a block that is not to be cut, and in which order a pipeline needs them. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from sharding.core.errors import UsageError
from sharding.core.values import Shard, Stage, TensorEntry, TiedTensor
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
    outermost = {tensor.name: _link(blocks_around(tensor.name, known)) for tensor in tensors}
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


def cut_stages(sizes: Sequence[int], count: int) -> list[range]:
    """Return `count` runs of `sizes`, none empty, all in order, whose largest sum is as small as it can be.

    >>> cut_stages([5, 1, 1, 1, 4], 3)
    [range(0, 1), range(1, 4), range(4, 5)]
    """
    low, high = max(sizes), sum(sizes)
    while low < high:
        middle = (low + high) // 2
        if len(_runs(sizes, middle, 1)) <= count:
            high = middle
        else:
            low = middle + 1
    return _runs(sizes, low, count)


def _runs(sizes: Sequence[int], most: int, at_least: int) -> list[range]:
    """Return runs of at most `most` each, every one as long as that and the number of runs wanted permit."""
    starts, total = [0], 0
    for index, size in enumerate(sizes):
        # Enough must be left that none of the runs wanted is empty.
        short = len(sizes) - index <= at_least - len(starts)
        if index > starts[-1] and (total + size > most or short):
            starts.append(index)
            total = 0
        total += size
    return [range(start, end) for start, end in zip(starts, [*starts[1:], len(sizes)], strict=True)]


def _link(blocks: Sequence[str]) -> str:
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


Needs = Mapping[str, tuple[str, ...]]
"""Names of tensors of other stages to the names of the weights that they are in this one."""


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """Blocks, names of other tensors, all tensors in the order of a pipeline, and what is needed of other stages."""

    blocks: tuple[str, ...]
    others: tuple[str, ...]
    tensors: tuple[TensorEntry, ...]
    needs: Needs


def cut_pipeline(
    tensors: Sequence[TensorEntry], count: int, known: Mapping[str, str], tied: Iterable[Sequence[str]] = ()
) -> list[PlannedStage]:
    """Return the `count` stages of a pipeline of `tensors` (in natural order), the largest as small as it can be.

    `known` are blocks by tensor, `tied` groups of names that stand for one tensor. Raises UsageError where there are
    fewer blocks.
    """
    units = in_pipeline_order(tensors, known)
    blocks = [unit.block for unit in units if unit.block]
    if count > len(blocks):
        raise UsageError(
            f"{count} stages need as many blocks, and the names of the tensors show {len(blocks)}.",
            "Choose fewer stages, or --strategy size.",
        )
    runs = cut_stages([unit.bytes for unit in units], count)
    stages = []
    for run, needs in zip(runs, _needs(units, runs, tied), strict=True):
        inside = [units[index] for index in run]
        whole = tuple(unit.block for unit in inside if unit.block)
        others = tuple(tensor.name for unit in inside if not unit.block for tensor in unit.tensors)
        stages.append(PlannedStage(whole, others, tuple(tensor for unit in inside for tensor in unit.tensors), needs))
    return stages


def _needs(units: Sequence[Unit], runs: Sequence[range], tied: Iterable[Sequence[str]]) -> list[Needs]:
    """Return for each of `runs` the tied tensors that are in others, by the names of those that are in no file."""
    number = {index: stage for stage, run in enumerate(runs) for index in run}
    stage_of = {tensor.name: number[index] for index, unit in enumerate(units) for tensor in unit.tensors}
    needs: list[dict[str, tuple[str, ...]]] = [{} for _ in runs]
    for names in tied:
        stored = [name for name in names if name in stage_of]
        for name in names:
            if name in stage_of or not stored:
                continue
            stage = number[unit_that_uses(name, units)]
            if stage not in {stage_of[other] for other in stored}:
                needs[stage][stored[0]] = (*needs[stage].get(stored[0], ()), name)
    return list[Needs](needs)


def with_files(stages: Sequence[PlannedStage], counts: Sequence[int], shards: Sequence[Shard]) -> Iterator[Stage]:
    """Yield the stages, which have `counts` of `shards`, with their files."""
    file_of = {tensor.name: shard.file for shard in shards for tensor in shard.tensors} if stages else {}
    start = 0
    for stage, count in zip(stages, counts, strict=False):
        files = tuple(shard.file for shard in shards[start : start + count])
        start += count
        needs = tuple(TiedTensor(name, file_of[name], used_as) for name, used_as in stage.needs.items())
        yield Stage(stage.blocks, stage.others, files, sum(tensor.bytes for tensor in stage.tensors), needs)
