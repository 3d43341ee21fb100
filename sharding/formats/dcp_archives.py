"""Find pieces of tensors in `.distcp` files, each a row of archives of `torch.save`. Runs no code from them."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import ClassVar

from sharding.core.errors import SourceError
from sharding.core.protocols import Files
from sharding.core.text import name_some
from sharding.core.threads import readers
from sharding.core.values import FileEntry
from sharding.formats.dcp_metadata import SavedChunk, SavedEntry
from sharding.formats.torch_checkpoint import lies_in_order, moving_strides, origin_of
from sharding.formats.torch_file import Reader, ZipRefused, open_zip
from sharding.formats.torch_globals import PickleRefused, StoredTensor
from sharding.recipes.laid import Box

_EDGE_BYTES = 2 << 10
"""How many bytes of an archive are read at each end, and the limit for its pickle and its directory. With torch 2.13,
the pickle has about 150 bytes and the directory has 463 bytes for 7 records. 44 records fit."""

_JOIN_GAP_BYTES = 16 << 10  # Edges closer than this are read together. The edges of larger pieces are farther apart.
_PIECES_AT_ONCE = 1000
"""Their edges stay in memory until all places are known. That is 4 KB per piece, plus the bytes in between."""
_HINT = "Copy the files of all ranks into one folder. All of them must be from the same save."


def find_boxes(
    source: Files, entries: Sequence[SavedEntry], files: Mapping[str, FileEntry]
) -> dict[str, tuple[Box, ...]]:
    """Return where the pieces of each of `entries` lie, by name. Raises SourceError if files do not match them."""
    inside: dict[str, list[tuple[SavedEntry, SavedChunk]]] = {}
    for entry in entries:
        for chunk in entry.chunks:
            inside.setdefault(chunk.file, []).append((entry, chunk))
    if missing := sorted(inside.keys() - files.keys()):
        message = f"{len(missing)} of the {len(inside)} files that .metadata names are missing: {name_some(missing)}."
        raise SourceError(message, _HINT)
    for name, pieces in sorted(inside.items()):
        ends = (chunk.start_byte + chunk.bytes for _, chunk in pieces)
        if end := next((end for end in ends if end > files[name].bytes), 0):
            raise SourceError(f"{files[name].path} is too short. It ends before byte {end}.", _HINT)
        pieces.sort(key=lambda piece: piece[1].start_byte)
        for (entry, before), (other, after) in pairwise(pieces):  # torch writes them one after another
            if after.start_byte < before.start_byte + before.bytes:
                both = name_some(list(dict.fromkeys((entry.name[:100], other.name[:100]))))
                raise SourceError(f"Two pieces of {both} overlap in {files[name].path}.", _HINT)
    boxes_of: dict[str, list[Box]] = {entry.name: [] for entry in entries}
    for name, pieces in sorted(inside.items()):
        for first in range(0, len(pieces), _PIECES_AT_ONCE):
            some = pieces[first : first + _PIECES_AT_ONCE]
            edges = _Edges(source, files[name], (chunk for _, chunk in some))
            for entry, chunk in some:
                boxes_of[entry.name].append(_box(entry, chunk, edges, files[name]))
    return {name: tuple(boxes) for name, boxes in boxes_of.items()}


class _Edges:
    """The first and last bytes of the archives in a file, read once."""

    def __init__(self, source: Files, file: FileEntry, chunks: Iterable[SavedChunk]) -> None:
        self.source, self.file = source, file
        ranges = _joined(chunks)
        with readers(source.ranges_at_once) as pool:
            self._known = list(pool.map(lambda place: b"".join(source.read(file.path, *place)), ranges))
        self._starts = [start for start, _ in ranges]

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes `[start, end)`. Raises ZipRefused if they were not read."""
        index = bisect_right(self._starts, start) - 1
        if index < 0 or end > self._starts[index] + len(self._known[index]):
            raise ZipRefused("it has more than one tensor")
        return self._known[index][start - self._starts[index] : end - self._starts[index]]


def _joined(chunks: Iterable[SavedChunk]) -> list[tuple[int, int]]:
    """Return ranges that cover both edges of all `chunks`. Edges close together share a range."""
    edges = list[tuple[int, int]]()
    for chunk in chunks:
        start, end = chunk.start_byte, chunk.start_byte + chunk.bytes
        edges += [(start, min(end, start + _EDGE_BYTES)), (max(start, end - _EDGE_BYTES), end)]
    ranges = list[tuple[int, int]]()
    for first, last in sorted(edges):
        if ranges and first <= ranges[-1][1] + _JOIN_GAP_BYTES:
            ranges[-1] = ranges[-1][0], max(ranges[-1][1], last)
        elif last > first:
            ranges.append((first, last))
    return ranges


class _Piece(Reader):
    """One archive in a file, read as if it were a file."""

    tail_bytes: ClassVar[int] = _EDGE_BYTES

    def __init__(self, edges: _Edges, chunk: SavedChunk) -> None:
        super().__init__(edges.source, FileEntry(edges.file.path, chunk.bytes))
        self._edges = edges
        self._start = chunk.start_byte

    def read(self, start: int, end: int) -> bytes:
        end = min(end, self.file.bytes)
        if end - start > _EDGE_BYTES:
            raise ZipRefused("it has more than one tensor")
        return self._edges.read(self._start + start, self._start + end)

    def exactly(self, start: int, end: int) -> bytes:
        return self.read(start, end)


def _box(entry: SavedEntry, chunk: SavedChunk, edges: _Edges, file: FileEntry) -> Box:
    try:
        tensor, locate = open_zip(_Piece(edges, chunk))
        if not isinstance(tensor, StoredTensor):
            raise PickleRefused("it is not a tensor")
        if (tensor.dtype, tensor.shape) != (entry.dtype, chunk.shape):
            expected = f"{entry.dtype} {list(chunk.shape)}"
            raise PickleRefused(f"it is {tensor.dtype} {list(tensor.shape)}, but .metadata says {expected}")
        place = locate([tensor.storage])[tensor.storage.key]
        lies_in_order(tensor)  # refuses what overlaps itself
        origin = chunk.start_byte + origin_of(entry.name, tensor, place)
    except (PickleRefused, ZipRefused) as error:
        message = f"The piece of {entry.name[:100]} in {file.path} cannot be read: {error}."
        raise SourceError(message, _HINT) from error
    return Box(file.at, origin, chunk.offsets, chunk.shape, moving_strides(tensor), file.source)
