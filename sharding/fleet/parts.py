"""Cut a job into parts of one file each, without a login: values with JSON both ways, as their events are."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic import Base64Bytes, TypeAdapter

import sharding.recipes  # noqa: F401 - every kind, so that it can be read from text
from sharding.core.bounds import Line
from sharding.core.errors import Remedy
from sharding.core.events import AtWork, Phase
from sharding.core.protocols import LentDestination, LentSource, Source
from sharding.core.values import Piece, Shard, ShardRecord, Tensor
from sharding.report.schema import Resources
from sharding.transfer.noting_source import NotingSource
from sharding.transfer.stream import PiecesOf, Target


@dataclass(frozen=True, slots=True)
class Part:
    """A slice of a plan: make `shard` from `sources`, and write it to `target`, if any. `pieces` are bytes as they are,
    and None for the next tensor. If it `notes`, its record says what was read of the sources."""

    phase: Phase
    shard: Shard
    pieces: tuple[Base64Bytes | None, ...]
    sources: tuple[LentSource, ...]
    target: LentDestination | None = None
    notes: bool = False
    may_overflow: bool = True  # As in `move_shards`.


@dataclass(frozen=True, slots=True)
class PartDone:
    """A part is done by a worker on `node`."""

    node: Line
    record: ShardRecord
    spent: Resources


@dataclass(frozen=True, slots=True)
class PartFailed:
    """A part is not done: the error's name, message and hint. With `again`, another try may help."""

    node: Line
    kind: str
    message: str
    hint: str
    again: bool = False
    remedy: Remedy | None = None


PartEvent = AtWork | PartDone | PartFailed
_PART, _EVENT = TypeAdapter(Part), TypeAdapter[PartEvent](PartEvent)


def part_json(part: Part) -> str:
    """Return a part as JSON."""
    return _PART.dump_json(part).decode()


def event_json(event: PartEvent) -> str:
    """Return an event of a part as a line of JSON. No two kinds of event have the same fields."""
    return _EVENT.dump_json(event).decode()


parse_part, parse_event = _PART.validate_json, _EVENT.validate_json


def part_of(
    shard: Shard, phase: Phase, pieces: PiecesOf, sources: Sequence[Source], target: Target, may_overflow: bool
) -> Part:
    """Return the part that makes `pieces` of `shard` from `sources` for `target`, with new access each time."""
    held = tuple(piece if isinstance(piece, bytes) else None for piece in pieces(shard))
    notes = any(isinstance(source, NotingSource) for source in sources)
    return Part(phase, shard, held, _lent(shard, sources), target.lend(), notes, may_overflow)


def pieces_of(part: Part) -> Iterator[Piece]:
    """Yield what the shard of a part consists of."""
    tensors: Iterator[Tensor] = iter(part.shard.tensors)
    return (next(tensors) if piece is None else piece for piece in part.pieces)


def _lent(shard: Shard, sources: Sequence[Source]) -> tuple[LentSource, ...]:
    """Return access to the files that a part reads, for each source up to the last one that it uses."""
    files = {place: None for tensor in shard.tensors for place in sorted(tensor.recipe.files())}
    last = max((number for number, _ in files), default=0)
    return tuple(
        source.lend([file for place, file in files if place == number])
        for number, source in enumerate(sources[: last + 1])
    )
