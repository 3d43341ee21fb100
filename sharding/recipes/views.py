"""Take a part of a tensor, turn it, or put tensors together, without reading a byte."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from sharding.core.dtypes import BY_NAME
from sharding.core.errors import SourceError
from sharding.core.recipe import Recipe
from sharding.core.values import Tensor
from sharding.recipes.laid import Box, Laid, is_contiguous, strides_of
from sharding.recipes.stored import Stored


class View(NamedTuple):
    """An array of `shape` whose elements lie in `boxes` of files."""

    boxes: tuple[Box, ...]
    shape: tuple[int, ...]
    item_bytes: int

    def part(self, axis: int, start: int, end: int) -> "View":
        """Return the elements `[start, end)` of an axis."""
        boxes = []
        for box in self.boxes:
            begin = box.offsets[axis]
            first, last = max(start, begin), min(end, begin + box.shape[axis])
            if first < last:
                origin = box.origin + (first - begin) * box.strides[axis] * self.item_bytes
                offsets, shape = _with(box.offsets, axis, first - start), _with(box.shape, axis, last - first)
                boxes.append(replace(box, origin=origin, offsets=offsets, shape=shape))
        return self._replace(boxes=tuple(boxes), shape=_with(self.shape, axis, end - start))

    def row(self, index: int) -> "View":
        """Return element `index` of the first axis, which goes.

        >>> box = Box("f", 0, (0, 0), (2, 3), (3, 1))
        >>> View((box,), (2, 3), 2).row(1).recipe()
        Stored(source=0, file='f', start_byte=6, end_byte=12)
        """
        one = self.part(0, index, index + 1)
        boxes = (
            replace(box, offsets=box.offsets[1:], shape=box.shape[1:], strides=box.strides[1:]) for box in one.boxes
        )
        return self._replace(boxes=tuple(boxes), shape=self.shape[1:])

    def turned(self) -> "View":
        """Return it with its last two axes swapped."""
        boxes = (
            replace(box, offsets=_turned(box.offsets), shape=_turned(box.shape), strides=_turned(box.strides))
            for box in self.boxes
        )
        return self._replace(boxes=tuple(boxes), shape=_turned(self.shape))

    def recipe(self) -> Recipe:
        """Return how its bytes are made, in C order."""
        first, *more = self.boxes
        if not more and is_contiguous(first.shape, first.strides):
            return Stored(first.source, first.file, first.origin, first.origin + prod(self.shape) * self.item_bytes)
        return Laid(self.boxes, self.shape, self.item_bytes)


def view_of(tensor: Tensor) -> View:
    """Return all of a tensor. Raises SourceError if its bytes are computed, or have no whole number of bytes each."""
    recipe, bits = tensor.recipe, BY_NAME[tensor.dtype].bits
    if isinstance(recipe, Laid):
        return View(recipe.boxes, recipe.shape, recipe.item_bytes)
    if not isinstance(recipe, Stored) or bits % 8:
        message = f"{tensor.name} is computed, so it cannot be cut or put together in the same job."
        raise SourceError(message, "Make an ordinary copy first, and then change the layout of that copy.")
    shape = tensor.shape
    box = Box(recipe.file, recipe.start_byte, (0,) * len(shape), shape, strides_of(shape), recipe.source)
    return View((box,), shape, bits // 8)


def stacked(views: Sequence[View]) -> View:
    """Return `views` of one shape along a new first axis."""
    boxes = (
        replace(box, offsets=(number, *box.offsets), shape=(1, *box.shape), strides=(0, *box.strides))
        for number, view in enumerate(views)
        for box in view.boxes
    )
    return View(tuple(boxes), (len(views), *views[0].shape), views[0].item_bytes)


def joined(views: Sequence[View], axis: int) -> View:
    """Return `views` one after another along an axis."""
    boxes, start = list[Box](), 0
    for view in views:
        boxes += (replace(box, offsets=_with(box.offsets, axis, box.offsets[axis] + start)) for box in view.boxes)
        start += view.shape[axis]
    return View(tuple(boxes), _with(views[0].shape, axis, start), views[0].item_bytes)


def from_source(tensors: Iterable[Tensor], number: int) -> tuple[Tensor, ...]:
    """Return `tensors`, as a reader gives them, of the source with a `number` among the inputs of a job."""

    def moved(recipe: Recipe) -> Recipe:
        if isinstance(recipe, Laid):
            return replace(recipe, boxes=tuple(replace(box, source=number) for box in recipe.boxes))
        return recipe._replace(source=number) if isinstance(recipe, Stored) else recipe

    return tuple(tensor._replace(recipe=moved(tensor.recipe)) for tensor in tensors)


def _with(values: tuple[int, ...], axis: int, value: int) -> tuple[int, ...]:
    at = axis % len(values)
    return (*values[:at], value, *values[at + 1 :])


def _turned(values: tuple[int, ...]) -> tuple[int, ...]:
    return (*values[:-2], values[-1], values[-2])
