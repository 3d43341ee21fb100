"""Read `.metadata` of a torch.distributed.checkpoint: which tensor lies where in which file. Pure; calls nothing in it.

The file is a pickle of `torch.distributed.checkpoint.metadata.Metadata` (torch 2.13, `filesystem.FileSystemWriter`),
which torch itself reads with an unrestricted `pickle.load`. Here its instructions are followed by the machine of
`torch_pickle`; classes and functions that it names are never looked up: what they would make is an `_Instance`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sharding.core.dtypes import BY_TORCH
from sharding.core.limits import MAX_DCP_STEPS, MAX_DIMENSIONS, MAX_NAME_CHARACTERS
from sharding.core.text import name_problem, shown_name
from sharding.formats.torch_globals import Global, Ordered, PickleRefused
from sharding.formats.torch_pickle import STEPS, Machine, text_of

_LENGTH_END = 1 << 63


@dataclass(frozen=True, slots=True)
class SavedChunk:
    """A piece of a tensor: where it belongs in that, and which stretch of `file` holds what torch has saved of it."""

    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    start_byte: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SavedEntry:
    """A tensor of a state dict: `path` are the keys on the way to it, where they were noted; `dtype` is torch's."""

    name: str
    path: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[SavedChunk, ...]


@dataclass(frozen=True, slots=True)
class DcpMetadata:
    """What a checkpoint holds: its tensors in the order of the state dict, and the names of what is no tensor."""

    entries: tuple[SavedEntry, ...]
    others: tuple[str, ...]


def parse_metadata(data: bytes) -> DcpMetadata:
    """Return what the bytes of a `.metadata` file say. Raises PickleRefused."""
    machine = _Machine(data)
    try:
        metadata = machine.run()
    except (IndexError, KeyError) as error:
        raise PickleRefused("it takes what is not there") from error
    if not _is(metadata, "Metadata"):
        raise PickleRefused("it is no Metadata of torch.distributed.checkpoint")
    entries = _dictionary(metadata, "state_dict_metadata")
    places = _places(_dictionary(metadata, "storage_data"))
    planned = metadata.state.get("planner_data")
    paths = planned if isinstance(planned, dict) else {}
    tensors, others = [], []
    for name, entry in entries.items():
        if not isinstance(name, str):
            raise PickleRefused("it names an entry by what is no text")
        if problem := name_problem(name):
            raise PickleRefused(f"it has an entry by the name {shown_name(name)}, which {problem}")
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
    """What stands for an object of class `kind`, or for what a function would have returned. Equal to itself only."""

    kind: str
    arguments: tuple[Any, ...] = ()
    state: dict[Any, Any] = field(default_factory=dict)


class _Machine(Machine):
    """Follows what pickle writes by protocol 4, besides what torch's own reader knows."""

    most_steps: ClassVar[int] = MAX_DCP_STEPS
    reader: ClassVar[str] = "this tool"

    def _push_global(self) -> None:
        module, name = self._line(), self._line()
        self._stack.append(Global(f"{module}.{name}"))

    def _push_named(self) -> None:
        module, name = self._pop_last(2)
        if not isinstance(module, str) or not isinstance(name, str):
            raise PickleRefused("it names a class by what is no text")
        self._spend(len(module) + len(name))  # one long text may be in many names
        self._stack.append(Global(f"{module}.{name}"))

    def _call(self) -> None:
        arguments, function = self._stack.pop(), self._stack[-1]
        if not isinstance(function, Global) or not isinstance(arguments, tuple):
            raise PickleRefused("it calls what cannot be called")
        if function.name == "torch.Size":
            lengths = arguments[0] if arguments else ()
            self._spend(len(lengths) if isinstance(lengths, tuple | list) else 0)
            self._stack[-1] = _lengths(lengths)
        elif function.name == "collections.OrderedDict" and not arguments:
            self._stack[-1] = Ordered()
        else:
            self._stack[-1] = _Instance(function.name, arguments)

    def _make(self) -> None:
        arguments, kind = self._pop_last(2)[::-1]
        if not isinstance(kind, Global) or not isinstance(arguments, tuple):
            raise PickleRefused("it makes an object of what is no class")
        self._stack.append(_Instance(kind.name, arguments))

    def _build(self) -> None:
        state, instance = self._stack.pop(), self._stack[-1]
        if isinstance(instance, _Instance):
            instance.state = state if type(state) is dict else {"": state}
        elif type(instance) is not Ordered:
            raise PickleRefused("it sets the state of something that has none")

    def _key(self, key: Any) -> Any:
        # Of ours, by identity: no hash that anybody could choose.
        return key if isinstance(key, _Instance) else super()._key(key)

    def _memoize(self) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def _add(self) -> None:
        self._since_mark()


_Machine.steps = STEPS | {
    ord("c"): _Machine._push_global,
    ord("R"): _Machine._call,
    ord("\x81"): _Machine._make,
    ord("b"): _Machine._build,
    ord("\x90"): _Machine._add,
    ord("\x93"): _Machine._push_named,
    ord("\x94"): _Machine._memoize,
    ord("\x95"): lambda m: m._skip(8),
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
        raise PickleRefused(f"its {key} is no dictionary")
    return value


def _lengths(value: Any) -> tuple[int, ...]:
    if not isinstance(value, tuple | list) or len(value) > MAX_DIMENSIONS:
        raise PickleRefused(f"it has a shape that is no list of at most {MAX_DIMENSIONS} lengths")
    if not all(type(item) is int and 0 <= item < _LENGTH_END for item in value):
        raise PickleRefused("it has a shape of what are no lengths")
    return tuple(value)


_Place = tuple[str, int, int]
"""A file, and where in it a piece begins, and how long it is."""


def _places(stored: Mapping[Any, Any]) -> dict[tuple[str, str], _Place]:
    """Return where each piece lies, by its tensor and its offsets as text: hashes that nobody can choose."""
    places: dict[tuple[str, str], _Place] = {}
    for index, info in stored.items():
        if (
            not _is(index, "MetadataIndex")
            or not isinstance(info, _Instance)
            or not info.kind.endswith("._StorageInfo")
        ):
            raise PickleRefused("its storage_data are of an unknown kind")
        name, offset = index.state.get("fqn"), index.state.get("offset")
        file, start, size = (info.state.get(key) for key in ("relative_path", "offset", "length"))
        if not isinstance(name, str) or not isinstance(file, str):
            raise PickleRefused("its storage_data name no tensor or no file")
        if problem := name_problem(file):
            raise PickleRefused(f"it names the file {shown_name(file)}, whose name {problem}")
        if info.state.get("transform_descriptors"):
            raise PickleRefused(f"what it has of {name[:100]} was compressed or changed on the way to {file[:100]}")
        start, size = _lengths((start, size))
        key = name, str(None if offset is None else _lengths(offset))
        if key in places:
            raise PickleRefused(f"it has one piece of {name[:100]} twice")
        places[key] = file, start, size
    return places


def _entry(name: str, path: tuple[str, ...], instance: _Instance, places: dict[tuple[str, str], _Place]) -> SavedEntry:
    shape, properties, chunks = (instance.state.get(key) for key in ("size", "properties", "chunks"))
    if not isinstance(chunks, list) or not chunks or not isinstance(properties, _Instance):
        raise PickleRefused(f"it says too little of {name[:100]}")
    pieces = []
    for chunk in chunks:
        if not _is(chunk, "ChunkStorageMetadata"):
            raise PickleRefused(f"it says too little of a piece of {name[:100]}")
        offsets, size = _lengths(chunk.state.get("offsets")), _lengths(chunk.state.get("sizes"))
        place = places.pop((name, str(offsets)), None)  # each once, or one piece could be there a million times
        if place is None:
            raise PickleRefused(f"it does not say where the piece of {name[:100]} at {list(offsets)} lies")
        pieces.append(SavedChunk(offsets, size, *place))
    return SavedEntry(name, path, _dtype(properties), _lengths(shape), tuple(pieces))


def _dtype(properties: _Instance) -> str:
    """Return torch's name of the dtype: the first of a tuple, or by name where an older torch wrote a dictionary."""
    state = properties.state.get("", properties.state)
    dtype = state[0] if isinstance(state, tuple) and state else state.get("dtype") if isinstance(state, dict) else None
    name = dtype.name.removeprefix("torch.") if isinstance(dtype, Global) else ""
    if name not in BY_TORCH:
        raise PickleRefused("it has a tensor of no known dtype")
    return name


def _path(name: str, value: Any) -> tuple[str, ...]:
    """Return the keys on the way to a tensor, () where they are not known: torch joins them to its name.

    They are texts and numbers. Of anything else `str` may be without end, and one long path may be that of many names.
    """
    if not isinstance(value, tuple | list) or len(value) >= 100:
        return ()
    if not all(type(key) is int or (type(key) is str and len(key) <= MAX_NAME_CHARACTERS) for key in value):
        raise PickleRefused(f"it leads to {shown_name(name)} by what are neither names nor numbers")
    path = tuple(map(str, value))
    return path if ".".join(path) == name else ()
