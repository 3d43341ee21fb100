"""Decide which byte ranges of the source are read, in which order, for a shard. Touches no files.

Bytes leave in the order of the result and lie in the order of the source. A batch of a few megabytes
bridges the two: inside it the ranges are sorted and joined, so that a thousand small tensors which lie
near one another cost one request, whatever their order in the result; a large tensor spans many batches.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sharding.core.values import TensorEntry

_ELEMENT_BYTES = 8
"""A tensor is cut between batches at multiples of this, so never inside an element of any dtype."""


@dataclass(frozen=True, slots=True)
class ByteRange:
    """`[start_byte, end_byte)` of a source file: one read, one request."""

    file: str
    start_byte: int
    end_byte: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Some consecutive bytes of one tensor: `[start_byte, end_byte)` within range number `range_index` of a batch."""

    tensor: str
    range_index: int
    start_byte: int
    end_byte: int


@dataclass(frozen=True, slots=True)
class Batch:
    """What is fetched in one go: a few ranges, and how their bytes are laid one after another."""

    ranges: tuple[ByteRange, ...]
    pieces: tuple[Piece, ...]


def read_batches(tensors: Iterable[TensorEntry], batch_bytes: int, join_gap_bytes: int) -> Iterator[Batch]:
    """Yield batches that together hold every byte of `tensors` once, in the order given.

    The pieces of a batch add up to at most `batch_bytes`, the gaps read through to at most as much again.

    >>> near = [TensorEntry(name, "U8", (4,), "f", at, at + 4) for name, at in (("b", 4), ("a", 0))]
    >>> [batch.ranges for batch in read_batches(near, 1024, 16)]
    [(ByteRange(file='f', start_byte=0, end_byte=8),)]
    """
    wanted: list[tuple[str, ByteRange]] = []
    room = batch_bytes
    for tensor in tensors:
        start = tensor.start_byte
        while start < tensor.end_byte:
            end = min(tensor.end_byte, start + room)
            if end < tensor.end_byte:
                end -= (end - tensor.start_byte) % _ELEMENT_BYTES
            if end > start:
                wanted.append((tensor.name, ByteRange(tensor.file, start, end)))
                room -= end - start
                start = end
            if room < _ELEMENT_BYTES or start < tensor.end_byte:
                yield _batch(wanted, batch_bytes, join_gap_bytes)
                wanted, room = [], batch_bytes
    if wanted:
        yield _batch(wanted, batch_bytes, join_gap_bytes)


def _batch(wanted: list[tuple[str, ByteRange]], spare_bytes: int, join_gap_bytes: int) -> Batch:
    ranges: list[ByteRange] = []
    pieces: dict[int, Piece] = {}
    by_place = sorted(range(len(wanted)), key=lambda index: (wanted[index][1].file, wanted[index][1].start_byte))
    for index in by_place:
        name, stretch = wanted[index]
        last = ranges[-1] if ranges else None
        gap = stretch.start_byte - last.end_byte if last and last.file == stretch.file else None
        if last is not None and gap is not None and 0 <= gap <= min(join_gap_bytes, spare_bytes):
            ranges[-1] = ByteRange(last.file, last.start_byte, stretch.end_byte)
            spare_bytes -= gap
        else:
            ranges.append(stretch)
        offset = stretch.start_byte - ranges[-1].start_byte
        pieces[index] = Piece(name, len(ranges) - 1, offset, offset + stretch.end_byte - stretch.start_byte)
    return Batch(tuple(ranges), tuple(pieces[index] for index in range(len(wanted))))
