"""Read the `.metadata` of torch.distributed.checkpoint, which says where each tensor lies. Pure. Runs no code from it.

The file is a pickle of `torch.distributed.checkpoint.metadata.Metadata` (torch 2.13, `filesystem.FileSystemWriter`).
torch itself reads it with an unrestricted `pickle.load`. Here the machine of `torch_pickle` follows its instructions.
It never looks up the classes and functions that the file names. An `_Instance` stands for each object of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sharding.core.dtypes import BY_TORCH
from sharding.core.limits import MAX_DCP_STEPS, MAX_DIMENSIONS, MAX_NAME_CHARACTERS
from sharding.core.text import as_object, name_problem, shown_name
from sharding.formats.torch_globals import Global, Ordered, PickleRefused
from sharding.formats.torch_pickle import STEPS, Machine, text_of


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
    metadata = _Machine(data).run()
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


@dataclass(slots=True, eq=False)
class _Instance:
    """A stand-in for an object of class `kind`, or for the result of a function. It is equal only to itself."""

    kind: str
    arguments: tuple[Any, ...] = ()
    state: dict[Any, Any] = field(default_factory=dict)


class _Machine(Machine):
    """Follows the instructions of pickle protocol 4 as well as those that torch's own reader knows."""

    most_steps: ClassVar[int] = MAX_DCP_STEPS
    reader: ClassVar[str] = "this tool"

    def _push_global(self) -> None:
        module, name = self._line(), self._line()
        self._stack.append(Global(f"{module}.{name}"))

    def _push_named(self) -> None:
        module, name = self._pop_last(2)
        if not isinstance(module, str) or not isinstance(name, str):
            raise PickleRefused("the name of a class is not text")
        self._spend(len(module) + len(name))  # one long text may be part of many names
        self._stack.append(Global(f"{module}.{name}"))

    def _call(self) -> None:
        arguments, function = self._stack.pop(), self._stack[-1]
        if not isinstance(function, Global) or not isinstance(arguments, tuple):
            raise PickleRefused("it calls something that is not a function")
        if function.name == "torch.Size":
            lengths = arguments[0] if arguments else ()
            self._spend(len(lengths) if isinstance(lengths, tuple | list) else 0)
            self._stack[-1] = _lengths(lengths)
        elif function.name == "collections.OrderedDict" and not arguments:
            self._stack[-1] = Ordered()
        else:
            self._stack[-1] = _Instance(function.name, arguments)

    def _make(self) -> None:
        kind, arguments = self._pop_last(2)
        if not isinstance(kind, Global) or not isinstance(arguments, tuple):
            raise PickleRefused("it creates an object from something that is not a class")
        self._stack.append(_Instance(kind.name, arguments))

    def _build(self) -> None:
        state, instance = self._stack.pop(), self._stack[-1]
        if isinstance(instance, _Instance):
            instance.state = state if type(state) is dict else {"": state}
        elif type(instance) is not Ordered:
            raise PickleRefused("it sets the state of an object that has none")

    def _key(self, key: Any) -> Any:
        # An _Instance hashes by identity, so nobody can choose its hash.
        return key if isinstance(key, _Instance) else super()._key(key)


_Machine.steps = STEPS | {
    ord("c"): _Machine._push_global,
    ord("R"): _Machine._call,
    ord("\x81"): _Machine._make,
    ord("b"): _Machine._build,
    ord("\x90"): _Machine._since_mark,
    ord("\x93"): _Machine._push_named,
    ord("\x94"): lambda m: m._remember(len(m._memo)),
    ord("\x95"): lambda m: m._take(8),
    ord("\x8c"): lambda m: m._push(text_of(m._take(m._number(1)))),
    ord("\x8d"): lambda m: m._push(text_of(m._take(m._number(8)))),
    ord("C"): lambda m: m._push(m._take(m._number(1))),
    ord("B"): lambda m: m._push(m._take(m._number(4))),
}


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, _Instance) and value.kind == f"torch.distributed.checkpoint.metadata.{kind}"


def _dictionary(instance: _Instance, key: str) -> Mapping[Any, Any]:
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
        is_info = isinstance(info, _Instance) and info.kind.endswith("._StorageInfo")
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


def _entry(name: str, path: tuple[str, ...], instance: _Instance, places: _Places) -> SavedEntry:
    shape, properties, chunks = (instance.state.get(key) for key in ("size", "properties", "chunks"))
    if not isinstance(chunks, list) or not chunks or not isinstance(properties, _Instance):
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


def _dtype(properties: _Instance) -> str:
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
