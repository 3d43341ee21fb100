"""Put together what several ranks hold of a tensor, and say so where a piece is missing or there twice. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from sharding.core.errors import SourceError
from sharding.core.gathered import Box, Gathered, strides_of
from sharding.core.limits import MAX_BOX_PAIRS
from sharding.core.text import name_some
from sharding.core.values import TensorEntry
from sharding.formats.dtypes import BY_NAME, tensor_bytes

_AGAIN = "Copy the files of all ranks of one save into one folder; none may be of another."


@dataclass(frozen=True, slots=True)
class SavedBoxes:
    """What the files say of one tensor: its pieces in any order. `shape` is None where only the pieces tell it."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None
    boxes: tuple[Box, ...]


def assemble(
    saved: Iterable[SavedBoxes], ends: dict[str, int], suspects: Iterable[str] = ()
) -> tuple[list[TensorEntry], list[Gathered]]:
    """Return the tensors, each once, and those among them that are put together of pieces.

    `ends` are the sizes of the files: there the latter lie, one after another, each in the file of its first piece.
    `suspects` are files that may be what is missing. Raises SourceError where pieces do not fill a tensor, or overlap.
    """
    suspects = list(suspects)
    entries, gathered = list[TensorEntry](), list[Gathered]()
    for tensor in saved:
        boxes = sorted((box for box in tensor.boxes if prod(box.shape)), key=lambda box: box.offsets)
        shape = _shape(tensor, boxes, suspects)
        _refuse_overlaps(tensor.name, shape, boxes)
        try:
            size = tensor_bytes(tensor.dtype, shape)
        except ValueError as error:
            raise SourceError(f"{tensor.name} cannot be put together: {error}.", _AGAIN) from error
        home = boxes[0] if boxes else tensor.boxes[0]
        if len(boxes) == 1 and _is_in_order(boxes[0]) or not boxes:
            start = home.origin
        else:
            if BY_NAME[tensor.dtype].bits % 8:
                raise SourceError(
                    f"{tensor.name} is of dtype {tensor.dtype}, whose pieces end within bytes.",
                    "Save it with its trainer in a dtype of whole bytes.",
                )
            start = ends[home.file]
            ends[home.file] = start + size
            item_bytes = BY_NAME[tensor.dtype].bits // 8
            gathered.append(Gathered(home.file, start, start + size, item_bytes, shape, tuple(boxes)))
        entries.append(TensorEntry(tensor.name, tensor.dtype, shape, home.file, start, start + size))
    return entries, gathered


def _is_in_order(box: Box) -> bool:
    moving = zip(box.shape, box.strides, strides_of(box.shape), strict=True)
    return all(own == expected for length, own, expected in moving if length > 1)


def _shape(tensor: SavedBoxes, boxes: Sequence[Box], suspects: Sequence[str]) -> tuple[int, ...]:
    """Return the shape that the pieces fill. Raises SourceError where they do not."""
    ranks = {len(box.shape) for box in tensor.boxes} | {len(box.offsets) for box in tensor.boxes}
    if len(ranks | ({len(tensor.shape)} if tensor.shape is not None else set())) > 1:
        raise SourceError(f"The pieces of {tensor.name} have different numbers of dimensions.", _AGAIN)
    around = boxes or tensor.boxes
    reach = tuple(
        max(start + length for start, length in ends)
        for ends in zip(*(zip(box.offsets, box.shape, strict=True) for box in around), strict=True)
    )
    shape = reach if tensor.shape is None else tensor.shape
    if boxes and any(far > length for far, length in zip(reach, shape, strict=True)):
        raise SourceError(f"A piece of {tensor.name} reaches beyond its shape {list(shape)}.", _AGAIN)
    there, wanted = sum(prod(box.shape) for box in boxes), prod(shape)
    if there < wanted:
        hint = f"{name_some(suspects)} {'is' if len(suspects) == 1 else 'are'} not there. " if suspects else ""
        message = f"Pieces of {tensor.name} are missing: {there:,} of its {wanted:,} elements are there"
        raise SourceError(f"{message}, in {name_some(sorted({box.file for box in around}))}.", hint + _AGAIN)
    return shape


def _refuse_overlaps(name: str, shape: tuple[int, ...], boxes: Sequence[Box]) -> None:
    """Raise SourceError where two pieces hold the same elements, or there are too many to be compared."""
    if len(boxes) < 2:
        return
    # Along the dimension with the most cuts few are open at a time. A number has no dimension: all are.
    axis = max(range(len(shape)), key=lambda axis: len({box.offsets[axis] for box in boxes}), default=None)
    along = boxes if axis is None else sorted(boxes, key=lambda box: box.offsets[axis])
    left = MAX_BOX_PAIRS
    open_boxes: list[Box] = []
    for box in along:
        if axis is not None:
            start = box.offsets[axis]
            open_boxes = [other for other in open_boxes if other.offsets[axis] + other.shape[axis] > start]
        left -= len(open_boxes)
        if left < 0:
            raise SourceError(f"{name} lies in too many pieces that may overlap.", _AGAIN)
        for other in open_boxes:
            if _overlap(box, other):
                where = sorted({box.file, other.file})
                raise SourceError(f"The same elements of {name} are there twice, in {name_some(where)}.", _AGAIN)
        open_boxes.append(box)


def _overlap(one: Box, other: Box) -> bool:
    return all(
        max(starts) < min(start + length for start, length in zip(starts, lengths, strict=True))
        for starts, lengths in zip(
            zip(one.offsets, other.offsets, strict=True), zip(one.shape, other.shape, strict=True), strict=True
        )
    )
