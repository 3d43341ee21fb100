"""Say what torch's own functions would have made of the words of a pickle, as inert values. Pure; calls none of them.

Names and calls are those that torch's weights-only reader allows (torch 2.13, `_weights_only_unpickler`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sharding.core.dtypes import BY_TORCH
from sharding.core.limits import MAX_DIMENSIONS

_INT32_END = 1 << 31
ID_PARTS = 5
"""Words that name a storage: what it is, its class, key, device and length. Old files have a sixth, and no bytes."""

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

DTYPES = frozenset(f"torch.{name}" for name in BY_TORCH)

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
class Global:
    """A name that the pickle asks for: a class, a function or a dtype."""

    name: str


class Ordered(dict[Any, Any]):
    """What stands for an OrderedDict."""


def key_of(key: Any) -> str | int:
    """Return a key for a dictionary. Raises PickleRefused for what anybody could make collide, or take long to hash."""
    if type(key) is str or (type(key) is int and -_INT32_END <= key < _INT32_END):
        return key
    raise PickleRefused("it has a dictionary whose keys are neither texts nor small numbers")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def storage_of(reference: Any, parts: int) -> Storage:
    """Return the storage that a persistent id names; the sixth part, in old files, would be a view."""
    if (
        not isinstance(reference, tuple)
        or len(reference) != parts
        or reference[0] != "storage"
        or reference[5:] not in ((), (None,))
    ):
        raise PickleRefused("it refers to something else than a storage")
    kind, key, location, count = reference[1:5]
    named = kind.name if isinstance(kind, Global) else ""
    if (
        (named not in STORAGE_DTYPES and (named != UNTYPED or parts != ID_PARTS))
        or not isinstance(key, str)
        or not isinstance(location, str)
        or not _is_count(count)
    ):
        raise PickleRefused("it describes a storage that cannot be")
    return Storage(key, STORAGE_DTYPES.get(named), count)


def called(function: Any, arguments: Any) -> Any:
    """Return what stands for `function(*arguments)`. Raises PickleRefused where torch would not call it."""
    name = function.name if isinstance(function, Global) else ""
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


def _ordered(pairs: Any = ()) -> Ordered:
    dictionary = Ordered()
    if not isinstance(pairs, list | tuple):
        raise PickleRefused("it makes a dictionary of what are no pairs")
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise PickleRefused("it makes a dictionary of what are no pairs")
        dictionary[key_of(pair[0])] = pair[1]
    return dictionary


def _tensor(
    storage: Any, offset: Any, shape: Any, strides: Any, grad: Any = False, hooks: Any = None, metadata: Any = None
) -> StoredTensor | Other:
    """`_rebuild_tensor` and `_rebuild_tensor_v2`."""
    dtype = storage.dtype if isinstance(storage, Storage) and storage.dtype else "None"
    return _tensor_v3(storage, offset, shape, strides, grad, hooks, Global(f"torch.{dtype}"), metadata)


def _tensor_v3(
    storage: Any, offset: Any, shape: Any, strides: Any, grad: Any, hooks: Any, dtype: Any, metadata: Any = None
) -> StoredTensor | Other:
    if not isinstance(storage, Storage) or not isinstance(dtype, Global) or dtype.name not in DTYPES:
        raise PickleRefused("it makes a tensor of what is no storage")
    sizes = isinstance(shape, tuple) and isinstance(strides, tuple) and len(shape) == len(strides)
    if not sizes or len(shape) > MAX_DIMENSIONS or not all(map(_is_count, (offset, *shape, *strides))):
        raise PickleRefused("it makes a tensor whose offset, shape or strides cannot be")
    if not isinstance(metadata, dict | None):
        raise PickleRefused("it makes a tensor with metadata that are none")
    _check_gradient(dtype.name, grad, hooks)
    if metadata:
        return Other("a conjugated or negated view", is_tensor=True)
    return StoredTensor(storage, dtype.name.removeprefix("torch."), offset, shape, strides)


def _check_gradient(dtype: str, grad: Any, hooks: Any) -> None:
    if type(grad) is not bool or not isinstance(hooks, dict | None):
        raise PickleRefused("it makes a tensor that neither has nor lacks a gradient")
    if grad and not dtype.startswith(("torch.float", "torch.bfloat", "torch.complex")):
        raise PickleRefused("it makes whole numbers that would have a gradient")


def _parameter(data: Any, grad: Any, hooks: Any, state: Any = None) -> StoredTensor | Other:
    if not isinstance(data, StoredTensor | Other) or (isinstance(data, Other) and not data.is_tensor):
        raise PickleRefused("it makes a parameter of what is no tensor")
    _check_gradient(f"torch.{data.dtype}" if isinstance(data, StoredTensor) else "torch.float", grad, hooks)
    return Other("a parameter with attributes of its own", is_tensor=True) if state else data


def _typed(function: Any, kind: Any, arguments: Any, state: Any) -> Any:
    if not isinstance(kind, Global) or function == Global("torch._tensor._rebuild_from_type_v2"):
        raise PickleRefused("it makes a tensor of no class")
    value = called(function, arguments)
    plain = kind.name in _TENSOR_TYPES and isinstance(value, StoredTensor) and not state
    return value if plain else Other("a tensor with a class or attributes of its own", is_tensor=True)


def _size(lengths: Any = ()) -> tuple[Any, ...]:
    if not isinstance(lengths, tuple | list) or not all(map(_is_count, lengths)):
        raise PickleRefused("it makes a shape of what are no lengths")
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
