"""Read the `.metadata` of torch.distributed.checkpoint, which says where each tensor lies. Pure. Runs no code from it.

The file is a pickle of `torch.distributed.checkpoint.metadata.Metadata` (torch 2.13, `filesystem.FileSystemWriter`).
torch itself reads it with an unrestricted `pickle.load`. `inert_pickle` never looks up the classes and functions in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sharding.core.dtypes import BY_TORCH
from sharding.core.limits import MAX_DIMENSIONS, MAX_NAME_CHARACTERS
from sharding.core.text import as_object, name_problem, shown_name
from sharding.formats.inert_pickle import InertMachine, Instance
from sharding.formats.torch_globals import Global, PickleRefused


@dataclass(frozen=True, slots=True)
class SavedChunk:
    """A piece of a tensor: its offsets and shape in the tensor, and the bytes of `file` that hold its archive."""

    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    start_byte: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SavedEntry:
    """A tensor of a state dict. `path` has the keys on the way to it, or is () if unknown. `dtype` is torch's name."""

    name: str
    path: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[SavedChunk, ...]


@dataclass(frozen=True, slots=True)
class DcpMetadata:
    """The tensors of a checkpoint in the order of its state dict, and the names of its other entries."""

    entries: tuple[SavedEntry, ...]
    others: tuple[str, ...]


def parse_metadata(data: bytes) -> DcpMetadata:
    """Return the content of a `.metadata` file. Raises PickleRefused."""
    metadata = InertMachine(data).run()
    if not _is(metadata, "Metadata"):
        raise PickleRefused("it is not a Metadata object of torch.distributed.checkpoint")
    entries = _dictionary(metadata, "state_dict_metadata")
    places, paths = _places(_dictionary(metadata, "storage_data")), as_object(metadata.state.get("planner_data"))
    tensors, others = [], []
    for name, entry in entries.items():
        if not isinstance(name, str):
            raise PickleRefused("the name of an entry is not text")
        if problem := name_problem(name):
            raise PickleRefused(f"the name of the entry {shown_name(name)} {problem}")
        path = _path(name, paths.get(name))
        if _is(entry, "TensorStorageMetadata"):
            tensors.append(_entry(name, path, entry, places))
        elif _is(entry, "BytesStorageMetadata"):
            others.append(name)
        else:
            raise PickleRefused(f"it describes {name[:100]} as neither a tensor nor bytes")
    return DcpMetadata(tuple(tensors), tuple(others))


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, Instance) and value.kind == f"torch.distributed.checkpoint.metadata.{kind}"


def _dictionary(instance: Instance, key: str) -> Mapping[Any, Any]:
    value = instance.state.get(key)
    if not isinstance(value, dict):
        raise PickleRefused(f"its {key} is not a dictionary")
    return value


def _lengths(value: Any) -> tuple[int, ...]:
    if not isinstance(value, tuple | list) or len(value) > MAX_DIMENSIONS:
        raise PickleRefused(f"it has a shape that is not a list of at most {MAX_DIMENSIONS} lengths")
    if not all(type(item) is int and 0 <= item < 1 << 63 for item in value):
        raise PickleRefused("it has a shape with invalid lengths")
    return tuple(value)


_Places = dict[tuple[str, str], tuple[str, int, int]]
"""The file, first byte and length of each piece, by its tensor and offsets as text. Nobody can choose their hashes."""


def _places(stored: Mapping[Any, Any]) -> _Places:
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
        start, size = _lengths((start, size))
        key = name, str(None if offset is None else _lengths(offset))
        if key in places:
            raise PickleRefused(f"it lists one piece of {name[:100]} twice")
        places[key] = file, start, size
    return places


def _entry(name: str, path: tuple[str, ...], instance: Instance, places: _Places) -> SavedEntry:
    shape, properties, chunks = (instance.state.get(key) for key in ("size", "properties", "chunks"))
    if not isinstance(chunks, list) or not chunks or not isinstance(properties, Instance):
        raise PickleRefused(f"its entry for {name[:100]} is incomplete")
    pieces = []
    for chunk in chunks:
        if not _is(chunk, "ChunkStorageMetadata"):
            raise PickleRefused(f"its entry for a piece of {name[:100]} is incomplete")
        offsets, size = _lengths(chunk.state.get("offsets")), _lengths(chunk.state.get("sizes"))
        place = places.pop((name, str(offsets)), None)  # removed, or one piece could be used a million times
        if place is None:
            raise PickleRefused(f"it does not say where the piece of {name[:100]} at {list(offsets)} is")
        pieces.append(SavedChunk(offsets, size, *place))
    return SavedEntry(name, path, _dtype(properties), _lengths(shape), tuple(pieces))


def _dtype(properties: Instance) -> str:
    """Return torch's name of the dtype. It is the first item of a tuple or, from an older torch, in a dictionary."""
    state = properties.state.get("", properties.state)
    dtype = state[0] if isinstance(state, tuple) and state else state.get("dtype") if isinstance(state, dict) else None
    name = dtype.name.removeprefix("torch.") if isinstance(dtype, Global) else ""
    if name not in BY_TORCH:
        raise PickleRefused("it has a tensor with an unknown dtype")
    return name


def _path(name: str, value: Any) -> tuple[str, ...]:
    """Return the keys on the way to a tensor, or () if they are not known. torch joins them to form its name."""
    # Only texts and numbers are allowed. `str` of anything else may never end, and many names may share one long path.
    if not isinstance(value, tuple | list) or len(value) >= 100:
        return ()
    if not all(type(key) is int or (type(key) is str and len(key) <= MAX_NAME_CHARACTERS) for key in value):
        raise PickleRefused(f"the path of {shown_name(name)} has keys that are neither text nor numbers")
    path = tuple(map(str, value))
    return path if ".".join(path) == name else ()
