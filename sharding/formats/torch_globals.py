"""Make inert values that stand for the results of torch's functions in a pickle. Pure. Calls none of them.

The allowed names and calls are those of torch's weights-only reader (torch 2.13, `_weights_only_unpickler`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sharding.core.dtypes import BY_TORCH
from sharding.core.limits import MAX_DIMENSIONS

_INT32_END = 1 << 31
ID_PARTS = 5
"""Parts of the name of a storage: kind, class, key, device and length. Old files have a sixth part, and no bytes."""
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
"""Classes of storages, and torch's names for the dtypes in them."""
UNTYPED = "torch.storage.UntypedStorage"
DTYPES = frozenset(f"torch.{name}" for name in BY_TORCH)

_TENSOR_TYPES = {"torch.Tensor", "torch.nn.parameter.Parameter"}
_OTHER_TENSORS = {
    "torch._utils._rebuild_qtensor": "a quantized tensor",
    "torch._utils._rebuild_sparse_tensor": "a sparse tensor",
    "torch._utils._rebuild_nested_tensor": "a nested tensor",
    "torch._utils._rebuild_meta_tensor_no_storage": "a tensor without data",
    "torch._utils._rebuild_wrapper_subclass": "a tensor of a custom class",
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": "a tensor on another device",
    "torch._utils._rebuild_device_tensor_from_numpy": "a tensor on another device",
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
    """The pickle is invalid, or does something that no checkpoint needs. Its message completes a sentence."""


@dataclass(frozen=True, slots=True)
class Storage:
    """The storage of a tensor's elements: the record `key` with `count` elements (bytes if `dtype` is None)."""

    key: str
    dtype: str | None
    count: int


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a storage. `offset` and `strides` count elements of `dtype`, which is torch's name."""

    storage: Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Other:
    """An allowed value in a checkpoint that is not streamed. With `is_tensor`, it is a tensor that cannot be."""

    what: str
    is_tensor: bool = False


@dataclass(frozen=True, slots=True)
class Global:
    """A name in the pickle: of a class, a function or a dtype."""

    name: str


class Ordered(dict[Any, Any]):
    """Stands for an OrderedDict."""


def key_of(key: Any) -> str | int:
    """Return a key for a dictionary. Raises PickleRefused for a key that could collide or be slow to hash."""
    if type(key) is str or (type(key) is int and -_INT32_END <= key < _INT32_END):
        return key
    raise PickleRefused("it has a dictionary with keys that are neither text nor small numbers")


def is_count(value: Any) -> bool:
    """Return whether a value is a number of things that may be in a file."""
    return type(value) is int and 0 <= value < 1 << 63


def storage_of(reference: Any, parts: int) -> Storage:
    """Return the storage that a persistent id names. A sixth part, in old files, must not describe a view."""
    valid = isinstance(reference, tuple) and len(reference) == parts
    if not valid or reference[0] != "storage" or reference[5:] not in ((), (None,)):
        raise PickleRefused("it refers to something that is not a storage")
    kind, key, location, count = reference[1:5]
    named = kind.name if isinstance(kind, Global) else ""
    is_known = named in STORAGE_DTYPES or (named == UNTYPED and parts == ID_PARTS)
    if not is_known or not isinstance(key, str) or not isinstance(location, str) or not is_count(count):
        raise PickleRefused("it describes an impossible storage")
    return Storage(key, STORAGE_DTYPES.get(named), count)


def called(function: Any, arguments: Any) -> Any:
    """Return a stand-in for `function(*arguments)`. Raises PickleRefused if torch would not call it."""
    name = function.name if isinstance(function, Global) else ""
    if not isinstance(arguments, tuple):
        raise PickleRefused("it calls something without a list of arguments")
    if name in _CALLS:
        fewest, most, call = _CALLS[name]
        if not fewest <= len(arguments) <= most:
            raise PickleRefused(f"it calls {name} with {len(arguments)} arguments")
        return call(*arguments)
    if name in _OTHER_TENSORS:
        return Other(_OTHER_TENSORS[name], is_tensor=True)
    if name in _OTHER_CALLS:
        return Other(name)
    raise PickleRefused(f"it calls {name or 'something'}, which is not allowed")


def _ordered(pairs: Any = ()) -> Ordered:
    valid = isinstance(pairs, list | tuple)
    if not valid or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        raise PickleRefused("it creates a dictionary from something that is not a list of pairs")
    return Ordered((key_of(key), value) for key, value in pairs)


def _tensor(
    storage: Any, offset: Any, shape: Any, strides: Any, grad: Any = False, hooks: Any = None, metadata: Any = None
) -> StoredTensor | Other:
    """Stand in for `_rebuild_tensor` and `_rebuild_tensor_v2`."""
    dtype = storage.dtype if isinstance(storage, Storage) and storage.dtype else "None"
    return _tensor_v3(storage, offset, shape, strides, grad, hooks, Global(f"torch.{dtype}"), metadata)


def _tensor_v3(
    storage: Any, offset: Any, shape: Any, strides: Any, grad: Any, hooks: Any, dtype: Any, metadata: Any = None
) -> StoredTensor | Other:
    if not isinstance(storage, Storage) or not isinstance(dtype, Global) or dtype.name not in DTYPES:
        raise PickleRefused("it creates a tensor without a valid storage or dtype")
    sizes = isinstance(shape, tuple) and isinstance(strides, tuple) and len(shape) == len(strides)
    if not sizes or len(shape) > MAX_DIMENSIONS or not all(map(is_count, (offset, *shape, *strides))):
        raise PickleRefused("it creates a tensor with an impossible offset, shape or strides")
    if not isinstance(metadata, dict | None):
        raise PickleRefused("it creates a tensor with invalid metadata")
    _check_gradient(dtype.name, grad, hooks)
    if metadata:
        return Other("a conjugated or negated view", is_tensor=True)
    return StoredTensor(storage, dtype.name.removeprefix("torch."), offset, shape, strides)


def _check_gradient(dtype: str, grad: Any, hooks: Any) -> None:
    if type(grad) is not bool or not isinstance(hooks, dict | None):
        raise PickleRefused("it creates a tensor with invalid gradient settings")
    if grad and not dtype.startswith(("torch.float", "torch.bfloat", "torch.complex")):
        raise PickleRefused("it creates a tensor of integers with a gradient")


def _parameter(data: Any, grad: Any, hooks: Any, state: Any = None) -> StoredTensor | Other:
    if not isinstance(data, StoredTensor | Other) or (isinstance(data, Other) and not data.is_tensor):
        raise PickleRefused("it creates a parameter from something that is not a tensor")
    _check_gradient(f"torch.{data.dtype}" if isinstance(data, StoredTensor) else "torch.float", grad, hooks)
    return Other("a parameter with custom attributes", is_tensor=True) if state else data


def _typed(function: Any, kind: Any, arguments: Any, state: Any) -> Any:
    if not isinstance(kind, Global) or function == Global("torch._tensor._rebuild_from_type_v2"):
        raise PickleRefused("it creates a tensor without a class")
    value = called(function, arguments)
    told = state.keys() if isinstance(state, dict) else {state} - {None}
    # FSDP of one rank marks what it has cloned.
    plain = kind.name in _TENSOR_TYPES and isinstance(value, StoredTensor) and told <= {"_has_been_cloned"}
    return value if plain else Other("a tensor with a custom class or custom attributes", is_tensor=True)


def _size(lengths: Any = ()) -> tuple[Any, ...]:
    if not isinstance(lengths, tuple | list) or not all(map(is_count, lengths)):
        raise PickleRefused("it creates a shape with invalid lengths")
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
"""The functions that are followed: their fewest and most arguments, and the stand-in for each."""

FOLLOWED = frozenset({*_CALLS, *_OTHER_TENSORS})
ALLOWED = frozenset(
    {UNTYPED, *STORAGE_DTYPES, *DTYPES, *_TENSOR_TYPES, *_OTHER_TENSORS, *_OTHER_CALLS, *_OTHER_NAMES, *_CALLS}
)
"""Names that a pickle may use, a subset of the names that the weights-only reader allows."""
