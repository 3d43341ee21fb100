"""Name the dtypes, and say how large their elements are. Pure."""

from collections.abc import Iterable

SAFETENSORS_DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "complex64": "C64", "bool": "BOOL",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
    "float8_e4m3fn": "F8_E4M3", "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ", "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip
"""torch's names of dtypes, and those of the safetensors format."""


def item_bytes(dtype: str | None) -> int:
    """Return the size of an element of torch's `dtype`; None is that of bytes of no type."""
    known = SAFETENSORS_DTYPES.get(dtype or "uint8")
    if known is None:
        return 16 if dtype == "complex128" else 4 if dtype in ("qint32", "complex32") else 1
    return tensor_bytes(known, ())


STORED = {"fp32": "F32", "fp16": "F16", "bf16": "BF16"}
"""The names that options have, and those of safetensors."""

TORCH = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""What can be cast: the names of safetensors, and torch's. Integers, booleans and fp8 stay as they are."""

DTYPE_BITS = {
    "U64": 64, "I64": 64, "F64": 64, "C64": 64, "F32": 32, "U32": 32, "I32": 32, "BF16": 16, "F16": 16,
    "U16": 16, "I16": 16, "F8_E5M2FNUZ": 8, "F8_E4M3FNUZ": 8, "F8_E8M0": 8, "F8_E4M3": 8, "F8_E5M2": 8,
    "I8": 8, "U8": 8, "F6_E3M2": 6, "F6_E2M3": 6, "F4": 4, "BOOL": 8,
}  # fmt: skip
"""Bits per element, in the order in which the writer sorts tensors: dtype first, then name."""
_USIZE_END = 1 << 64


def tensor_bytes(dtype: str, shape: Iterable[int]) -> int:
    """Return the stored size in bytes of a tensor; raise ValueError where the format has none.

    >>> tensor_bytes("BF16", (3, 4)), tensor_bytes("F4", (6,))
    (24, 3)
    """
    count = DTYPE_BITS[dtype]
    elements = 1
    for length in shape:
        elements *= length
        if elements >= _USIZE_END:
            raise ValueError("the number of elements overflows 64 bits")
    bits = elements * count
    if bits >= _USIZE_END:
        raise ValueError("the number of bits overflows 64 bits")
    if bits % 8:
        raise ValueError(f"a {dtype} tensor ends within a byte")
    return bits // 8


DTYPES = {"keep": None, "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
"""The names that options have, and torch's."""
