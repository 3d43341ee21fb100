"""Read tensors that do not lie in order (views, transposes, expanded ones) as if they did, in bounded memory."""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Any

from sharding.core.extras import require
from sharding.core.limits import BATCH_BYTES, GATHERED_SPAN_BYTES, TILE_BYTES
from sharding.core.protocols import Source
from sharding.core.values import Checkpoint, Gathered
from sharding.transfer.source_view import SourceView

_TILES_KEPT = 2
"""One for each thread that reads ahead."""


def gathering(source: Source, checkpoint: Checkpoint) -> Source:
    """Return the source that the tensors of `checkpoint` are read from: `source`, or a view of it. Raises Refused."""
    if not checkpoint.gathered:
        return source
    require("Writing views (transposed, cut out or expanded) row by row", ["numpy"])
    return GatheringSource(source, checkpoint.gathered)


class GatheringSource(SourceView):
    """A source whose files go on beyond their end with tensors laid in order. See `protocols.Source`."""

    def __init__(self, source: Source, gathered: Sequence[Gathered]) -> None:
        """Lay each of `gathered` in order when it is read."""
        super().__init__(source)
        self._parts: dict[str, list[Gathered]] = {}
        for part in gathered:
            self._parts.setdefault(part.file, []).append(part)
        self._tiles: OrderedDict[tuple[Gathered, int], bytes] = OrderedDict()
        self._lock = Lock()

    def read(self, file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        """Yield the bytes `[start_byte, end_byte)` of `file` in bounded chunks. Raises SourceError."""
        parts = self._parts.get(file, [])
        if not parts or end_byte <= parts[0].start_byte:
            yield from self._source.read(file, start_byte, end_byte)
            return
        if start_byte < parts[0].start_byte:
            yield from self._source.read(file, start_byte, parts[0].start_byte)
            start_byte = parts[0].start_byte
        while start_byte < end_byte:
            part = parts[bisect_right(parts, start_byte, key=lambda part: part.start_byte) - 1]
            tiles = _Tiles(part)
            number = tiles.number(start_byte - part.start_byte)
            tile_start = part.start_byte + tiles.start(number)
            tile = self._tile(part, tiles, number)
            stop = min(end_byte, tile_start + len(tile), start_byte + BATCH_BYTES)
            yield tile[start_byte - tile_start : stop - tile_start]
            start_byte = stop

    def _tile(self, part: Gathered, tiles: "_Tiles", number: int) -> bytes:
        with self._lock:
            key = part, number
            if key not in self._tiles:
                while len(self._tiles) >= _TILES_KEPT:
                    self._tiles.popitem(last=False)
                self._tiles[key] = self._gather(part, *tiles.box(number))
            self._tiles.move_to_end(key)
            return self._tiles[key]

    def _gather(self, part: Gathered, shape: tuple[int, ...], start: int) -> bytes:
        import numpy as np

        tile = np.empty(shape, f"u{part.item_bytes}")
        self._fill(part, tile, start)
        return tile.tobytes()

    def _fill(self, part: Gathered, tile: Any, start: int) -> None:
        """Fill `tile`, whose first element is element `start` of the file as counted from the tensor's own first."""
        import numpy as np

        lengths = [(length - 1) * stride for length, stride in zip(tile.shape, part.strides, strict=True)]
        first, last = start, start + sum(lengths)
        if (last + 1 - first) * part.item_bytes <= GATHERED_SPAN_BYTES:
            at = part.origin + first * part.item_bytes
            data = b"".join(self._source.read(part.file, at, part.origin + (last + 1) * part.item_bytes))
            steps = [stride * part.item_bytes for stride in part.strides]
            tile[...] = np.lib.stride_tricks.as_strided(np.frombuffer(data, tile.dtype), tile.shape, steps)
            return
        axis = lengths.index(max(lengths))
        half = tile.shape[axis] // 2
        before = (slice(None),) * axis
        self._fill(part, tile[(*before, slice(half))], start)
        self._fill(part, tile[(*before, slice(half, None))], start + half * part.strides[axis])


class _Tiles:
    """A tensor in boxes of at most `TILE_BYTES`: whole inner dimensions, a stretch of one, one index of each outer."""

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

    def box(self, number: int) -> tuple[tuple[int, ...], int]:
        """Return the shape of a tile, of as many dimensions as the tensor, and its first element."""
        part, cut = self._part, self._cut
        outer, stretch = divmod(number, self._per_index)
        if not cut:
            return part.shape, 0
        start = stretch * self._rows * part.strides[cut - 1]
        for axis in reversed(range(cut - 1)):
            outer, index = divmod(outer, part.shape[axis])
            start += index * part.strides[axis]
        rows = min(self._rows, self._length - stretch * self._rows)
        return (1,) * (cut - 1) + (rows,) + part.shape[cut:], start
