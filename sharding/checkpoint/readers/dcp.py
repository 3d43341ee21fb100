"""Read a checkpoint of torch.distributed.checkpoint: `.metadata`, and an archive for each piece in `.distcp` files."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from typing import ClassVar

from typing_extensions import override

from sharding.checkpoint.notes import read_ranges
from sharding.checkpoint.readers.reader import Found, Weights
from sharding.checkpoint.readers.safetensors import refuse_long
from sharding.checkpoint.readers.torch_bin import box_of
from sharding.checkpoint.state_dict import final_names, findings_on_run, model_names, state_in
from sharding.core.dtypes import BY_TORCH
from sharding.core.errors import SourceError
from sharding.core.limits import MAX_DCP_BYTES
from sharding.core.protocols import Files
from sharding.core.text import format_bytes, name_some
from sharding.core.values import FileEntry
from sharding.formats.dcp_metadata import SavedChunk, SavedEntry, parse_metadata
from sharding.formats.rank_boxes import ALL_RANKS, SavedBoxes, assemble
from sharding.formats.torch_file import Reader as Archive
from sharding.formats.torch_file import ZipRefused, open_zip
from sharding.formats.torch_globals import PickleRefused, StoredTensor
from sharding.recipes.laid import Box

_EDGE_BYTES = 2 << 10
"""Bytes to read at each end of an archive. Its pickle has about 150 (torch 2.13), its directory 463 for 7 records."""
_JOIN_GAP_BYTES = 16 << 10  # Edges closer than this are read together. The edges of larger pieces are farther apart.
_PIECES_AT_ONCE = 1000  # Their edges stay in memory until all places are known: 4 KB per piece, and what lies between.


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
