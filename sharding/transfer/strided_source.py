"""Read tensors that do not lie in order (views, transposes, pieces of ranks) as if they did, in bounded memory."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from math import prod
from mmap import mmap
from typing import Any

from sharding.core.extras import require
from sharding.core.gathered import Box, Gathered, strides_of
from sharding.core.limits import BATCH_BYTES, GATHERED_SPAN_BYTES, TILE_BYTES, TILES_BYTES
from sharding.core.protocols import Source
from sharding.storage.source_view import LongerSource
from sharding.transfer.kept import Kept


def gathering(source: Source, gathered: Sequence[Gathered]) -> Source:
    """Return what reads `source` and beyond its files `gathered`: itself where there are none. Raises Refused."""
    if not gathered:
        return source
    if not all(map(_stretches, gathered)):
        require("Writing what does not lie in order (transposed, cut out, expanded, cut by columns)", ["numpy"])
    return GatheringSource(source, gathered)


class GatheringSource(LongerSource[Gathered]):
    """A source whose files go on beyond their end with tensors laid in order. See `protocols.Source`."""

    def __init__(self, source: Source, gathered: Sequence[Gathered]) -> None:
        """Lay each of `gathered` in order when it is read."""
        super().__init__(source, gathered)
        self._tiles: Kept[memoryview] = Kept(TILES_BYTES)

    def _part_bytes(self, parts: list[Gathered], start_byte: int, end_byte: int) -> Iterator[bytes]:
        while start_byte < end_byte:
            part = parts[bisect_right(parts, start_byte, key=lambda part: part.start_byte) - 1]
            stop = min(end_byte, part.end_byte)
            stretches = _stretches(part)
            read = self._join(stretches, part, start_byte, stop) if stretches else self._lay(part, start_byte, stop)
            yield from read
            start_byte = stop

    def _join(self, stretches: "list[_Stretch]", part: Gathered, start_byte: int, end_byte: int) -> Iterator[bytes]:
        """Yield bytes of a tensor whose boxes follow one another."""
        start, end = start_byte - part.start_byte, end_byte - part.start_byte
        index = bisect_right(stretches, start, key=lambda stretch: stretch[0]) - 1
        for first, box, size in stretches[index:]:
            if first >= end:
                return
            at, stop = max(start, first) - first, min(end - first, size)
            yield from self._source.read(box.file, box.origin + at, box.origin + stop)

    def _lay(self, part: Gathered, start_byte: int, end_byte: int) -> Iterator[bytes]:
        """Yield bytes of a tensor that is laid in order tile by tile."""
        tiles = _Tiles(part)
        while start_byte < end_byte:
            number = tiles.number(start_byte - part.start_byte)
            tile_start = part.start_byte + tiles.start(number)
            tile = self._tile(part, tiles, number)
            stop = min(end_byte, tile_start + len(tile), start_byte + BATCH_BYTES)
            yield bytes(tile[start_byte - tile_start : stop - tile_start])
            start_byte = stop

    def _tile(self, part: Gathered, tiles: "_Tiles", number: int) -> memoryview:
        """Return a tile, laid in order."""
        offsets, shape = tiles.place(number)
        size = prod(shape) * part.item_bytes
        return self._tiles.get((part.file, part.start_byte, number), size, lambda: self._gather(part, offsets, shape))

    def _gather(self, part: Gathered, offsets: tuple[int, ...], shape: tuple[int, ...]) -> memoryview:
        import numpy as np

        # Mapped, so that it goes back to the system as soon as it is dropped.
        room = mmap(-1, prod(shape) * part.item_bytes)
        tile = np.frombuffer(room, f"u{part.item_bytes}").reshape(shape)
        for box in part.boxes:
            starts = [max(at, begin) for at, begin in zip(offsets, box.offsets, strict=True)]
            ends = [
                min(at + length, begin + inside)
                for at, length, begin, inside in zip(offsets, shape, box.offsets, box.shape, strict=True)
            ]
            if all(start < end for start, end in zip(starts, ends, strict=True)):
                there = tuple(slice(a - at, b - at) for a, b, at in zip(starts, ends, offsets, strict=True))
                first = sum(
                    (a - begin) * stride for a, begin, stride in zip(starts, box.offsets, box.strides, strict=True)
                )
                self._fill(part.item_bytes, box, tile[there], first)
        return tile.reshape(-1).view("u1").data

    def _fill(self, item_bytes: int, box: Box, tile: Any, start: int) -> None:
        """Fill `tile`, whose first element is the `start`th of the file as counted from the first of the box."""
        import numpy as np

        lengths = [(length - 1) * stride for length, stride in zip(tile.shape, box.strides, strict=True)]
        last = start + sum(lengths)
        if (last + 1 - start) * item_bytes <= GATHERED_SPAN_BYTES:
            first_byte, end_byte = box.origin + start * item_bytes, box.origin + (last + 1) * item_bytes
            data = b"".join(self._source.read(box.file, first_byte, end_byte))
            steps = [stride * item_bytes for stride in box.strides]
            tile[...] = np.lib.stride_tricks.as_strided(np.frombuffer(data, tile.dtype), tile.shape, steps)
            return
        axis = lengths.index(max(lengths))
        half = tile.shape[axis] // 2
        before = (slice(None),) * axis
        self._fill(item_bytes, box, tile[(*before, slice(half))], start)
        self._fill(item_bytes, box, tile[(*before, slice(half, None))], start + half * box.strides[axis])


_Stretch = tuple[int, Box, int]
"""The byte of a tensor at which the bytes of a box begin, the box, and how many they are."""


def _stretches(part: Gathered) -> list[_Stretch]:
    """Return what the tensor is, box after box; [] where its boxes do not follow one another, each in order."""
    stretches: list[_Stretch] = []
    strides = strides_of(part.shape)
    position = 0
    for box in part.boxes:
        start = sum(at * stride for at, stride in zip(box.offsets, strides, strict=True))
        moving = [
            (length, stride, own)
            for length, stride, own in zip(box.shape, strides, box.strides, strict=True)
            if length > 1
        ]
        # Laid in the tensor as in its file: beyond the first, every dimension is whole.
        expected = 1
        for length, stride, own in reversed(moving):
            if not stride == own == expected:
                return []
            expected *= length
        if start != position:
            return []
        size = prod(box.shape)
        stretches.append((start * part.item_bytes, box, size * part.item_bytes))
        position += size
    return stretches


class _Tiles:
    """A tensor in tiles of at most `TILE_BYTES`: whole inner dimensions, a stretch of one, one index of each outer."""

    def __init__(self, part: Gathered) -> None:
        self._part = part
        most = max(1, TILE_BYTES // part.item_bytes)
        self._cut = len(part.shape)
        inner = 1
        while self._cut and inner * part.shape[self._cut - 1] <= most:
            self._cut -= 1
            inner *= part.shape[self._cut]
        self._inner = inner
        self._length = part.shape[self._cut - 1] if self._cut else 1
        self._rows = min(self._length, most // inner)
        self._per_index = -(-self._length // self._rows)

    def number(self, byte: int) -> int:
        """Return which tile holds a byte of the tensor."""
        row = byte // self._part.item_bytes // self._inner
        return row // self._length * self._per_index + row % self._length // self._rows

    def start(self, number: int) -> int:
        """Return the byte at which a tile begins."""
        outer, stretch = divmod(number, self._per_index)
        return (outer * self._length + stretch * self._rows) * self._inner * self._part.item_bytes

    def place(self, number: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the offsets and the shape of a tile, of as many dimensions as the tensor."""
        shape, cut = self._part.shape, self._cut
        outer, stretch = divmod(number, self._per_index)
        if not cut:
            return (0,) * len(shape), shape
        offsets = [0] * len(shape)
        offsets[cut - 1] = stretch * self._rows
        for axis in reversed(range(cut - 1)):
            outer, offsets[axis] = divmod(outer, shape[axis])
        rows = min(self._rows, self._length - stretch * self._rows)
        return tuple(offsets), (1,) * (cut - 1) + (rows,) + shape[cut:]
