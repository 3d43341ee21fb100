"""Cut a job into parts, each a slice of its plan. Lends what it takes."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from sharding.core.lent import LentSource
from sharding.core.protocols import Destination, Source
from sharding.core.values import FileEntry, Shard, Tensor
from sharding.fleet.parts import Part
from sharding.planning.plan import shard_header
from sharding.recipes.stored import Stored
from sharding.transfer.prepare import Prepared


@dataclass(frozen=True, slots=True)
class Task:
    """A part that can be asked for again and again, each time with fresh access: `make` lends it."""

    file: str
    bytes: int
    make: Callable[[], Part]


def tasks_to_make(shards: Iterable[Shard], prepared: Prepared, target: Destination) -> list[Task]:
    """Return a task for each of `shards`, to be made as `prepared` and put into `target`."""

    def part(shard: Shard) -> Part:
        header, lent = shard_header(prepared.plan, shard), _lent(shard, prepared.reading)
        return Part("transfer", shard, header, lent, target.lend(), prepared.noted is not None)

    return [_task(shard, part) for shard in shards]


def tasks_to_read(
    phase: Literal["check", "verify"], shards: Iterable[Shard], header: Callable[[Shard], bytes], source: Source
) -> list[Task]:
    """Return a task for each of `shards`, whose tensors are made of `source` as if to be written."""

    def part(shard: Shard) -> Part:
        return Part(phase, shard, header(shard), _lent(shard, source))

    return [_task(shard, part) for shard in shards]


def layers_of(file: FileEntry, ranges: Iterable[tuple[int, int]]) -> Iterator[Shard]:
    """Yield `ranges` of a file as tensors, none of which overlap: first with all that lies between, then the rest."""
    left, between = sorted(ranges), True
    while left or between:
        taken, later, position = list[tuple[int, int]](), list[tuple[int, int]](), 0
        for start, end in left:
            if start < position:
                later.append((start, end))
                continue
            taken += [(position, start)] * (between and start > position) + [(start, end)]
            position = end
        taken += [(position, file.bytes)] * (between and position < file.bytes)
        tensors = [Tensor(f"{a}-{b}", "U8", (b - a,), Stored(0, file.path, a, b)) for a, b in taken]
        yield Shard(file.path, tuple(tensors), sum(tensor.bytes for tensor in tensors))
        left, between = later, False


def _task(shard: Shard, part: Callable[[Shard], Part]) -> Task:
    return Task(shard.file, shard.bytes, lambda: part(shard))


def _lent(shard: Shard, source: Source) -> tuple[LentSource, ...]:
    files = {file: None for tensor in shard.tensors for _, file in sorted(tensor.recipe.files())}
    return (source.lend(files),)
