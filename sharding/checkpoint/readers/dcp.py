"""Read what torch.distributed.checkpoint saved: `.metadata` with archives of pieces (`.distcp`), or safetensors files.

The `__metadata__` of each file of HuggingFaceStorageWriter has JSON under `DCP_SHARDING_INFO` (torch 2.13,
`torch.distributed.checkpoint._hf_utils`). Its `saved_offsets` say where a piece begins in its tensor. The files do not
state the shape of the whole tensor. It follows from the pieces: the tensor ends with the piece of the last rank.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, pairwise, product
from typing import Any, ClassVar

from typing_extensions import override

from sharding.checkpoint.notes import read_ranges
from sharding.checkpoint.readers.reader import Found, Weights
from sharding.checkpoint.readers.safetensors import merge_metadata, read_headers, refuse_long
from sharding.checkpoint.readers.torch_bin import box_of
from sharding.checkpoint.state_dict import final_names, findings_on_run, model_names, state_in
from sharding.core.dtypes import BY_TORCH
from sharding.core.errors import SourceError
from sharding.core.limits import MAX_DCP_BYTES
from sharding.core.protocols import Files
from sharding.core.text import MOST_NAMES, as_object, format_bytes, name_some, parsed_json
from sharding.core.values import FileEntry, Finding
from sharding.formats.dcp_metadata import SavedChunk, SavedEntry, parse_metadata
from sharding.formats.names import RANK_SHARD_NAME
from sharding.formats.rank_boxes import ALL_RANKS, SavedBoxes, assemble
from sharding.formats.safetensors_file import Header
from sharding.formats.torch_file import Reader as Archive
from sharding.formats.torch_file import ZipRefused, open_zip
from sharding.formats.torch_globals import PickleRefused, StoredTensor
from sharding.recipes.laid import Box, strides_of
from sharding.recipes.stored import place_of

_EDGE_BYTES = 2 << 10
"""Bytes to read at each end of an archive. Its pickle has about 150 (torch 2.13), its directory 463 for 7 records."""
_JOIN_GAP_BYTES = 16 << 10  # Edges closer than this are read together. The edges of larger pieces are farther apart.
_PIECES_AT_ONCE = 1000  # Their edges stay in memory until all places are known: 4 KB per piece, and what lies between.
_INFO = "DCP_SHARDING_INFO"
_AGAIN = "Save the checkpoint again with torch's HuggingFaceStorageWriter, or ask its author."


def read_dcp(found: Found) -> Weights:
    """Return the weights in a folder that torch.distributed.checkpoint saved."""
    source, by_path = found.source, found.source.by_path
    (listed,) = found.files
    refuse_long(source, listed.bytes, found.most_tensors)
    if listed.bytes > MAX_DCP_BYTES:
        sizes = f"{format_bytes(listed.bytes)}. The limit is {format_bytes(MAX_DCP_BYTES)}"
        hint = "Save the model without its optimizer, which takes two thirds of it, or from fewer ranks."
        raise SourceError(f"{listed.path}, the list of all saved pieces, has {sizes}.", hint)
    try:
        entries, others = parse_metadata(b"".join(source.read(listed.path, 0, listed.bytes)))
    except PickleRefused as error:
        message = f"{listed.path}, the list of all saved pieces, cannot be read: {error}."
        raise SourceError(message, "Copy it again, or ask its author to save the checkpoint again.") from error
    state = state_in({entry.name: entry.path for entry in entries})
    weights = [entry for entry in entries if entry.name not in state]
    names = final_names(model_names({entry.name: entry.path for entry in weights}), state or others)
    for entry in weights:
        if not BY_TORCH[entry.dtype].name:
            message = f"{entry.name} has the dtype {entry.dtype}, which safetensors does not support."
            raise SourceError(message, "Save it again in another dtype.")
    boxes = _boxes(source, weights, by_path)
    tensors = assemble(
        SavedBoxes(names[entry.name], BY_TORCH[entry.dtype].name, entry.shape, boxes[entry.name]) for entry in weights
    )
    files = [by_path[name] for name in sorted({chunk.file for entry in weights for chunk in entry.chunks})]
    trained = [entry for entry in entries if entry.name in state]
    left_out = {entry.name: sum(chunk.end_byte - chunk.start_byte for chunk in entry.chunks) for entry in trained}
    return Weights(files, tensors, list(findings_on_run(source, files, tensors, left_out, others, names)))


def _boxes(source: Files, entries: Sequence[SavedEntry], files: Mapping[str, FileEntry]) -> dict[str, list[Box]]:
    """Return where the pieces of each of `entries` lie, by name. Raises SourceError if files do not match them."""
    inside: dict[str, list[tuple[SavedEntry, SavedChunk]]] = {}
    for entry in entries:
        for chunk in entry.chunks:
            inside.setdefault(chunk.file, []).append((entry, chunk))
    if missing := sorted(inside.keys() - files.keys()):
        message = f"{len(missing)} of the {len(inside)} files that .metadata names are missing: {name_some(missing)}."
        raise SourceError(message, ALL_RANKS)
    for name, pieces in sorted(inside.items()):
        if end := next((chunk.end_byte for _, chunk in pieces if chunk.end_byte > files[name].bytes), 0):
            raise SourceError(f"{files[name].path} is too short. It ends before byte {end}.", ALL_RANKS)
        pieces.sort(key=lambda piece: piece[1].start_byte)
        for (entry, before), (other, after) in pairwise(pieces):  # torch writes them one after another
            if after.start_byte < before.end_byte:
                both = name_some(list(dict.fromkeys((entry.name[:100], other.name[:100]))))
                raise SourceError(f"Two pieces of {both} overlap in {files[name].path}.", ALL_RANKS)
    boxes: dict[str, list[Box]] = {entry.name: [] for entry in entries}
    for name, pieces in sorted(inside.items()):
        for first in range(0, len(pieces), _PIECES_AT_ONCE):
            some = pieces[first : first + _PIECES_AT_ONCE]
            edges = [(files[name].path, *edge) for _, chunk in some for edge in _edges(chunk)]
            read = zip(edges, read_ranges(source, edges, _JOIN_GAP_BYTES), strict=True)
            for entry, chunk in some:
                known = [(start - chunk.start_byte, data) for (_, start, _), data in islice(read, 2)]
                piece = _Piece(source, FileEntry(name, chunk.end_byte - chunk.start_byte), known)
                boxes[entry.name].append(_box(entry, chunk, files[name], piece))
    return boxes


def _edges(chunk: SavedChunk) -> list[tuple[int, int]]:
    start, end = chunk.start_byte, chunk.end_byte
    return [(start, min(end, start + _EDGE_BYTES)), (max(start, end - _EDGE_BYTES), end)]


class _Piece(Archive):
    """One archive in a file, read as if it were a file, of which only the edges are known."""

    tail_bytes: ClassVar[int] = _EDGE_BYTES

    @override
    def exactly(self, start: int, end: int) -> bytes:
        if (data := self.known(start, end)) is None:
            raise ZipRefused("it has more than one tensor")
        return data


def _box(entry: SavedEntry, chunk: SavedChunk, file: FileEntry, piece: _Piece) -> Box:
    try:
        tensor, locate = open_zip(piece)
        if not isinstance(tensor, StoredTensor):
            raise PickleRefused("it is not a tensor")
        if (tensor.dtype, tensor.shape) != (entry.dtype, chunk.shape):
            expected = f"{entry.dtype} {list(chunk.shape)}"
            raise PickleRefused(f"it is {tensor.dtype} {list(tensor.shape)}, but .metadata says {expected}")
        box = box_of(entry.name, tensor, locate([tensor.storage])[tensor.storage.key], file, chunk.offsets)
        return replace(box, origin=box.origin + chunk.start_byte)
    except (PickleRefused, ZipRefused) as error:
        message = f"The piece of {entry.name[:100]} in {file.path} cannot be read: {error}."
        raise SourceError(message, ALL_RANKS) from error


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
                raise SourceError(f"{tensor.name} is {dtype} in {first} and {tensor.dtype} in {file.path}.", _AGAIN)
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
    """Return the offsets of each piece of the file at `path` in its tensor. Raises SourceError."""
    if text is None:
        raise SourceError(f"{path} has the name of a rank file but no {_INFO}.", _AGAIN)
    document = parsed_json(text)
    if not isinstance(document, dict):
        raise SourceError(f"The {_INFO} of {path} is not a JSON object of tensors.", _AGAIN)
    saved: dict[str, Any] = {name: as_object(record).get("saved_offsets") for name, record in document.items()}
    for name, offsets in saved.items():
        if not isinstance(offsets, list) or not all(type(item) is int and 0 <= item < 1 << 63 for item in offsets):
            message = f"The {_INFO} of {path} does not say where its piece of {name[:100]} begins."
            raise SourceError(message, _AGAIN)
    return {name: tuple(offsets) for name, offsets in saved.items()}
