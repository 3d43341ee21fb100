"""Cut a job into parts: which files and which of its making each needs. Lends what it takes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from sharding.core.protocols import Destination, Source
from sharding.core.values import FileEntry, Shard, TensorEntry
from sharding.fleet.parts import Part
from sharding.planning.plan import shard_header
from sharding.transfer.prepare import Making, Prepared


@dataclass(frozen=True, slots=True)
class Task:
    """A part that can be asked for again and again, each time with fresh access: `make` lends it."""

    file: str
    bytes: int
    make: Callable[[], Part]


class Cutter:
    """What the shards of a result take of `making`."""

    def __init__(self, making: Making) -> None:
        """Look through it once, as there may be a hundred thousand tensors and a thousand shards."""
        self._making = making
        self._stored = {after.name: stored for stored, after in zip(making.stored, making.after, strict=True)}
        self._gathered = {(tensor.file, tensor.start_byte): tensor for tensor in making.gathered}
        self._computed = {(tensor.file, tensor.start_byte): tensor for tensor in making.computed}

    def making(self, tensors: Sequence[TensorEntry]) -> tuple[Making, list[str]]:
        """Return what `tensors` take, and the files that they are made of."""
        stored = [self._stored.get(tensor.name, tensor) for tensor in tensors]
        places = [(tensor.file, tensor.start_byte) for tensor in stored]
        computed = [self._computed[place] for place in places if place in self._computed]
        places = [place for place in places if place not in self._computed]
        places += [(part.file, part.start_byte) for tensor in computed for part in (tensor.packed, tensor.scales)]
        gathered = [self._gathered[place] for place in dict.fromkeys(places) if place in self._gathered]
        files = {file: None for file, _ in places} | {box.file: None for tensor in gathered for box in tensor.boxes}
        if not self._stored:
            return Making(tuple(gathered), tuple(computed)), list(files)
        pairs = sorted(zip(stored, tensors, strict=True), key=lambda pair: (pair[1].file, pair[1].start_byte))
        return (
            Making(
                tuple(gathered),
                tuple(computed),
                tuple(before for before, _ in pairs),
                tuple(after for _, after in pairs),
                self._making.allow_overflow,
            ),
            list(files),
        )


def tasks_to_make(shards: Iterable[Shard], prepared: Prepared, target: Destination | None = None) -> list[Task]:
    """Return a task for each of `shards`, to be made as `prepared` and put into `target`, or only to be read again."""
    cutter = Cutter(prepared.making)
    notes = prepared.noted is not None

    def part(shard: Shard) -> Part:
        taken, files = cutter.making(shard.tensors)
        header, lent = shard_header(prepared.plan, shard), prepared.reading.lend(files)
        if target is None:
            return Part("check", shard, header, lent, taken)
        return Part("transfer", shard, header, lent, taken, target.lend(), notes)

    return [_task(shard, part) for shard in shards]


def tasks_to_read(
    phase: Literal["check", "verify"], shards: Iterable[Shard], header: Callable[[Shard], bytes], source: Source
) -> list[Task]:
    """Return a task for each of `shards`, whose tensors are read from `source` as if to be written."""

    def part(shard: Shard) -> Part:
        files = dict.fromkeys(tensor.file for tensor in shard.tensors)
        return Part(phase, shard, header(shard), source.lend(files))

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
        tensors = [TensorEntry(f"{a}-{b}", "U8", (b - a,), file.path, a, b) for a, b in taken]
        yield Shard(file.path, tuple(tensors), sum(tensor.bytes for tensor in tensors))
        left, between = later, False


def _task(shard: Shard, part: Callable[[Shard], Part]) -> Task:
    return Task(shard.file, shard.bytes, lambda: part(shard))
