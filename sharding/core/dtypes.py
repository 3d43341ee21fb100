"""The names and element sizes of all dtypes. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_args

from sharding.core.option import chosen
from sharding.core.options import TargetDtype


@dataclass(frozen=True, slots=True)
class Dtype:
    """A dtype: its name in safetensors and in torch ("" if it has no name there), and the bits of an element.

    A dtype that can be cast has two more fields. `infinity` is the bit pattern of infinity (IEEE 754; bfloat16 is the
    upper half of float32). A larger exponent in it means that larger numbers fit. `largest` is the largest finite
    number, as in `torch.finfo`. Integers, booleans and fp8 have neither field. Nothing is cast to them.
    """

    name: str
    torch: str
    bits: int
    infinity: int = 0
    largest: float = 0.0


_TABLE = (
    Dtype("U64", "uint64", 64),
    Dtype("I64", "int64", 64),
    Dtype("F64", "float64", 64, 0x7FF0_0000_0000_0000, 1.7976931348623157e308),
    Dtype("C64", "complex64", 64),
    Dtype("F32", "float32", 32, 0x7F80_0000, 3.4028234663852886e38),
    Dtype("U32", "uint32", 32),
    Dtype("I32", "int32", 32),
    Dtype("BF16", "bfloat16", 16, 0x7F80, 3.3895313892515355e38),
    Dtype("F16", "float16", 16, 0x7C00, 65504.0),
    Dtype("U16", "uint16", 16),
    Dtype("I16", "int16", 16),
    Dtype("F8_E5M2FNUZ", "float8_e5m2fnuz", 8),
    Dtype("F8_E4M3FNUZ", "float8_e4m3fnuz", 8),
    Dtype("F8_E8M0", "float8_e8m0fnu", 8),
    Dtype("F8_E4M3", "float8_e4m3fn", 8),
    Dtype("F8_E5M2", "float8_e5m2", 8),
    Dtype("I8", "int8", 8),
    Dtype("U8", "uint8", 8),
    Dtype("F6_E3M2", "", 6),
    Dtype("F6_E2M3", "", 6),
    Dtype("F4", "", 4),
    Dtype("BOOL", "bool", 8),
    # Dtypes that files of torch may hold and safetensors files may not.
    Dtype("", "complex128", 128),
    Dtype("", "complex32", 32),
    Dtype("", "float4_e2m1fn_x2", 8),
    Dtype("", "qint32", 32),
    Dtype("", "qint8", 8),
    Dtype("", "quint8", 8),
    Dtype("", "quint4x2", 8),
    Dtype("", "quint2x4", 8),
)
"""In the order of safetensors 0.8's writer (`Dtype` in its Rust source), then those that only torch 2.13 has."""

BY_NAME = {dtype.name: dtype for dtype in _TABLE if dtype.name}
"""Dtypes by their name in safetensors, in the order in which the writer sorts tensors."""

BY_TORCH = {dtype.torch: dtype for dtype in _TABLE if dtype.torch}  # Dtypes by their name in torch.

BY_OPTION = {"fp32": BY_NAME["F32"], "fp16": BY_NAME["F16"], "bf16": BY_NAME["BF16"]}

CASTABLE = {name: dtype for name, dtype in BY_NAME.items() if dtype.infinity}

NUMBERS = (*CASTABLE, "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
"""Dtypes whose numbers can be cast to one of `CASTABLE`. FP8 counts only if its numbers need no scales."""

USIZE_END = 1 << 64


def torch_name(option: str) -> str | None:
    """Return torch's name of the dtype that an option names; None for "keep". Raises UsageError for an unknown dtype.

    >>> torch_name("bf16"), torch_name("keep")
    ('bfloat16', None)
    """
    return BY_OPTION[option].torch if chosen("dtype", option, get_args(TargetDtype)) != "keep" else None


def item_bytes(torch_dtype: str | None) -> int:
    """Return the size in bytes of an element of torch's `torch_dtype`. None means untyped bytes."""
    return BY_TORCH[torch_dtype or "uint8"].bits // 8


def tensor_bytes(dtype: str, shape: Iterable[int]) -> int:
    """Return how many bytes safetensors stores for a tensor of its `dtype`. Raises ValueError if that is not possible.

    >>> tensor_bytes("BF16", (3, 4)), tensor_bytes("F4", (6,))
    (24, 3)
    """
    count = BY_NAME[dtype].bits
    elements = 1
    for length in shape:
        elements *= length
        if elements >= USIZE_END:
            raise ValueError("the number of elements overflows 64 bits")
    bits = elements * count
    if bits >= USIZE_END:
        raise ValueError("the number of bits overflows 64 bits")
    if bits % 8:
        raise ValueError(f"a {dtype} tensor ends within a byte")
    return bits // 8
