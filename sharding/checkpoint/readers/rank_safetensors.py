"""Read the safetensors files of all ranks of a training run, each with its own pieces of the tensors.

The `__metadata__` of each file of HuggingFaceStorageWriter has JSON under `DCP_SHARDING_INFO` (torch 2.13,
`torch.distributed.checkpoint._hf_utils`). Its `saved_offsets` say where a piece begins in its tensor. The files do not
state the shape of the whole tensor. It follows from the pieces: the tensor ends with the piece of the last rank.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, product
from typing import Any

from sharding.checkpoint.readers.reader import Found, Weights
from sharding.checkpoint.readers.safetensors import merge_metadata, read_headers
from sharding.checkpoint.state_dict import final_names, findings_on_run, state_in
from sharding.core.errors import SourceError
from sharding.core.text import MOST_NAMES, as_object, name_some, parsed_json
from sharding.core.values import FileEntry, Finding
from sharding.formats.names import RANK_SHARD_NAME
from sharding.formats.rank_boxes import SavedBoxes, assemble
from sharding.formats.safetensors_file import Header
from sharding.recipes.laid import Box, strides_of
from sharding.recipes.stored import place_of

_INFO = "DCP_SHARDING_INFO"
_HINT = "Save the checkpoint again with torch's HuggingFaceStorageWriter, or ask its author."


def read_rank_safetensors(found: Found) -> Weights:
    """Return the weights in files of torch's HuggingFaceStorageWriter."""
    files = found.files
    headers = read_headers(found.source, files, found.most_tensors)
    # Each name is one key of a flat dictionary, because a wrapper and a module of that name look the same.
    stored = dict.fromkeys(tensor.name for header in headers for tensor in header.tensors)
    state = state_in({name: (name,) for name in stored})
    names = final_names({name: name for name in stored if name not in state}, state)
    left_out = Counter[str]()
    for tensor in (tensor for header in headers for tensor in header.tensors if tensor.name in state):
        left_out[tensor.name] += tensor.bytes
    missing, number = missing_names(files)
    missing_files = name_some(missing, total=number)
    hint = f"{missing_files} {'is' if number == 1 else 'are'} missing. " if number else ""
    saved = (replace(one, name=names[one.name]) for one in saved_boxes(files, headers) if one.name in names)
    tensors = assemble(saved, hint)
    findings = list(findings_on_run(found.source, files, tensors, left_out, (), names))
    if number:
        message = f"Some ranks saved fewer files than others. Missing files: {missing_files}."
        hint = "No piece is missing in the middle. One may be missing at the end. To check that, add --base "
        findings.append(Finding("warning", "ranks-uneven", message, f"{hint}owner/name."))
    metadata, conflicts = merge_metadata(headers, (_INFO, "DCP_VERSION"))
    return Weights(files, tensors, [*findings, *conflicts], metadata)


def saved_boxes(files: Sequence[FileEntry], headers: Sequence[Header]) -> Iterator[SavedBoxes]:
    """Yield the pieces of each tensor of all ranks, in the order of the files. Raises SourceError for a wrong piece."""
    dtypes: dict[str, str] = {}
    boxes: dict[str, list[Box]] = {}
    for file, header in zip(files, headers, strict=True):
        offsets = _saved_offsets((header.metadata or {}).get(_INFO), file.path)
        for tensor in header.tensors:
            place, offset = place_of(tensor), offsets.get(tensor.name, (0,) * len(tensor.shape))
            box = Box(place.file, place.start_byte, offset, tensor.shape, strides_of(tensor.shape))
            if (dtype := dtypes.setdefault(tensor.name, tensor.dtype)) != tensor.dtype:
                first = boxes[tensor.name][0].file
                raise SourceError(f"{tensor.name} is {dtype} in {first} and {tensor.dtype} in {file.path}.", _HINT)
            boxes.setdefault(tensor.name, []).append(box)
    return (SavedBoxes(name, dtypes[name], None, pieces) for name, pieces in boxes.items())


def refuse_several(files: Sequence[str]) -> None:
    """Raise SourceError if these `files` are of several saves."""
    counts = sorted({match["count"] for match in map(RANK_SHARD_NAME.fullmatch, files) if match})
    if len(counts) > 1:
        message = f"The folder has rank files of several saves, with {' and '.join(counts)} files each."
        raise SourceError(message, "Keep the files of each save in their own folder.")


def missing_names(files: Iterable[FileEntry]) -> tuple[list[str], int]:
    """Return the names of the first missing files, and how many are missing.

    Every rank should have one file of each number. Of n files, up to 10 * n * n can be missing, so few names are built.

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
    if text is None:
        raise SourceError(f"{path} has the name of a rank file but no {_INFO}.", _HINT)
    document = parsed_json(text)
    if not isinstance(document, dict):
        raise SourceError(f"The {_INFO} of {path} is not a JSON object of tensors.", _HINT)
    saved: dict[str, Any] = {name: as_object(record).get("saved_offsets") for name, record in document.items()}
    for name, offsets in saved.items():
        if not isinstance(offsets, list) or not all(type(item) is int and 0 <= item < 1 << 63 for item in offsets):
            message = f"The {_INFO} of {path} does not say where its piece of {name[:100]} begins."
            raise SourceError(message, _HINT)
    return {name: tuple(offsets) for name, offsets in saved.items()}
