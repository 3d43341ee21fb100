"""Put together what HuggingFaceStorageWriter writes: one set of safetensors files a rank. Pure.

Each header says in `__metadata__` under `DCP_SHARDING_INFO`, as JSON, at which `saved_offsets` of a tensor its piece
begins (torch 2.13, `torch.distributed.checkpoint._hf_utils`). What shape the whole tensor has, nothing says but the
pieces: that of the last rank ends it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sharding.core.errors import SourceError
from sharding.core.gathered import Box, Gathered, strides_of
from sharding.core.values import FileEntry, Header, TensorEntry
from sharding.formats.names import RANK_SHARD_NAME
from sharding.formats.rank_boxes import SavedBoxes, assemble

SHARDING_INFO = "DCP_SHARDING_INFO"
_OF_DCP = (SHARDING_INFO, "DCP_VERSION")

_HINT = "Files of this name are written by torch's HuggingFaceStorageWriter: save again, or ask its author."


def assemble_headers(files: Sequence[FileEntry], headers: Sequence[Header]) -> tuple[list[TensorEntry], list[Gathered]]:
    """Return the tensors of all ranks, each once, and which of them are put together; their order is that of the files.

    Raises SourceError where a piece is missing or there twice, or a header does not say where its pieces belong.
    """
    saved: dict[str, SavedBoxes] = {}
    for file, header in zip(files, headers, strict=True):
        offsets = saved_offsets((header.metadata or {}).get(SHARDING_INFO), file.path)
        for tensor in header.tensors:
            first = (0,) * len(tensor.shape)
            box = Box(
                tensor.file, tensor.start_byte, offsets.get(tensor.name, first), tensor.shape, strides_of(tensor.shape)
            )
            before = saved.get(tensor.name, SavedBoxes(tensor.name, tensor.dtype, None, ()))
            if before.dtype != tensor.dtype:
                raise SourceError(f"{tensor.name} is {before.dtype} in one file and {tensor.dtype} in another.", _HINT)
            saved[tensor.name] = SavedBoxes(tensor.name, tensor.dtype, None, (*before.boxes, box))
    return assemble(saved.values(), {file.path: file.bytes for file in files}, missing_names(files))


def without_dcp(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Return what of the metadata of such a file is true of the result too."""
    return {key: text for key, text in (metadata or {}).items() if key not in _OF_DCP}


def missing_names(files: Iterable[FileEntry]) -> list[str]:
    """Return the files that would be there if every rank had written one of each number.

    >>> missing_names([FileEntry(f"shard-0000{n}-model-00001-of-00001.safetensors", 1) for n in (1, 3)])
    ['shard-00002-model-00001-of-00001.safetensors']
    """
    found = {file.path for file in files}
    parts = [match for path in found if (match := RANK_SHARD_NAME.fullmatch(path))]
    ranks, count = max(int(part["rank"]) for part in parts), parts[0]["count"]
    numbers = sorted({part["number"] for part in parts})
    names = [
        f"shard-{rank:05d}-model-{number}-of-{count}.safetensors"
        for rank in range(1, min(ranks, 10 * len(parts)) + 1)
        for number in numbers
    ]
    return [name for name in names if name not in found]


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
    return {name: _offsets(name, said, path) for name, said in document.items()}


def _offsets(name: str, said: Any, path: str) -> tuple[int, ...]:
    offsets = said.get("saved_offsets") if isinstance(said, dict) else None
    if not isinstance(offsets, list) or not all(type(item) is int and 0 <= item < 1 << 63 for item in offsets):
        raise SourceError(f"{path} does not say in {SHARDING_INFO} where its piece of {name[:100]} begins.", _HINT)
    return tuple(offsets)
