"""Put tensors together from pieces: views, transposes, the parts of ranks, replaced rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from mmap import MAP_PRIVATE, mmap
from typing import Literal

from typing_extensions import override

from sharding.core.limits import BATCH_BYTES
from sharding.core.recipe import Chunk, Extent, Feed, Kept, Recipe
from sharding.recipes.cast import np
from sharding.recipes.low_rank import of_merge
from sharding.recipes.stored import Stored, made_by

TILE_BYTES = 16 << 20
"""Bytes of a tensor that are put in order at once, if it is not stored in order. Each tile reads through it once."""

GATHERED_SPAN_BYTES = 4 << 20
"""Bytes that are read at once for a tile. In a transposed tensor, a tile takes a few columns of neighbouring rows."""


@dataclass(frozen=True, slots=True)
class Box:
    """A piece of a tensor: its element 0, at `offsets`, starts at byte `origin` of `file`; `strides` count elements."""

    file: str
    origin: int
    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    source: int = 0


@dataclass(frozen=True, slots=True)
class Laid(Recipe):
    """A tensor of `shape`, put together from `boxes`, which hold each element once, in tiles of `tile_bytes`."""

    boxes: tuple[Box, ...]
    shape: tuple[int, ...]
    item_bytes: int
    tile_bytes: int = field(default=0, repr=False)  # decides no bytes, so it is not in the key
    kind: Literal["laid"] = "laid"

    @property
    @override
    def size_bytes(self) -> int:
        return prod(self.shape) * self.item_bytes

    @override
    def files(self) -> frozenset[tuple[int, str]]:
        return frozenset((box.source, box.file) for box in self.boxes)

    def reads(self) -> Iterator[Extent]:
        """Yield the boxes if they follow one another; else what each tile needs, which may be nearly all, in spans."""
        if in_order := self._in_order():
            yield from in_order
            return
        for tile in _tiles(self.shape, self.item_bytes, self.tile_bytes or TILE_BYTES):
            for box, part in self._inside(tile):
                for _, start, count in _cuts(box, self.item_bytes, *part):
                    at = box.origin + start * self.item_bytes
                    yield Extent(box.source, box.file, at, at + count * self.item_bytes)

    @override
    def keeps(self) -> Iterator[Extent]:
        return iter(())

    @override
    def make(self, inputs: Feed, kept: Kept) -> Iterator[Chunk]:
        if self._in_order():
            yield from map(Chunk, inputs.pieces(self.size_bytes))
            return
        room: mmap | None = None
        for offsets, shape in _tiles(self.shape, self.item_bytes, self.tile_bytes or TILE_BYTES):
            size = prod(shape) * self.item_bytes
            # Mapped memory goes back to the system as soon as it is dropped. The first tile is the largest.
            room = room or mmap(-1, size, MAP_PRIVATE)
            data = memoryview(room)[:size]
            tile = np.frombuffer(data, f"u{self.item_bytes}").reshape(shape)
            for box, place in self._inside((offsets, shape)):
                for cut, _, count in _cuts(box, self.item_bytes, *place):
                    part = tile[cut]
                    span = np.frombuffer(inputs.take(count * self.item_bytes), tile.dtype)
                    steps = [stride * self.item_bytes for stride in box.strides]
                    part[...] = np.lib.stride_tricks.as_strided(span, part.shape, steps)
            for start in range(0, size, BATCH_BYTES):
                yield Chunk(data[start : start + BATCH_BYTES])

    @override
    def words(self, shape: tuple[int, ...]) -> str:
        names = ", ".join(sorted(name for _, name in self.files()))
        return f"lay({len(self.boxes)} {'piece' if len(self.boxes) == 1 else 'pieces'} of {names})"

    def _in_order(self) -> list[Extent]:
        """Return where the boxes are in their files, if they follow one another in the tensor in order; else []."""
        position, extents = 0, list[Extent]()
        for box in self.boxes:
            strides = strides_of(self.shape)
            offset = sum(at * stride for at, stride in zip(box.offsets, strides, strict=True))
            if offset != position or not (is_contiguous(box.shape, strides) and is_contiguous(box.shape, box.strides)):
                return []
            position += prod(box.shape)
            end = box.origin + prod(box.shape) * self.item_bytes
            extents.append(Extent(box.source, box.file, box.origin, end))
        return extents

    def _inside(self, tile: "_Tile") -> Iterator[tuple[Box, "_Part"]]:
        """Yield each box that overlaps `tile`, and its part inside."""
        for box in self.boxes:
            both = list(zip(*tile, box.offsets, box.shape, strict=True))
            starts = tuple(max(at, begin) for at, _, begin, _ in both)
            ends = [min(at + length, begin + inside) for at, length, begin, inside in both]
            if all(start < end for start, end in zip(starts, ends, strict=True)):
                first = sum((a - b) * stride for a, b, stride in zip(starts, box.offsets, box.strides, strict=True))
                lengths = tuple(b - a for a, b in zip(starts, ends, strict=True))
                yield box, (tuple(a - at for a, at in zip(starts, tile[0], strict=True)), lengths, first)


_Tile = tuple[tuple[int, ...], tuple[int, ...]]  # Where a tile begins in its tensor, and its shape.
_Part = tuple[tuple[int, ...], tuple[int, ...], int]
"""Where a part of a box begins in a tile, its shape, and its first element, counted from the first of the box."""


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a contiguous tensor.

    >>> strides_of((2, 3, 4))
    (12, 4, 1)
    """
    strides = [1]
    for length in reversed(shape[1:]):
        strides.append(strides[-1] * length)
    return tuple(reversed(strides[: len(shape)]))


def with_axis_last(of: Recipe, shape: tuple[int, ...], item_bytes: int, axis: int, tile_bytes: int = 0) -> Laid:
    """Return a tensor that is stored or laid, with one of its axes behind all others.

    >>> with_axis_last(Stored(0, "f", 0, 24), (2, 3), 4, 0).shape
    (3, 2)
    """

    def moved(values: Sequence[int]) -> tuple[int, ...]:
        return (*values[:axis], *values[axis + 1 :], values[axis])

    if isinstance(of, Stored):
        of = Laid((Box(of.file, of.start_byte, (0,) * len(shape), shape, strides_of(shape), of.source),), shape, 1)
    assert isinstance(of, Laid), of
    boxes = (
        replace(box, offsets=moved(box.offsets), shape=moved(box.shape), strides=moved(box.strides)) for box in of.boxes
    )
    return Laid(tuple(boxes), moved(shape), item_bytes, tile_bytes)


def is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether elements with these strides lie one after another. Strides of dimensions of length 1 are free."""
    steps = zip(shape, strides, strides_of(shape), strict=True)
    return all(stride == expected for length, stride, expected in steps if length > 1)


def _tiles(shape: tuple[int, ...], item_bytes: int, tile_bytes: int) -> Iterator[_Tile]:
    """Yield the tiles of a tensor, each of at most `tile_bytes`.

    A tile has whole inner dimensions, a part of one dimension, and one index of each outer dimension.

    >>> list(_tiles((2, 3), 8, 16))
    [((0, 0), (1, 2)), ((0, 2), (1, 1)), ((1, 0), (1, 2)), ((1, 2), (1, 1))]
    """
    most, cut, inner = max(1, tile_bytes // item_bytes), len(shape), 1
    while cut and inner * shape[cut - 1] <= most:
        cut -= 1
        inner *= shape[cut]
    if not cut:
        yield (0,) * len(shape), shape
        return
    length, rows = shape[cut - 1], most // inner
    for outer in range(prod(shape[: cut - 1])):
        offsets = [0] * len(shape)
        for axis in reversed(range(cut - 1)):
            outer, offsets[axis] = divmod(outer, shape[axis])
        for start in range(0, length, rows):
            offsets[cut - 1] = start
            yield tuple(offsets), (1,) * (cut - 1) + (min(rows, length - start),) + shape[cut:]


def _cuts(
    box: Box, item_bytes: int, at: tuple[int, ...], shape: tuple[int, ...], first: int
) -> Iterator[tuple[tuple[slice, ...], int, int]]:
    """Yield a part of a box in spans of its file: its place in the tile, its first element, and the span's elements."""
    lengths = [(length - 1) * stride for length, stride in zip(shape, box.strides, strict=True)]
    count = sum(lengths) + 1
    if count * item_bytes <= GATHERED_SPAN_BYTES:
        yield tuple(slice(start, start + length) for start, length in zip(at, shape, strict=True)), first, count
        return
    axis = lengths.index(max(lengths))
    half = shape[axis] // 2
    for begin, end in ((0, half), (half, shape[axis])):
        start = (*at[:axis], at[axis] + begin, *at[axis + 1 :])
        part = (*shape[:axis], end - begin, *shape[axis + 1 :])
        yield from _cuts(box, item_bytes, start, part, first + begin * box.strides[axis])


@dataclass(frozen=True, slots=True)
class Rows(Recipe):
    """The rows that `of` makes, of `row_bytes` each, with those in `places` (each once) replaced by rows of `by`."""

    of: Recipe
    by: Recipe
    places: tuple[int, ...]
    row_bytes: int
    kind: Literal["rows"] = "rows"

    @override
    def refusal(self, name: str, dtype: str, infinite: int) -> tuple[str, str]:
        return of_merge(name, infinite)

    @override
    def reads(self) -> Iterator[Extent]:
        yield from self.by.reads()
        yield from self.of.reads()

    @override
    def keeps(self) -> Iterator[Extent]:
        yield from self.by.keeps()
        yield from self.of.keeps()

    @override
    def make(self, inputs: Feed, kept: Kept) -> Iterator[Chunk]:
        new_rows = made_by(self.by, inputs, kept)
        by_place = {place: bytes(new_rows.take(self.row_bytes)) for place in self.places}
        source, rows, counted = made_by(self.of, inputs, kept), self.size_bytes // self.row_bytes, 0
        at_once = max(1, BATCH_BYTES // self.row_bytes)
        for start in range(0, rows, at_once):
            data, unchanged = source.take(min(at_once, rows - start) * self.row_bytes), True
            for place in by_place.keys() & set(range(start, start + at_once)):
                row = data[(place - start) * self.row_bytes :][: self.row_bytes]
                unchanged = unchanged and row == by_place[place]
                row[:] = by_place[place]
            unchanged = unchanged and (source.unchanged or isinstance(self.of, Stored))
            overflowed = new_rows.overflowed + source.overflowed - counted
            counted += overflowed
            yield Chunk(data, overflowed, unchanged, source.unsure)

    @override
    def words(self, shape: tuple[int, ...]) -> str:
        count = len(self.places)
        new = f"{count} {'row' if count == 1 else 'rows'} from {self.by.words((count, *shape[1:]))}"
        return f"replace({self.of.words(shape)}; {new})"
