"""Put tensors together from pieces: views, transposes, the parts of ranks, replaced rows."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from mmap import MAP_PRIVATE, mmap
from operator import add, mul
from typing import Literal

from typing_extensions import override

from sharding.core.dtypes import BY_NAME
from sharding.core.errors import SourceError
from sharding.core.limits import BATCH_BYTES
from sharding.core.recipe import Chunk, Extent, Feed, Kept, Recipe
from sharding.core.values import Tensor
from sharding.recipes.cast import np
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

    def part(self, axis: int, start: int, end: int, item_bytes: int, zero: int = 0) -> "Box | None":
        """Return what of it is in `[start, end)` of an axis, counted from `zero` from now on; None if nothing is."""
        begin = self.offsets[axis]
        first, last = max(start, begin), min(end, begin + self.shape[axis])
        if first >= last:
            return None
        origin = self.origin + (first - begin) * self.strides[axis] * item_bytes
        offsets, shape = _with(self.offsets, axis, first - zero), _with(self.shape, axis, last - first)
        return replace(self, origin=origin, offsets=offsets, shape=shape)

    def spans(self, item_bytes: int) -> Iterator[tuple["Box", int]]:
        """Yield it in parts for which a span of its file is read at once, each with the elements of its span."""
        reach = [(length - 1) * stride for length, stride in zip(self.shape, self.strides, strict=True)]
        if (count := sum(reach) + 1) * item_bytes <= GATHERED_SPAN_BYTES:
            yield self, count
            return
        axis = reach.index(max(reach))
        start, end = self.offsets[axis], self.offsets[axis] + self.shape[axis]
        middle = (start + end) // 2
        for part in (self.part(axis, start, middle, item_bytes), self.part(axis, middle, end, item_bytes)):
            if part:
                yield from part.spans(item_bytes)


@dataclass(frozen=True, slots=True)
class Laid(Recipe):
    """A tensor of `shape`, put together from `boxes`, which hold each element once, in tiles of `tile_bytes`."""

    boxes: tuple[Box, ...]
    shape: tuple[int, ...]
    item_bytes: int
    tile_bytes: int = field(default=0, repr=False)  # decides no bytes, so it is not in the key
    kind: Literal["laid"] = "laid"

    def part(self, axis: int, start: int, end: int) -> "Laid":
        """Return the elements `[start, end)` of an axis."""
        parts = (box.part(axis, start, end, self.item_bytes, start) for box in self.boxes)
        return replace(self, boxes=tuple(filter(None, parts)), shape=_with(self.shape, axis, end - start))

    def with_axes(self, *axes: int) -> "Laid":
        """Return it with these of its axes, in this order. Those that are left out have one element.

        >>> Laid((Box("f", 0, (0, 0), (2, 3), (3, 1)),), (2, 3), 4).with_axes(1, 0).boxes[0].strides
        (1, 3)
        """

        def of(values: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(values[axis] for axis in axes)

        boxes = (
            replace(box, offsets=of(box.offsets), shape=of(box.shape), strides=of(box.strides)) for box in self.boxes
        )
        return replace(self, boxes=tuple(boxes), shape=of(self.shape))

    def row(self, index: int) -> "Laid":
        """Return element `index` of the first axis, which goes."""
        return self.part(0, index, index + 1).with_axes(*range(1, len(self.shape)))

    def turned(self) -> "Laid":
        """Return it with its last two axes swapped."""
        *outer, last, other = range(len(self.shape))
        return self.with_axes(*outer, other, last)

    def recipe(self) -> Recipe:
        """Return the same as one range of a file, if it is one.

        >>> Laid((Box("f", 0, (0, 0), (2, 3), (3, 1)),), (2, 3), 2).row(1).recipe()
        Stored(source=0, file='f', start_byte=6, end_byte=12)
        """
        places = self._in_order()
        return Stored(*places[0]) if len(places) == 1 else self

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
        for tile in self._tiles(self.tile_bytes or TILE_BYTES):
            for box, count in tile._spans():
                yield Extent(box.source, box.file, box.origin, box.origin + count * self.item_bytes)

    @override
    def keeps(self) -> Iterator[Extent]:
        return iter(())

    @override
    def make(self, inputs: Feed, kept: Kept) -> Iterator[Chunk]:
        if self._in_order():
            yield from map(Chunk, inputs.pieces(self.size_bytes))
            return
        room: mmap | None = None
        for tile in self._tiles(self.tile_bytes or TILE_BYTES):
            # Mapped memory goes back to the system as soon as it is dropped. The first tile is the largest.
            room = room or mmap(-1, tile.size_bytes, MAP_PRIVATE)
            data = memoryview(room)[: tile.size_bytes]
            array = np.frombuffer(data, f"u{self.item_bytes}").reshape(tile.shape)
            for box, count in tile._spans():
                part = array[tuple(map(slice, box.offsets, map(add, box.offsets, box.shape)))]
                span = np.frombuffer(inputs.take(count * self.item_bytes), array.dtype)
                steps = [stride * self.item_bytes for stride in box.strides]
                part[...] = np.lib.stride_tricks.as_strided(span, part.shape, steps)
            for start in range(0, len(data), BATCH_BYTES):
                yield Chunk(data[start : start + BATCH_BYTES])

    @override
    def words(self, shape: tuple[int, ...]) -> str:
        names = ", ".join(sorted(name for _, name in self.files()))
        return f"lay({len(self.boxes)} {'piece' if len(self.boxes) == 1 else 'pieces'} of {names})"

    def _in_order(self) -> list[Extent]:
        """Return where the boxes are in their files, if they follow one another in the tensor in order; else []."""
        position, extents, strides = 0, list[Extent](), strides_of(self.shape)
        for box in self.boxes:
            offset = sum(map(mul, box.offsets, strides))
            if offset != position or not (is_contiguous(box.shape, strides) and is_contiguous(box.shape, box.strides)):
                return []
            position += prod(box.shape)
            end = box.origin + prod(box.shape) * self.item_bytes
            extents.append(Extent(box.source, box.file, box.origin, end))
        return extents

    def _tiles(self, most_bytes: int) -> Iterator["Laid"]:
        """Yield it in parts of at most `most_bytes`: whole inner axes, a part of one, one index of each outer axis."""
        axis = next((axis for axis, length in enumerate(self.shape) if length > 1), None)
        if axis is None or self.size_bytes <= most_bytes:
            yield self
            return
        length = self.shape[axis]
        at_once = max(1, most_bytes // (self.size_bytes // length))
        for start in range(0, length, at_once):
            yield from self.part(axis, start, min(start + at_once, length))._tiles(most_bytes)

    def _spans(self) -> Iterator[tuple[Box, int]]:
        return (span for box in self.boxes for span in box.spans(self.item_bytes))


def laid_of(tensor: Tensor) -> Laid:
    """Return all of a tensor. Raises SourceError if its bytes are computed, or have no whole number of bytes each."""
    recipe, shape, bits = tensor.recipe, tensor.shape, BY_NAME[tensor.dtype].bits
    if isinstance(recipe, Laid):
        return recipe
    if not isinstance(recipe, Stored) or bits % 8:
        message = f"{tensor.name} is computed, so it cannot be cut or put together in the same job."
        raise SourceError(message, "Make an ordinary copy first, and then change the layout of that copy.")
    box = Box(recipe.file, recipe.start_byte, (0,) * len(shape), shape, strides_of(shape), recipe.source)
    return Laid((box,), shape, bits // 8)


def stacked(parts: Sequence[Laid]) -> Laid:
    """Return `parts` of one shape along a new first axis."""
    boxes = (
        replace(box, offsets=(number, *box.offsets), shape=(1, *box.shape), strides=(0, *box.strides))
        for number, part in enumerate(parts)
        for box in part.boxes
    )
    return Laid(tuple(boxes), (len(parts), *parts[0].shape), parts[0].item_bytes)


def joined(parts: Sequence[Laid], axis: int) -> Laid:
    """Return `parts` one after another along an axis."""
    boxes, start = list[Box](), 0
    for part in parts:
        boxes += (replace(box, offsets=_with(box.offsets, axis, box.offsets[axis] + start)) for box in part.boxes)
        start += part.shape[axis]
    return Laid(tuple(boxes), _with(parts[0].shape, axis, start), parts[0].item_bytes)


def from_source(tensors: Iterable[Tensor], number: int) -> tuple[Tensor, ...]:
    """Return `tensors`, as a reader gives them, of the source with a `number` among the inputs of a job."""

    def moved(recipe: Recipe) -> Recipe:
        if isinstance(recipe, Laid):
            return replace(recipe, boxes=tuple(replace(box, source=number) for box in recipe.boxes))
        return recipe._replace(source=number) if isinstance(recipe, Stored) else recipe

    return tuple(tensor._replace(recipe=moved(tensor.recipe)) for tensor in tensors)


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a contiguous tensor.

    >>> strides_of((2, 3, 4))
    (12, 4, 1)
    """
    return tuple(prod(shape[axis:]) for axis in range(1, len(shape) + 1))


def is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether elements with these strides lie one after another. Strides of dimensions of length 1 are free."""
    steps = zip(shape, strides, strides_of(shape), strict=True)
    return all(stride == expected for length, stride, expected in steps if length > 1)


def _with(values: tuple[int, ...], axis: int, value: int) -> tuple[int, ...]:
    at = axis % len(values)
    return (*values[:at], value, *values[at + 1 :])


@dataclass(frozen=True, slots=True)
class Rows(Recipe):
    """The rows that `of` makes, of `row_bytes` each, with those in `places` (each once) replaced by rows of `by`."""

    of: Recipe
    by: Recipe
    places: tuple[int, ...]
    row_bytes: int
    kind: Literal["rows"] = "rows"

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
