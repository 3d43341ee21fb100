"""Decide which byte ranges of the sources to read for a shard, in which order. Touches no files.

The result needs bytes in one order, and the source has them in another. So reads go in batches of a few megabytes.
Inside a batch, the ranges are sorted and joined: a thousand small tensors near one another cost one request, in any
order. A large tensor spans many batches.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sharding.core.recipe import Extent


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes `[start_byte, end_byte)` within range number `range_index` of a batch."""

    range_index: int
    start_byte: int
    end_byte: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Ranges to fetch together, one request each, and the `pieces` of them in the order of use."""

    ranges: tuple[Extent, ...]
    pieces: tuple[Piece, ...]

    @property
    def fetched_bytes(self) -> int:
        """How many bytes the ranges have together."""
        return sum(extent.end_byte - extent.start_byte for extent in self.ranges)

    def used(self, buffers: Sequence[bytes]) -> Iterator[memoryview]:
        """Yield the pieces in the order of use. `buffers` are the bytes of the ranges."""
        for piece in self.pieces:
            yield memoryview(buffers[piece.range_index])[piece.start_byte : piece.end_byte]


def read_batches(extents: Iterable[Extent], batch_bytes: int, join_gap_bytes: int) -> Iterator[Batch]:
    """Yield batches that together hold every byte of `extents`, in their order.

    Ranges are joined if the gap between them is at most `join_gap_bytes`. The pieces of a batch add up to at most
    `batch_bytes`, and so do the gaps in it that are read too.

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
        if last is not None and gap is not None and gap <= 0:  # it begins inside the last range
            ranges[-1] = Extent(source, file, last.start_byte, max(end, last.end_byte))
        elif last is not None and gap is not None and gap <= min(join_gap_bytes, spare_bytes):
            ranges[-1] = Extent(source, file, last.start_byte, end)
            spare_bytes -= gap
        else:
            ranges.append(Extent(source, file, start, end))
        offset = start - ranges[-1].start_byte
        pieces[index] = Piece(len(ranges) - 1, offset, offset + end - start)
    return Batch(tuple(ranges), tuple(pieces[index] for index in range(len(wanted))))
