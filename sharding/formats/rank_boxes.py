"""Join the pieces of a tensor from several ranks, and refuse missing or overlapping pieces. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from math import prod
from operator import add, gt

from sharding.core.dtypes import BY_NAME, tensor_bytes
from sharding.core.errors import SourceError
from sharding.core.limits import MAX_BOX_LOOKS, MAX_DIMENSIONS
from sharding.core.recipe import Recipe
from sharding.core.text import name_some
from sharding.core.values import Tensor
from sharding.recipes.laid import Box, Laid, is_contiguous
from sharding.recipes.stored import Stored

ALL_RANKS = "Copy the files of all ranks into one folder. All of them must be from the same save."


@dataclass(frozen=True, slots=True)
class SavedBoxes:
    """One tensor in the files: its pieces in any order. `shape` is None if it must be derived from the pieces."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None
    boxes: Sequence[Box]


def assemble(saved: Iterable[SavedBoxes], hint: str = "") -> list[Tensor]:
    """Return each tensor once, joined from its pieces. Raises SourceError for gaps and overlaps, with `hint`."""
    tensors, looks = list[Tensor](), MAX_BOX_LOOKS
    for tensor in saved:
        boxes = sorted((box for box in tensor.boxes if prod(box.shape)), key=lambda box: box.offsets)
        shape = _shape(tensor, boxes, hint)
        looks = _refuse_overlaps(tensor.name, boxes, looks)
        try:
            size = tensor_bytes(tensor.dtype, shape)
        except ValueError as error:
            message = f"The pieces of {tensor.name} in {_files(tensor.boxes)} cannot be joined: {error}."
            raise SourceError(message, ALL_RANKS) from error
        first, bits = boxes[0] if boxes else tensor.boxes[0], BY_NAME[tensor.dtype].bits
        recipe: Recipe = Stored(0, first.file, first.origin, first.origin + size)
        if len(boxes) > 1 or (boxes and not is_contiguous(first.shape, first.strides)):
            if bits % 8:
                raise SourceError(
                    f"The pieces of {tensor.name} cannot be joined, because {tensor.dtype} stores a number in "
                    f"{bits} bits, not in whole bytes.",
                    "Save it again with its trainer in a dtype of whole bytes, such as bf16.",
                )
            recipe = Laid(tuple(boxes), shape, bits // 8)
        tensors.append(Tensor(tensor.name, tensor.dtype, shape, recipe))
    return tensors


def _shape(tensor: SavedBoxes, boxes: Sequence[Box], hint: str) -> tuple[int, ...]:
    stated = [] if tensor.shape is None else [tensor.shape]
    dimensions = set(map(len, chain(stated, *((box.shape, box.offsets) for box in tensor.boxes))))
    if len(dimensions) > 1:
        message = f"The pieces of {tensor.name} in {_files(tensor.boxes)} have different numbers of dimensions."
        raise SourceError(message, ALL_RANKS)
    if (most := max(dimensions)) > MAX_DIMENSIONS:
        message = f"{tensor.name} has {most:,} dimensions. The limit is {MAX_DIMENSIONS}."
        raise SourceError(message, "Reshape it before you save it.")
    around = boxes or tensor.boxes
    reach = map(max, zip(*(map(add, box.offsets, box.shape) for box in around), strict=True))
    shape = tuple(reach) if tensor.shape is None else tensor.shape
    if beyond := [box for box in boxes if any(map(gt, map(add, box.offsets, box.shape), shape))]:
        message = f"A piece of {tensor.name} in {_files(beyond)} reaches beyond its shape {list(shape)}."
        raise SourceError(message, ALL_RANKS)
    there, wanted = sum(prod(box.shape) for box in boxes), prod(shape)
    if there < wanted:
        where = f"{wanted:,} elements are in {_files(around)}"
        message = f"Pieces of {tensor.name} are missing. Only {there:,} of its {where}."
        raise SourceError(message, hint + ALL_RANKS)
    return shape


def _files(boxes: Iterable[Box]) -> str:
    return name_some(sorted({box.file for box in boxes}))


def _refuse_overlaps(name: str, boxes: Sequence[Box], left: int) -> int:
    """Return how many of the `left` looks (at one piece along one axis) remain. Raises SourceError if pieces overlap.

    A tensor is usually cut right across, and each part again. So only pieces that no such cut separates are compared.
    """
    groups = [list(boxes)]
    while groups:
        group = groups.pop()
        for axis in range(len(group[0].shape) if len(group) > 1 else 0):
            left = _spend(name, len(boxes), left, len(group))
            if len(parts := _parted(group, axis)) > 1:
                groups += parts
                break
        else:
            for box, other in combinations(group, 2):
                left = _spend(name, len(boxes), left, len(box.shape))
                if _overlap(box, other):
                    message = f"The same elements of {name} are saved twice, in {_files((box, other))}."
                    raise SourceError(message, ALL_RANKS)
    return left


def _spend(name: str, pieces: int, left: int, steps: int) -> int:
    if left < steps:
        limit = f"The limit is {MAX_BOX_LOOKS:,} steps for all tensors."
        message = f"{name} has {pieces:,} pieces, too many to check for overlaps. {limit}"
        raise SourceError(message, "Save the checkpoint again from fewer ranks.")
    return left - steps


def _parted(boxes: Iterable[Box], axis: int) -> list[list[Box]]:
    """Return the pieces in groups that cuts across `axis` separate."""
    parts = list[list[Box]]()
    reach = 0
    for box in sorted(boxes, key=lambda box: box.offsets[axis]):
        if not parts or box.offsets[axis] >= reach:
            parts.append([])
        parts[-1].append(box)
        reach = max(reach, box.offsets[axis] + box.shape[axis])
    return parts


def _overlap(box: Box, other: Box) -> bool:
    along = zip(box.offsets, box.shape, other.offsets, other.shape, strict=True)
    return all(start < begin + size and begin < start + length for start, length, begin, size in along)
