"""Put together what HuggingFaceStorageWriter writes: one set of safetensors files a rank. Pure.

Each header says in `__metadata__` under `DCP_SHARDING_INFO`, as JSON, at which `saved_offsets` of a tensor its piece
begins (torch 2.13, `torch.distributed.checkpoint._hf_utils`). What shape the whole tensor has, nothing says but the
pieces: that of the last rank ends it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, product
from typing import Any

from sharding.core.errors import SourceError
from sharding.core.text import MOST_NAMES, name_some
from sharding.core.values import FileEntry, Header, Tensor
from sharding.formats.names import RANK_SHARD_NAME
from sharding.formats.rank_boxes import SavedBoxes, assemble
from sharding.recipes.laid import Box, strides_of
from sharding.recipes.stored import place_of

SHARDING_INFO = "DCP_SHARDING_INFO"
_OF_DCP = (SHARDING_INFO, "DCP_VERSION")

_HINT = "Files of this name are written by torch's HuggingFaceStorageWriter: save again, or ask its author."


def assemble_headers(files: Sequence[FileEntry], headers: Sequence[Header]) -> list[Tensor]:
    """Return the tensors of all ranks, each once; their order is that of the files.

    Raises SourceError where a piece is missing or there twice, or a header does not say where its pieces belong.
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
                raise SourceError(f"{tensor.name} is {dtype} in one file and {tensor.dtype} in another.", _HINT)
            boxes.setdefault(tensor.name, []).append(box)
    saved = (SavedBoxes(name, dtypes[name], None, tuple(pieces)) for name, pieces in boxes.items())
    missing, count = missing_names(files)
    hint = f"{name_some(missing, total=count)} {'is' if count == 1 else 'are'} not there. " if count else ""
    return assemble(saved, hint)


def without_dcp(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Return what of the metadata of such a file is true of the result too."""
    return {key: text for key, text in (metadata or {}).items() if key not in _OF_DCP}


def missing_names(files: Iterable[FileEntry]) -> tuple[list[str], int]:
    """Return the first files, and how many, that would be there if every rank had written one of each number.

    Of n files they may be 10 * n * n, so no more names are made than are shown.

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
    """Return at which element of its tensor each piece in the file at `path` begins. Raises SourceError."""
    if text is None:
        raise SourceError(f"{path} is called as the files of ranks are, and does not say which pieces it holds.", _HINT)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path} says in {SHARDING_INFO} what is no JSON.", _HINT) from error
    if not isinstance(document, dict):
        raise SourceError(f"{path} says in {SHARDING_INFO} nothing of tensors.", _HINT)
    return {name: _offsets(name, record, path) for name, record in document.items()}


def _offsets(name: str, record: Any, path: str) -> tuple[int, ...]:
    offsets = record.get("saved_offsets") if isinstance(record, dict) else None
    if not isinstance(offsets, list) or not all(type(item) is int and 0 <= item < 1 << 63 for item in offsets):
        raise SourceError(f"{path} does not say in {SHARDING_INFO} where its piece of {name[:100]} begins.", _HINT)
    return tuple(offsets)
