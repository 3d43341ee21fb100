"""Cut a model into the stages of a pipeline: of balanced bytes, or as transformers loads it. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sharding.core.errors import SourceError, UsageError
from sharding.core.hints import ModelHints
from sharding.core.values import Shard, Stage, TensorEntry, TiedTensor
from sharding.planning.blocks import blocks_around
from sharding.planning.pipeline import Unit, in_pipeline_order, link, unit_that_uses

Needs = Mapping[str, tuple[str, ...]]
"""Names of tensors of other stages to the names of the weights that they are in this one."""


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """Blocks, names of other tensors, tensors in parts that share no file, and what is needed of other stages."""

    blocks: tuple[str, ...]
    others: tuple[str, ...]
    parts: tuple[tuple[TensorEntry, ...], ...]
    needs: Needs

    @property
    def bytes(self) -> int:
        """Bytes of all its tensors."""
        return sum(tensor.bytes for part in self.parts for tensor in part)


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
        stages.append(
            PlannedStage(whole, others, (tuple(tensor for unit in inside for tensor in unit.tensors),), needs)
        )
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
        yield Stage(stage.blocks, stage.others, files, stage.bytes, needs)


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


_INSTEAD = "Choose --strategy stages:N for a pipeline of your own, or blocks."


def cut_ranks(tensors: Sequence[TensorEntry], hints: ModelHints | None, known: Mapping[str, str]) -> list[PlannedStage]:
    """Return what each rank of the pipeline that `hints` know is to hold of `tensors` (in natural order).

    What several ranks load is stored with the first of them, in files of its own. `known` are blocks by tensor.
    Raises SourceError where transformers cannot cut the model, UsageError where a rank would have no layer.
    """
    loads = _loads(hints)
    ranks_of = {tensor.name: _ranks_of(tensor.name, loads) for tensor in tensors}
    stages = []
    for rank in range(len(loads)):
        own = [tensor for tensor in tensors if ranks_of[tensor.name] == (rank,)]
        shared = [tensor for tensor in tensors if len(ranks_of[tensor.name]) > 1 and ranks_of[tensor.name][0] == rank]
        block_of = {tensor.name: link(blocks_around(tensor.name, known)) for tensor in (*shared, *own)}
        needs = {
            tensor.name: _used_as(tensor.name, hints.tied if hints else (), ranks_of)
            for tensor in tensors
            if rank in ranks_of[tensor.name][1:]
        }
        stages.append(
            PlannedStage(
                blocks=tuple(dict.fromkeys(filter(None, block_of.values()))),
                others=tuple(name for name, block in block_of.items() if not block),
                parts=tuple(tuple(part) for part in (shared, own) if part),
                needs=needs,
            )
        )
    return stages


def of_rank(tensors: Iterable[TensorEntry], hints: ModelHints | None, rank: int) -> tuple[TensorEntry, ...]:
    """Return those of `tensors` that `rank` loads. Raises as `cut_ranks` does."""
    loads = _loads(hints)
    return tuple(tensor for tensor in tensors if rank in _ranks_of(tensor.name, loads))


def _loads(hints: ModelHints | None) -> tuple[frozenset[str], ...]:
    if hints is None or hints.unknown or not hints.pipeline:
        reason = (hints.unknown or f"{hints.uncut}.") if hints else "There is no config.json, which says what it is."
        raise SourceError(f"transformers cannot load this model as a pipeline: {reason}", _INSTEAD)
    if any(start == end for start, end in hints.pipeline.layers):
        layers = hints.pipeline.layers[-1][1]
        message = f"{len(hints.loads)} ranks need as many layers, and {hints.class_name} has {layers} here."
        raise UsageError(message, "Choose fewer ranks.")
    return hints.loads


def _ranks_of(name: str, loads: Sequence[frozenset[str]]) -> tuple[int, ...]:
    """Return the ranks that load a tensor: all of them where transformers names none."""
    return tuple(rank for rank, names in enumerate(loads) if name in names) or tuple(range(len(loads)))


def _used_as(name: str, tied: Iterable[Sequence[str]], stored: Mapping[str, object]) -> tuple[str, ...]:
    group = next((names for names in tied if name in names), ())
    return tuple(other for other in group if other not in stored) or (name,)
