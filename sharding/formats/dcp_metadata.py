"""Read the `.metadata` of torch.distributed.checkpoint, which says where each tensor lies. Pure. Runs no code from it.

The file is a pickle of `torch.distributed.checkpoint.metadata.Metadata` (torch 2.13, `filesystem.FileSystemWriter`).
"""

from dataclasses import dataclass
from typing import Any

from sharding.core.limits import MAX_NAME_CHARACTERS
from sharding.core.text import as_object, name_problem, shown_name
from sharding.formats.inert_pickle import InertMachine, Instance, dtype_of, entries_of, lengths_of
from sharding.formats.torch_globals import PickleRefused


@dataclass(frozen=True, slots=True)
class SavedChunk:
    """A piece of a tensor: its offsets and shape in the tensor, and the bytes of `file` that are its archive."""

    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    start_byte: int
    end_byte: int


@dataclass(frozen=True, slots=True)
class SavedEntry:
    """A tensor of a state dict. `path` has the keys on the way to it, or is () if unknown. `dtype` is torch's name."""

    name: str
    path: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[SavedChunk, ...]


def parse_metadata(data: bytes) -> tuple[list[SavedEntry], list[str]]:
    """Return the tensors in the order of the state dict, and the names of its other entries. Raises PickleRefused."""
    metadata = InertMachine(data).run().value
    if not _is(metadata, "Metadata"):
        raise PickleRefused("it is not a Metadata object of torch.distributed.checkpoint")
    entries = entries_of(metadata.state.get("state_dict_metadata"), "its state_dict_metadata")
    places, paths = _places(metadata.state.get("storage_data")), as_object(metadata.state.get("planner_data"))
    tensors, others = [], []
    for name, entry in entries.items():
        path = _path(name, paths.get(name))
        if _is(entry, "TensorStorageMetadata"):
            tensors.append(_entry(name, path, entry, places))
        elif _is(entry, "BytesStorageMetadata"):
            others.append(name)
        else:
            raise PickleRefused(f"it describes {name[:100]} as neither a tensor nor bytes")
    return tensors, others


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, Instance) and value.kind == f"torch.distributed.checkpoint.metadata.{kind}"


_Places = dict[tuple[str, str], tuple[str, int, int]]
"""The file, first byte and end of each piece, by its tensor and offsets as text. Nobody can choose their hashes."""


def _places(stored: Any) -> _Places:
    if not isinstance(stored, dict):
        raise PickleRefused("its storage_data is not a dictionary")
    places: _Places = {}
    for index, info in stored.items():
        is_info = isinstance(info, Instance) and info.kind.endswith("._StorageInfo")
        if not _is(index, "MetadataIndex") or not is_info:
            raise PickleRefused("its storage_data has an unknown type")
        name, offset = index.state.get("fqn"), index.state.get("offset")
        file, start, size = (info.state.get(key) for key in ("relative_path", "offset", "length"))
        if not isinstance(name, str) or not isinstance(file, str):
            raise PickleRefused("its storage_data does not name a tensor or a file")
        if problem := name_problem(file):
            raise PickleRefused(f"the name of the file {shown_name(file)} {problem}")
        if info.state.get("transform_descriptors"):
            raise PickleRefused(f"a piece of {name[:100]} is compressed or transformed in {file[:100]}")
        start, size = lengths_of((start, size))
        key = name, str(None if offset is None else lengths_of(offset))
        if key in places:
            raise PickleRefused(f"it lists one piece of {name[:100]} twice")
        places[key] = file, start, start + size
    return places


def _entry(name: str, path: tuple[str, ...], instance: Instance, places: _Places) -> SavedEntry:
    shape, properties, chunks = (instance.state.get(key) for key in ("size", "properties", "chunks"))
    if not isinstance(chunks, list) or not chunks or not isinstance(properties, Instance):
        raise PickleRefused(f"its entry for {name[:100]} is incomplete")
    pieces = []
    for chunk in chunks:
        if not _is(chunk, "ChunkStorageMetadata"):
            raise PickleRefused(f"its entry for a piece of {name[:100]} is incomplete")
        offsets, size = lengths_of(chunk.state.get("offsets")), lengths_of(chunk.state.get("sizes"))
        place = places.pop((name, str(offsets)), None)  # removed, or one piece could be used a million times
        if place is None:
            raise PickleRefused(f"it does not say where the piece of {name[:100]} at {list(offsets)} is")
        pieces.append(SavedChunk(offsets, size, *place))
    # The dtype is the first item of a tuple or, from an older torch, in a dictionary.
    state = properties.state.get("", properties.state)
    dtype = state[0] if isinstance(state, tuple) and state else as_object(state).get("dtype")
    return SavedEntry(name, path, dtype_of(dtype), lengths_of(shape), tuple(pieces))


def _path(name: str, value: Any) -> tuple[str, ...]:
    """Return the keys on the way to a tensor, or () if they are not known. torch joins them to form its name."""
    # Only texts and numbers are allowed. `str` of anything else may never end, and many names may share one long path.
    if not isinstance(value, tuple | list) or len(value) >= 100:
        return ()
    if not all(type(key) is int or (type(key) is str and len(key) <= MAX_NAME_CHARACTERS) for key in value):
        raise PickleRefused(f"the path of {shown_name(name)} has keys that are neither text nor numbers")
    path = tuple(map(str, value))
    return path if ".".join(path) == name else ()
