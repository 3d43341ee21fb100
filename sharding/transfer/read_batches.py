"""Decide which byte ranges of the source are read, in which order, for a shard. Touches no files.

Bytes leave in the order of the result and lie in the order of the source. A block of a few megabytes
bridges the two: inside it the ranges are sorted and joined, so that a thousand small tensors which lie
near one another cost one request, whatever their order in the result; a large tensor spans many blocks.
"""

from collections.abc import Iterable, Iterator

from sharding.core.values import Block, ByteRange, Piece, TensorEntry

_ELEMENT_BYTES = 8
"""A tensor is cut between blocks at multiples of this, so never inside an element of any dtype."""


def read_blocks(tensors: Iterable[TensorEntry], block_bytes: int, join_gap_bytes: int) -> Iterator[Block]:
    """Yield blocks that together hold every byte of `tensors` once, in the order given.

    The pieces of a block add up to at most `block_bytes`, the gaps read through to at most as much again.

    >>> near = [TensorEntry(name, "U8", (4,), "f", at, at + 4) for name, at in (("b", 4), ("a", 0))]
    >>> [block.ranges for block in read_blocks(near, 1024, 16)]
    [(ByteRange(file='f', start_byte=0, end_byte=8),)]
    """
    parts: list[tuple[str, ByteRange]] = []
    room = block_bytes
    for tensor in tensors:
        start = tensor.start_byte
        while start < tensor.end_byte:
            end = min(tensor.end_byte, start + room)
            if end < tensor.end_byte:
                end -= (end - tensor.start_byte) % _ELEMENT_BYTES
            if end > start:
                parts.append((tensor.name, ByteRange(tensor.file, start, end)))
                room -= end - start
                start = end
            if room < _ELEMENT_BYTES or start < tensor.end_byte:
                yield _block(parts, block_bytes, join_gap_bytes)
                parts, room = [], block_bytes
    if parts:
        yield _block(parts, block_bytes, join_gap_bytes)


def _block(parts: list[tuple[str, ByteRange]], spare_bytes: int, join_gap_bytes: int) -> Block:
    ranges: list[ByteRange] = []
    pieces: dict[int, Piece] = {}
    by_place = sorted(range(len(parts)), key=lambda index: (parts[index][1].file, parts[index][1].start_byte))
    for index in by_place:
        name, part = parts[index]
        last = ranges[-1] if ranges else None
        gap = part.start_byte - last.end_byte if last and last.file == part.file else None
        if last is not None and gap is not None and 0 <= gap <= min(join_gap_bytes, spare_bytes):
            ranges[-1] = ByteRange(last.file, last.start_byte, part.end_byte)
            spare_bytes -= gap
        else:
            ranges.append(part)
        offset = part.start_byte - ranges[-1].start_byte
        pieces[index] = Piece(name, len(ranges) - 1, offset, offset + part.end_byte - part.start_byte)
    return Block(tuple(ranges), tuple(pieces[index] for index in range(len(parts))))
