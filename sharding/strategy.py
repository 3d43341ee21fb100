"""Cut a queue of tensors: by size, by blocks, or into the stages of a pipeline first. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from huggingface_hub import split_state_dict_into_shards_factory

from sharding.blocks import Unit, cut_stages, in_pipeline_order, unit_that_uses
from sharding.errors import UsageError
from sharding.order import Order
from sharding.values import Shard, Stage, TensorEntry, TiedTensor

Strategy = str
"""`size`, `blocks`, or `stages:N` with a number of stages."""

Units = Mapping[str, object]
"""Tensor name to what it is a part of that may not be cut. A tensor that is not in it stands alone."""

Needs = Mapping[str, tuple[str, ...]]
"""Names of tensors of other stages to the names of the weights that they are in this one."""

_STAGES = re.compile(r"stages:([1-9]\d{0,3})", re.ASCII)


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """Blocks, names of other tensors, all tensors in the order of a pipeline, and what is needed of other stages."""

    blocks: tuple[str, ...]
    others: tuple[str, ...]
    tensors: tuple[TensorEntry, ...]
    needs: Needs


def parse_strategy(strategy: str, order: str) -> int:
    """Return the number of stages, 0 for a strategy without any. Raises UsageError for what is no choice."""
    match = _STAGES.fullmatch(strategy)
    if strategy not in ("size", "blocks") and not match or order not in get_args(Order):
        raise UsageError(
            f"There is no strategy {strategy!r} with order {order!r}.",
            f"Strategies: size, blocks, stages:N. Orders: {', '.join(get_args(Order))}.",
        )
    return int(match[1]) if match else 0


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
    file_of = {tensor.name: shard.file for shard in shards for tensor in shard.tensors}
    start = 0
    for stage, count in zip(stages, counts, strict=False):
        files = tuple(shard.file for shard in shards[start : start + count])
        start += count
        needs = tuple(TiedTensor(name, file_of[name], used_as) for name, used_as in stage.needs.items())
        yield Stage(stage.blocks, stage.others, files, sum(tensor.bytes for tensor in stage.tensors), needs)


def cut(queue: Sequence[TensorEntry], max_shard_bytes: int, units: Units) -> list[list[TensorEntry]]:
    """Return `queue` in groups of at most `max_shard_bytes` as the Hub's splitter cuts it, units as one piece."""
    by_name = {tensor.name: tensor for tensor in queue}
    sizes: dict[object, int] = {}
    for tensor in queue:
        if tensor.name in units:
            sizes[units[tensor.name]] = sizes.get(units[tensor.name], 0) + tensor.bytes
    split = split_state_dict_into_shards_factory(
        by_name,
        get_storage_size=lambda tensor: sizes[units[tensor.name]] if tensor.name in units else tensor.bytes,
        get_storage_id=lambda tensor: units.get(tensor.name),
        filename_pattern="{suffix}",
        max_shard_size=max_shard_bytes,
    )
    return [[by_name[name] for name in names] for names in split.filename_to_tensors.values()]
