"""Cut a job into parts, each a slice of its plan with access to the files that it needs."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from sharding.core.destination import Destination
from sharding.core.lent import LentSource
from sharding.core.protocols import Source
from sharding.core.values import Shard
from sharding.fleet.parts import Part
from sharding.formats.safetensors_file import shard_header
from sharding.transfer.prepare import Prepared
from sharding.transfer.stream import ReadingPhase


@dataclass(frozen=True, slots=True)
class Task:
    """A part that can be made several times. `make` gives it new access each time."""

    file: str
    bytes: int
    make: Callable[[], Part]


def tasks_to_make(shards: Iterable[Shard], prepared: Prepared, target: Destination) -> list[Task]:
    """Return a task for each of `shards`, to be made as in `prepared` and written to `target`."""

    def part(shard: Shard) -> Part:
        header, lent = shard_header(prepared.plan, shard), _lent(shard, prepared.sources)
        return Part("transfer", shard, header, lent, target.lend(), bool(prepared.noted))

    return [Task(shard.file, shard.bytes, partial(part, shard)) for shard in shards]


def tasks_to_read(
    phase: ReadingPhase,
    shards: Iterable[Shard],
    header: Callable[[Shard], bytes],
    sources: Sequence[Source],
) -> list[Task]:
    """Return a task for each of `shards`, which makes its tensors from `sources` without writing them."""

    def part(shard: Shard) -> Part:
        return Part(phase, shard, header(shard), _lent(shard, sources))

    return [Task(shard.file, shard.bytes, partial(part, shard)) for shard in shards]


def _lent(shard: Shard, sources: Sequence[Source]) -> tuple[LentSource, ...]:
    """Return access to the files that a part reads, for each source up to the last one that it uses."""
    files = {place: None for tensor in shard.tensors for place in sorted(tensor.recipe.files())}
    last = max((number for number, _ in files), default=0)
    return tuple(
        source.lend([file for place, file in files if place == number])
        for number, source in enumerate(sources[: last + 1])
    )
