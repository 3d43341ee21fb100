"""Decide which byte ranges of the sources are read, in which order, for a shard. Touches no files.

Bytes leave in the order of the result and lie in the order of the source. A batch of a few megabytes
bridges the two: inside it the ranges are sorted and joined, so that a thousand small tensors which lie
near one another cost one request, whatever their order in the result; a large tensor spans many batches.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sharding.core.recipe import Extent


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes in the order of use: `[start_byte, end_byte)` within range number `range_index` of a batch."""

    range_index: int
    start_byte: int
    end_byte: int


@dataclass(frozen=True, slots=True)
class Batch:
    """What is fetched in one go: a few ranges, one request each, and how their bytes are used one after another."""

    ranges: tuple[Extent, ...]
    pieces: tuple[Piece, ...]

    @property
    def fetched_bytes(self) -> int:
        """How many bytes are fetched."""
        return sum(extent.end_byte - extent.start_byte for extent in self.ranges)

    def used(self, buffers: Sequence[bytes]) -> Iterator[memoryview]:
        """Yield `buffers`, the bytes of the ranges, in the order of use."""
        for piece in self.pieces:
            yield memoryview(buffers[piece.range_index])[piece.start_byte : piece.end_byte]


def read_batches(extents: Iterable[Extent], batch_bytes: int, join_gap_bytes: int) -> Iterator[Batch]:
    """Yield batches that together hold every byte of `extents`, in the order given.

    The pieces of a batch add up to at most `batch_bytes`, the gaps read through to at most as much again.

    >>> near = [Extent(0, "f", 4, 8), Extent(0, "f", 0, 4)]
    >>> [batch.ranges for batch in read_batches(near, 1024, 16)]
    [(Extent(source=0, file='f', start_byte=0, end_byte=8),)]
    """
    wanted: list[Extent] = []
    room = batch_bytes
    for source, file, start, last in extents:
        while start < last:
            end = min(last, start + room)
            wanted.append(Extent(source, file, start, end))
            room -= end - start
            start = end
            if not room:
                yield _batch(wanted, batch_bytes, join_gap_bytes)
                wanted, room = [], batch_bytes
    if wanted:
        yield _batch(wanted, batch_bytes, join_gap_bytes)


def _batch(wanted: list[Extent], spare_bytes: int, join_gap_bytes: int) -> Batch:
    ranges: list[Extent] = []
    pieces: dict[int, Piece] = {}
    for index in sorted(range(len(wanted)), key=wanted.__getitem__):
        source, file, start, end = wanted[index]
        last = ranges[-1] if ranges else None
        gap = start - last.end_byte if last and last[:2] == (source, file) else None
        if last is not None and gap is not None and gap <= 0:  # it begins in what is read already
            ranges[-1] = Extent(source, file, last.start_byte, max(end, last.end_byte))
        elif last is not None and gap is not None and gap <= min(join_gap_bytes, spare_bytes):
            ranges[-1] = Extent(source, file, last.start_byte, end)
            spare_bytes -= gap
        else:
            ranges.append(Extent(source, file, start, end))
        offset = start - ranges[-1].start_byte
        pieces[index] = Piece(len(ranges) - 1, offset, offset + end - start)
    return Batch(tuple(ranges), tuple(pieces[index] for index in range(len(wanted))))
