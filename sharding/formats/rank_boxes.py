"""Join the pieces of a tensor from several ranks, and refuse missing or overlapping pieces. Pure.

The `__metadata__` of each file of HuggingFaceStorageWriter has JSON under `DCP_SHARDING_INFO` (torch 2.13,
`torch.distributed.checkpoint._hf_utils`). Its `saved_offsets` say where a piece begins in its tensor. The files do not
state the shape of the whole tensor. It follows from the pieces: the tensor ends with the piece of the last rank.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice, product
from math import prod
from operator import add, gt
from typing import Any

from sharding.core.dtypes import BY_NAME, tensor_bytes
from sharding.core.errors import SourceError
from sharding.core.limits import MAX_BOX_LOOKS, MAX_DIMENSIONS
from sharding.core.recipe import Recipe
from sharding.core.text import MOST_NAMES, as_object, name_some
from sharding.core.values import FileEntry, Tensor
from sharding.formats.names import RANK_SHARD_NAME
from sharding.formats.safetensors_file import Header
from sharding.recipes.laid import Box, Laid, is_contiguous, strides_of
from sharding.recipes.stored import Stored, place_of

_AGAIN = "Copy the files of all ranks into one folder. All of them must be from the same save."


@dataclass(frozen=True, slots=True)
class SavedBoxes:
    """One tensor in the files: its pieces in any order. `shape` is None if it must be derived from the pieces."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None
    boxes: tuple[Box, ...]


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
            raise SourceError(message, _AGAIN) from error
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
    """Return the shape that the pieces fill. Raises SourceError if they do not fill it."""
    ranks = {len(box.shape) for box in tensor.boxes} | {len(box.offsets) for box in tensor.boxes}
    if len(ranks | ({len(tensor.shape)} if tensor.shape is not None else set())) > 1:
        message = f"The pieces of {tensor.name} in {_files(tensor.boxes)} have different numbers of dimensions."
        raise SourceError(message, _AGAIN)
    if (dimensions := ranks.pop()) > MAX_DIMENSIONS:
        message = f"{tensor.name} has {dimensions:,} dimensions. The limit is {MAX_DIMENSIONS}."
        raise SourceError(message, "Reshape it before you save it.")
    around = boxes or tensor.boxes
    reach = tuple(
        max(start + length for start, length in ends)
        for ends in zip(*(zip(box.offsets, box.shape, strict=True) for box in around), strict=True)
    )
    shape = reach if tensor.shape is None else tensor.shape
    if boxes and any(far > length for far, length in zip(reach, shape, strict=True)):
        beyond = [box for box in boxes if any(map(gt, map(add, box.offsets, box.shape), shape))]
        message = f"A piece of {tensor.name} in {_files(beyond)} reaches beyond its shape {list(shape)}."
        raise SourceError(message, _AGAIN)
    there, wanted = sum(prod(box.shape) for box in boxes), prod(shape)
    if there < wanted:
        where = f"{wanted:,} elements are in {_files(around)}"
        message = f"Pieces of {tensor.name} are missing. Only {there:,} of its {where}."
        raise SourceError(message, hint + _AGAIN)
    return shape


def _files(boxes: Iterable[Box]) -> str:
    return name_some(sorted({box.file for box in boxes}))


def _refuse_overlaps(name: str, boxes: Sequence[Box], left: int) -> int:
    """Return how many of the `left` looks remain after all pieces are checked. One look is at one piece along one axis.

    A tensor is usually cut right across, and each part again. So the pieces are first grouped by such cuts. Only pieces
    that no cut separates are compared with each other. Raises SourceError if two pieces hold the same elements.
    """
    groups = [list(boxes)]
    while groups:
        group = groups.pop()
        if len(group) < 2:
            continue
        for axis in range(len(group[0].shape)):
            left = _spend(name, len(boxes), left, len(group))
            if len(parts := _parted(group, axis)) > 1:
                groups += parts
                break
        else:
            for box, other in combinations(group, 2):
                left = _spend(name, len(boxes), left, len(box.shape))
                if _overlap(box, other):
                    message = f"The same elements of {name} are saved twice, in {_files((box, other))}."
                    raise SourceError(message, _AGAIN)
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


_INFO = "DCP_SHARDING_INFO"
_HINT = "Save the checkpoint again with torch's HuggingFaceStorageWriter, or ask its author."


def assemble_headers(files: Sequence[FileEntry], headers: Sequence[Header]) -> list[Tensor]:
    """Return the tensors of all ranks, each once, in the order of the files. Raises SourceError for a wrong piece."""
    dtypes: dict[str, str] = {}
    boxes: dict[str, list[Box]] = {}
    for file, header in zip(files, headers, strict=True):
        offsets = _saved_offsets((header.metadata or {}).get(_INFO), file.path)
        for tensor in header.tensors:
            place, offset = place_of(tensor), offsets.get(tensor.name, (0,) * len(tensor.shape))
            box = Box(place.file, place.start_byte, offset, tensor.shape, strides_of(tensor.shape))
            dtype = dtypes.setdefault(tensor.name, tensor.dtype)
            if dtype != tensor.dtype:
                first = boxes[tensor.name][0].file
                raise SourceError(f"{tensor.name} is {dtype} in {first} and {tensor.dtype} in {file.path}.", _HINT)
            boxes.setdefault(tensor.name, []).append(box)
    saved = (SavedBoxes(name, dtypes[name], None, tuple(pieces)) for name, pieces in boxes.items())
    missing, count = missing_names(files)
    hint = f"{name_some(missing, total=count)} {'is' if count == 1 else 'are'} missing. " if count else ""
    return assemble(saved, hint)


def without_dcp(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Return the metadata of such a file without the keys that are wrong in the result."""
    return {key: text for key, text in (metadata or {}).items() if key not in (_INFO, "DCP_VERSION")}


def missing_names(files: Iterable[FileEntry]) -> tuple[list[str], int]:
    """Return the names of the first missing files, and how many are missing.

    Every rank should have written one file of each number. For n files, up to 10 * n * n can be missing, so only as
    many names are built as a message shows.

    >>> missing_names([FileEntry(f"shard-0000{n}-model-00001-of-00001.safetensors", 1) for n in (1, 3)])
    (['shard-00002-model-00001-of-00001.safetensors'], 1)
    """
    paths = {file.path for file in files}
    parts = [match for path in paths if (match := RANK_SHARD_NAME.fullmatch(path))]
    ranks, count = max(int(part["rank"]) for part in parts), parts[0]["count"]
    ranks = min(ranks, 10 * len(parts))
    numbers = sorted({part["number"] for part in parts})
    names = (
        f"shard-{rank:05d}-model-{number}-of-{count}.safetensors"
        for rank, number in product(range(1, ranks + 1), numbers)
    )
    first = list(islice((name for name in names if name not in paths), MOST_NAMES))
    return first, ranks * len(numbers) - sum(1 <= int(part["rank"]) <= ranks for part in parts)


def _saved_offsets(text: str | None, path: str) -> dict[str, tuple[int, ...]]:
    """Return the offsets of each piece of the file at `path` in its tensor. Raises SourceError."""
    if text is None:
        raise SourceError(f"{path} has the name of a rank file but no {_INFO}.", _HINT)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"The {_INFO} of {path} is not valid JSON.", _HINT) from error
    if not isinstance(document, dict):
        raise SourceError(f"The {_INFO} of {path} does not list tensors.", _HINT)
    saved: dict[str, Any] = {name: as_object(record).get("saved_offsets") for name, record in document.items()}
    for name, offsets in saved.items():
        if not isinstance(offsets, list) or not all(type(item) is int and 0 <= item < 1 << 63 for item in offsets):
            message = f"The {_INFO} of {path} does not say where its piece of {name[:100]} begins."
            raise SourceError(message, _HINT)
    return {name: tuple(offsets) for name, offsets in saved.items()}
