"""Join the files of HuggingFaceStorageWriter, which writes one set of safetensors files per rank. Pure.

The `__metadata__` of each header has JSON under `DCP_SHARDING_INFO` (torch 2.13,
`torch.distributed.checkpoint._hf_utils`). Its `saved_offsets` say where a piece begins in its tensor. The files do not
state the shape of the whole tensor. It follows from the pieces: the tensor ends with the piece of the last rank.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, product
from typing import Any

from sharding.core.errors import SourceError
from sharding.core.text import MOST_NAMES, name_some
from sharding.core.values import FileEntry, Tensor
from sharding.formats.names import RANK_SHARD_NAME
from sharding.formats.rank_boxes import SavedBoxes, assemble
from sharding.formats.safetensors_header import Header
from sharding.recipes.laid import Box, strides_of
from sharding.recipes.stored import place_of

SHARDING_INFO = "DCP_SHARDING_INFO"
_OF_DCP = (SHARDING_INFO, "DCP_VERSION")

_HINT = "Save the checkpoint again with torch's HuggingFaceStorageWriter, or ask its author."


def assemble_headers(files: Sequence[FileEntry], headers: Sequence[Header]) -> list[Tensor]:
    """Return the tensors of all ranks, each once, in the order of the files.

    Raises SourceError if a piece is missing or there twice, or a header does not say where its pieces belong.
    """
    dtypes: dict[str, str] = {}
    boxes: dict[str, list[Box]] = {}
    for file, header in zip(files, headers, strict=True):
        offsets = saved_offsets((header.metadata or {}).get(SHARDING_INFO), file.path)
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
    return {key: text for key, text in (metadata or {}).items() if key not in _OF_DCP}


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


def saved_offsets(text: str | None, path: str) -> Mapping[str, tuple[int, ...]]:
    """Return the offsets of each piece of the file at `path` in its tensor. Raises SourceError."""
    if text is None:
        raise SourceError(f"{path} has the name of a rank file but no {SHARDING_INFO}.", _HINT)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"The {SHARDING_INFO} of {path} is not valid JSON.", _HINT) from error
    if not isinstance(document, dict):
        raise SourceError(f"The {SHARDING_INFO} of {path} does not list tensors.", _HINT)
    return {name: _offsets(name, record, path) for name, record in document.items()}


def _offsets(name: str, record: Any, path: str) -> tuple[int, ...]:
    offsets = record.get("saved_offsets") if isinstance(record, dict) else None
    if not isinstance(offsets, list) or not all(type(item) is int and 0 <= item < 1 << 63 for item in offsets):
        message = f"The {SHARDING_INFO} of {path} does not say where its piece of {name[:100]} begins."
        raise SourceError(message, _HINT)
    return tuple(offsets)
