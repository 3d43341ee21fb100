"""Say of what a tensor is computed that no file holds: of quantized numbers and their scales. Pure."""

from dataclasses import dataclass
from typing import Literal, NamedTuple


class Numbers(NamedTuple):
    """Where numbers lie one after another: from byte `start_byte` of `file`, in safetensors' `dtype`."""

    file: str
    start_byte: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Computed:
    """A tensor that is computed when it is read, at `[start_byte, end_byte)` of `file`: there, beyond the file's end.

    It has `shape` and safetensors' `dtype`, to which each product of a number and its scale is rounded.

    `encoding` "fp8": `packed` has its shape, and `scales` one number for each `block` of its last two dimensions, of
    which the last ones are cut short, or a single one. "fp4": `packed` is (experts, groups, rows, 16) with two numbers
    in a byte, the lower half first, `scales` is (experts, groups, rows) of bytes, each 127 more than an exponent of
    two, and the tensor (experts, 32 * groups, rows).
    """

    file: str
    start_byte: int
    end_byte: int
    dtype: str
    shape: tuple[int, ...]
    encoding: Literal["fp8", "fp4"]
    packed: Numbers
    scales: Numbers
    block: tuple[int, int] = (1, 1)
