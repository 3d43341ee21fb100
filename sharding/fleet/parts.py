"""Cut a job into parts, which are values with JSON both ways, as the events of each part are.

A part is one file: a shard of the result to write, or a file to read once more. It has everything that a worker needs,
and nobody's login. Its access to a store is for this part alone, and expires.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from pydantic import Base64Bytes, TypeAdapter

import sharding.recipes  # noqa: F401 - every kind, so that it can be read from text
from sharding.core.bounds import Count, Line, Seconds
from sharding.core.errors import Remedy
from sharding.core.events import Phase
from sharding.core.protocols import Destination, LentDestination, LentSource, Source
from sharding.core.values import Piece, Shard, ShardRecord
from sharding.formats.file_formats import format_of
from sharding.transfer.stream import PiecesOf, Prepared, ReadingPhase


@dataclass(frozen=True, slots=True)
class Part:
    """A slice of a plan: make `shard` from `sources`, and write it to `target`.

    `pieces` are what it consists of: bytes as they are, and None for the next of its tensors. Without a target they are
    only read. The plan of the target and the file together name a part. If it `notes`, its record says what was read of
    the sources.
    """

    phase: Phase
    shard: Shard
    pieces: tuple[Base64Bytes | None, ...]
    sources: tuple[LentSource, ...]
    target: LentDestination | None = None
    notes: bool = False
    may_overflow: bool = True  # As in `move_shards`.


@dataclass(frozen=True, slots=True)
class Worker:
    """A process that does parts, one after another."""

    node: Line
    pid: Count


@dataclass(frozen=True, slots=True)
class Spent:
    """The cost of a part so far. The memory is the peak of the worker's process."""

    seconds: Seconds = 0.0
    peak_anon_bytes: Count = 0
    bytes_read: Count = 0
    read_requests: Count = 0
    bytes_uploaded: Count = 0
    bytes_deduplicated: Count = 0

    def __add__(self, other: "Spent") -> "Spent":
        """Return the cost of two parts together, with the larger of their peaks."""
        sums = {field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)}
        return Spent(**sums | {"peak_anon_bytes": max(self.peak_anon_bytes, other.peak_anon_bytes)})


@dataclass(frozen=True, slots=True)
class UnderWay:
    """The progress of a part."""

    worker: Worker
    bytes_done: Count
    seconds: Seconds
    anon_bytes: Count


@dataclass(frozen=True, slots=True)
class PartDone:
    """A part is done."""

    worker: Worker
    record: ShardRecord
    spent: Spent


@dataclass(frozen=True, slots=True)
class PartFailed:
    """A part is not done: the error's name, message and hint. With `again`, another try may help."""

    worker: Worker
    kind: str
    message: str
    hint: str
    again: bool = False
    remedy: Remedy | None = None


PartEvent = UnderWay | PartDone | PartFailed
_EVENTS: dict[str, TypeAdapter[Any]] = {kind.__name__: TypeAdapter(kind) for kind in (UnderWay, PartDone, PartFailed)}
_PART = TypeAdapter(Part)


def part_json(part: Part) -> str:
    """Return a part as JSON."""
    return _PART.dump_json(part).decode()


def parse_part(text: str) -> Part:
    """Return the part that `part_json` wrote."""
    return _PART.validate_json(text)


def event_line(event: PartEvent) -> str:
    """Return an event of a part as a line: the name of its kind, and JSON."""
    name = type(event).__name__
    return f"{name} {_EVENTS[name].dump_json(event).decode()}"


def parse_event(line: str) -> PartEvent:
    """Return the event that `event_line` wrote."""
    name, _, text = line.partition(" ")
    event: PartEvent = _EVENTS[name].validate_json(text)
    return event


@dataclass(frozen=True, slots=True)
class Task:
    """A part that can be made several times. `make` gives it new access each time."""

    file: str
    bytes: int
    make: Callable[[], Part]


def tasks_to_make(shards: Iterable[Shard], prepared: Prepared, target: Destination) -> list[Task]:
    """Return a task for each of `shards`, to be made as in `prepared` and written to `target`."""

    def part(shard: Shard) -> Part:
        pieces, lent = format_of(prepared.plan).pieces(prepared.plan, shard), _lent(shard, prepared.sources)
        notes, may_overflow = bool(prepared.noted), prepared.plan.options.allow_overflow
        return Part("transfer", shard, _in_order(pieces), lent, target.lend(), notes, may_overflow)

    return [Task(shard.file, shard.bytes, partial(part, shard)) for shard in shards]


def tasks_to_read(
    phase: ReadingPhase, shards: Iterable[Shard], pieces: PiecesOf, sources: Sequence[Source]
) -> list[Task]:
    """Return a task for each of `shards`, which makes its tensors from `sources` without writing them."""

    def part(shard: Shard) -> Part:
        return Part(phase, shard, _in_order(pieces(shard)), _lent(shard, sources))

    return [Task(shard.file, shard.bytes, partial(part, shard)) for shard in shards]


def _in_order(pieces: Iterable[Piece]) -> tuple[bytes | None, ...]:
    return tuple(piece if isinstance(piece, bytes) else None for piece in pieces)


def pieces_of(part: Part) -> Iterator[Piece]:
    """Yield what the shard of a part consists of."""
    tensors = iter(part.shard.tensors)
    return (next(tensors) if piece is None else piece for piece in part.pieces)


def _lent(shard: Shard, sources: Sequence[Source]) -> tuple[LentSource, ...]:
    """Return access to the files that a part reads, for each source up to the last one that it uses."""
    files = {place: None for tensor in shard.tensors for place in sorted(tensor.recipe.files())}
    last = max((number for number, _ in files), default=0)
    return tuple(
        source.lend([file for place, file in files if place == number])
        for number, source in enumerate(sources[: last + 1])
    )
