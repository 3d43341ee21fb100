"""Read a pickle of tensors into inert values. Pure; nothing in it is called, imported or built.

The instructions, names and calls are those of torch's weights-only reader (torch 2.13,
`_weights_only_unpickler.Unpickler`), followed one by one: what it refuses is refused. Where it would call something
of torch's own, a value stands in that says what would have come out. Beyond it are refused: more instructions than
any checkpoint has, and dictionary keys other than text and small numbers, whose hashes nobody can make collide.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sharding.limits import MAX_PICKLE_MARKS, MAX_PICKLE_STEPS

_INT32_END = 1 << 31
_MOST_DIMENSIONS = 64
"""As many as numpy has."""

_STORAGES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128", "QInt32Storage": "qint32", "QInt8Storage": "qint8",
    "QUInt8Storage": "quint8", "QUInt4x2Storage": "quint4x2", "QUInt2x4Storage": "quint2x4",
}  # fmt: skip
STORAGE_DTYPES = {f"torch.{name}": dtype for name, dtype in _STORAGES.items()} | {
    f"torch.cuda.{name}": dtype for name, dtype in _STORAGES.items() if not name.startswith("Q")
}
"""Classes of storages, and torch's name for the dtype of what is in them."""
UNTYPED = "torch.storage.UntypedStorage"

DTYPES = frozenset(f"torch.{name}" for name in (
    "float64", "float32", "float16", "bfloat16", "complex128", "complex64", "complex32", "bool",
    "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2",
    "qint32", "qint8", "quint8", "quint4x2", "quint2x4",
))  # fmt: skip

_TENSOR_TYPES = {"torch.Tensor", "torch.nn.parameter.Parameter"}
_OTHER_TENSORS = {
    "torch._utils._rebuild_qtensor": "a quantized tensor",
    "torch._utils._rebuild_sparse_tensor": "a sparse tensor",
    "torch._utils._rebuild_nested_tensor": "a nested tensor",
    "torch._utils._rebuild_meta_tensor_no_storage": "a tensor without data",
    "torch._utils._rebuild_wrapper_subclass": "a tensor of a class of its own",
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": "a tensor of another device",
    "torch._utils._rebuild_device_tensor_from_numpy": "a tensor of another device",
}
_OTHER_CALLS = {
    "_codecs.encode", "builtins.bytearray", "builtins.complex", "builtins.set", "collections.Counter",
    "torch.device", "torch.serialization._get_layout",
}  # fmt: skip
_OTHER_NAMES = {
    "torch.per_channel_affine", "torch.per_channel_affine_float_qparams", "torch.per_channel_symmetric",
    "torch.per_tensor_affine", "torch.per_tensor_symmetric",
}  # fmt: skip


class PickleRefused(ValueError):
    """The pickle does what no checkpoint of tensors needs, or is no pickle; the message is the rest of a sentence."""


class PickleCut(PickleRefused):
    """The pickle goes on beyond the bytes that are there."""


@dataclass(frozen=True, slots=True)
class Storage:
    """Where a tensor's elements lie: the record `key`, of `count` elements (bytes, where `dtype` is None)."""

    key: str
    dtype: str | None
    count: int


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor that lies in a storage; `offset` and `strides` count elements of `dtype`, which is torch's name."""

    storage: Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Other:
    """Something that may stand in a checkpoint and is nothing to stream; `is_tensor` if it would have to be."""

    what: str
    is_tensor: bool = False


@dataclass(frozen=True, slots=True)
class _Global:
    name: str


class _Ordered(dict[Any, Any]):
    """What stands for an OrderedDict."""


@dataclass(frozen=True, slots=True)
class Pickle:
    """What a pickle holds, the storages that it names, by key, and where it ends."""

    value: Any
    storages: Mapping[str, Storage]
    end: int


def read_pickle(data: bytes, start: int = 0, id_parts: int = 5) -> Pickle:
    """Return the pickle at `data[start:]`, in which a storage is named by `id_parts` words.

    Dictionaries, lists, tuples, texts and numbers are themselves; tensors are `StoredTensor`, all else is `Other`.
    Time and memory grow with the instructions, of which `MAX_PICKLE_STEPS` are followed. Raises PickleRefused.
    """
    machine = _Machine(data, start, id_parts)
    try:
        value = machine.run()
        return Pickle(value, machine.storages, machine.position)
    except (IndexError, KeyError) as error:
        raise PickleRefused("it takes what is not there") from error


class _Machine:
    """One run through a pickle."""

    def __init__(self, data: bytes, start: int, id_parts: int) -> None:
        self.position = start
        self.storages: dict[str, Storage] = {}
        self._data = data
        self._id_parts = id_parts
        self._steps_left = MAX_PICKLE_STEPS
        self._stack: list[Any] = []
        self._marked: list[list[Any]] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        data, size, steps = self._data, len(self._data), _STEPS
        while self.position < size and (code := data[self.position]) != _STOP:
            step = steps.get(code)
            if step is None:
                raise PickleRefused(
                    f"it has the instruction {bytes([code])!r}, which torch's weights-only reader lacks"
                )
            self.position += 1
            step(self)
            self._spend(1)
        self._take(1)
        return self._stack.pop()

    def _spend(self, steps: int) -> None:
        self._steps_left -= steps
        if self._steps_left < 0:
            raise PickleRefused(f"it has more than {MAX_PICKLE_STEPS} instructions")

    def _take(self, count: int) -> bytes:
        end = self.position + count
        if end > len(self._data):
            raise PickleCut("it ends early")
        taken = self._data[self.position : end]
        self.position = end
        return taken

    def _skip(self, count: int) -> None:
        self._take(count)

    def _number(self, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(self._take(size), "little", signed=signed)

    def _line(self) -> str:
        end = self._data.find(b"\n", self.position)
        if end < 0:
            raise PickleCut("it ends early")
        return _text(self._take(end + 1 - self.position)[:-1])

    def _since_mark(self) -> list[Any]:
        items, self._stack = self._stack, self._marked.pop()
        return items

    def _push_global(self) -> None:
        module, name = self._line(), self._line()
        # What protocol 2 calls by the names of Python 2.
        full = f"{'builtins' if module == '__builtin__' else module}.{name}"
        if full not in ALLOWED:
            raise PickleRefused(f"it asks for {full[:100]!r}, which torch's weights-only reader does not allow")
        self._stack.append(_Global(full))

    def _call(self) -> None:
        arguments, function = self._stack.pop(), self._stack[-1]
        if isinstance(arguments, tuple) and len(arguments) == 1 and isinstance(arguments[0], list | tuple):
            self._spend(len(arguments[0]))  # one long list may be given to many calls
        self._stack[-1] = _called(function, arguments)

    def _make(self) -> None:
        arguments, kind = self._stack.pop(), self._stack.pop()
        if kind != _Global("collections.OrderedDict") or arguments != ():
            raise PickleRefused("it makes an object of another class than a dictionary")
        self._stack.append(_Ordered())

    def _build(self) -> None:
        state = self._stack.pop()
        if type(self._stack[-1]) is not _Ordered or not isinstance(state, dict):
            raise PickleRefused("it sets the state of something that is no dictionary")

    def _store(self) -> None:
        storage = self._stack[-1] = _storage(self._stack[-1], self._id_parts)
        if self.storages.setdefault(storage.key, storage) != storage:
            raise PickleRefused("it describes one storage in two ways")

    def _mark(self) -> None:
        if len(self._marked) >= MAX_PICKLE_MARKS:
            raise PickleRefused("it is nested too deeply")
        self._marked.append(self._stack)
        self._stack = []

    def _append(self, items: list[Any]) -> None:
        if type(self._stack[-1]) is not list:
            raise PickleRefused("it appends to what is no list")
        self._stack[-1].extend(items)

    def _set(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) not in (dict, _Ordered) or len(items) % 2:
            raise PickleRefused("it puts items into what is no dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[_key(key)] = value

    def _last(self, count: int) -> None:
        if len(self._stack) < count:
            raise PickleRefused("it takes what is not there")
        self._stack[-count:] = [tuple(self._stack[-count:])]

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _remember(self, number: int) -> None:
        self._memo[number] = self._stack[-1]

    def _pop_last(self, count: int) -> list[Any]:
        if len(self._stack) < count:
            raise PickleRefused("it takes what is not there")
        items = self._stack[-count:]
        del self._stack[-count:]
        return items


def _text(data: bytes, errors: str = "strict") -> str:
    try:
        return str(data, "utf-8", errors)
    except UnicodeDecodeError as error:
        raise PickleRefused("it holds a text that is no UTF-8") from error


def _key(key: Any) -> str | int:
    if type(key) is str or (type(key) is int and -_INT32_END <= key < _INT32_END):
        return key
    raise PickleRefused("it has a dictionary whose keys are neither texts nor small numbers")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _storage(given: Any, parts: int) -> Storage:
    """Return the storage that a persistent id names; the sixth part, in old files, would be a view."""
    if not isinstance(given, tuple) or len(given) != parts or given[0] != "storage" or given[5:] not in ((), (None,)):
        raise PickleRefused("it refers to something else than a storage")
    kind, key, location, count = given[1:5]
    named = kind.name if isinstance(kind, _Global) else ""
    if (
        (named != UNTYPED and named not in STORAGE_DTYPES)
        or not isinstance(key, str)
        or not isinstance(location, str)
        or not _is_count(count)
    ):
        raise PickleRefused("it describes a storage that cannot be")
    return Storage(key, STORAGE_DTYPES.get(named), count)


def _called(function: Any, arguments: Any) -> Any:
    name = function.name if isinstance(function, _Global) else ""
    if not isinstance(arguments, tuple):
        raise PickleRefused("it calls something with no arguments")
    if name in _CALLS:
        fewest, most, call = _CALLS[name]
        if not fewest <= len(arguments) <= most:
            raise PickleRefused(f"it calls {name} with {len(arguments)} arguments")
        return call(*arguments)
    if name in _OTHER_TENSORS:
        return Other(_OTHER_TENSORS[name], is_tensor=True)
    if name in _OTHER_CALLS:
        return Other(name)
    raise PickleRefused(f"it calls what cannot be called{f': {name}' if name else ''}")


def _ordered(pairs: Any = ()) -> _Ordered:
    made = _Ordered()
    if not isinstance(pairs, list | tuple):
        raise PickleRefused("it makes a dictionary of what are no pairs")
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise PickleRefused("it makes a dictionary of what are no pairs")
        made[_key(pair[0])] = pair[1]
    return made


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> StoredTensor | Other:
    """`_rebuild_tensor`, and `_rebuild_tensor_v2` with requires_grad, hooks and metadata as the `rest`."""
    if not isinstance(storage, Storage) or storage.dtype is None:
        raise PickleRefused("it makes a tensor of what is no storage")
    return _stored(storage, storage.dtype, offset, shape, strides, rest[2] if len(rest) == 3 else None)


def _tensor_v3(
    storage: Any, offset: Any, shape: Any, strides: Any, grad: Any, hooks: Any, dtype: Any, metadata: Any = None
) -> StoredTensor | Other:
    if not isinstance(storage, Storage) or not isinstance(dtype, _Global) or dtype.name not in DTYPES:
        raise PickleRefused("it makes a tensor of what is no storage")
    return _stored(storage, dtype.name.removeprefix("torch."), offset, shape, strides, metadata)


def _stored(storage: Storage, dtype: str, offset: Any, shape: Any, strides: Any, metadata: Any) -> StoredTensor | Other:
    sizes = isinstance(shape, tuple) and isinstance(strides, tuple) and len(shape) == len(strides)
    if not sizes or len(shape) > _MOST_DIMENSIONS or not all(map(_is_count, (offset, *shape, *strides))):
        raise PickleRefused("it makes a tensor whose offset, shape or strides cannot be")
    if metadata is not None:
        if not isinstance(metadata, dict):
            raise PickleRefused("it makes a tensor with metadata that are none")
        if metadata:
            return Other("a conjugated or negated view", is_tensor=True)
    return StoredTensor(storage, dtype, offset, shape, strides)


def _parameter(data: Any, *_: Any) -> StoredTensor | Other:
    if not isinstance(data, StoredTensor | Other):
        raise PickleRefused("it makes a parameter of what is no tensor")
    return data


def _typed(function: Any, kind: Any, arguments: Any, state: Any) -> Any:
    if not isinstance(kind, _Global) or function == _Global("torch._tensor._rebuild_from_type_v2"):
        raise PickleRefused("it makes a tensor of no class")
    made = _called(function, arguments)
    return made if kind.name in _TENSOR_TYPES else Other("a tensor of a class of its own", is_tensor=True)


def _size(lengths: Any = ()) -> tuple[Any, ...]:
    if not isinstance(lengths, tuple | list) or not all(type(length) is int for length in lengths):
        raise PickleRefused("it makes a shape of what are no numbers")
    return tuple(lengths)


_CALLS: dict[str, tuple[int, int, Callable[..., Any]]] = {
    "collections.OrderedDict": (0, 1, _ordered),
    "torch.Size": (0, 1, _size),
    "torch._utils._rebuild_tensor": (4, 4, _tensor),
    "torch._utils._rebuild_tensor_v2": (6, 7, _tensor),
    "torch._utils._rebuild_tensor_v3": (7, 8, _tensor_v3),
    "torch._utils._rebuild_parameter": (3, 3, _parameter),
    "torch._utils._rebuild_parameter_with_state": (4, 4, _parameter),
    "torch._tensor._rebuild_from_type_v2": (4, 4, _typed),
}
"""Fewest and most arguments of what is followed, and what stands in for it."""

ALLOWED = frozenset(
    {UNTYPED, *STORAGE_DTYPES, *DTYPES, *_TENSOR_TYPES, *_OTHER_TENSORS, *_OTHER_CALLS, *_OTHER_NAMES, *_CALLS}
)
"""Names that may stand in a pickle; a subset of those of the weights-only reader."""

_STOP = ord(".")
_STEPS: dict[int, Callable[[_Machine], None]] = {
    ord("\x80"): lambda m: m._skip(1),
    ord("c"): _Machine._push_global,
    ord("R"): _Machine._call,
    ord("\x81"): _Machine._make,
    ord("b"): _Machine._build,
    ord("Q"): _Machine._store,
    ord("("): _Machine._mark,
    ord("a"): lambda m: m._append(m._pop_last(1)),
    ord("e"): lambda m: m._append(m._since_mark()),
    ord("s"): lambda m: m._set(m._pop_last(2)),
    ord("u"): lambda m: m._set(m._since_mark()),
    ord("t"): lambda m: m._push(tuple(m._since_mark())),
    ord("\x85"): lambda m: m._last(1),
    ord("\x86"): lambda m: m._last(2),
    ord("\x87"): lambda m: m._last(3),
    ord("N"): lambda m: m._push(None),
    ord("\x89"): lambda m: m._push(False),
    ord("\x88"): lambda m: m._push(True),
    ord(")"): lambda m: m._push(()),
    ord("]"): lambda m: m._push([]),
    ord("}"): lambda m: m._push({}),
    ord("\x8f"): lambda m: m._push(Other("builtins.set")),
    ord("J"): lambda m: m._push(m._number(4, signed=True)),
    ord("K"): lambda m: m._push(m._number(1)),
    ord("M"): lambda m: m._push(m._number(2)),
    ord("G"): lambda m: m._push(struct.unpack(">d", m._take(8))[0]),
    ord("X"): lambda m: m._push(_text(m._take(m._number(4)), "surrogatepass")),
    ord("U"): lambda m: m._push(_text(m._take(m._number(1)))),
    ord("\x8a"): lambda m: m._push(int.from_bytes(m._take(m._number(1)), "little", signed=True)),
    ord("h"): lambda m: m._push(m._memo[m._number(1)]),
    ord("j"): lambda m: m._push(m._memo[m._number(4)]),
    ord("q"): lambda m: m._remember(m._number(1)),
    ord("r"): lambda m: m._remember(m._number(4)),
}
"""What each instruction does, by its code (pickletools of Python 3.11)."""
