"""Integers of compressed-tensors: of 8 bits as they are, and of 2, 4 and 8 bits packed into words. Pure."""

from struct import unpack

from sharding.core.errors import SourceError
from sharding.core.values import Tensor
from sharding.planning.quantizers.format import NUMBERS, Format, Weight
from sharding.recipes.quantized import Codes, Grid, Scaled


def _whole(weight: Weight) -> Tensor:
    codes, zeros = weight.codes, weight.parts.get("_zero_point")
    grid = weight.grid(codes.shape, *weight.scheme.blocks)
    if zeros and (zeros.dtype, zeros.shape) != ("I8", weight.scales.shape):
        raise weight.odd()
    of_zeros = Grid(zeros.recipe, Codes("I8"), grid.block) if zeros else None
    return weight.made(Scaled(codes.recipe, Codes("I8"), codes.shape, grid, weight.rounded, of_zeros))


def _packed(weight: Weight) -> Tensor:
    codes, scales, zeros = weight.codes, weight.scales, weight.parts.get("_zero_point")
    fitting = dict[tuple[int, tuple[int, ...], int], None]()
    for bits, group in weight.scheme.integers:
        columns = scales.shape[-1] * group if group and scales.shape else _columns(weight, bits)
        if codes.shape and codes.shape[-1] == -(-columns * bits // 32):
            fitting[bits, (*codes.shape[:-1], columns), group] = None
    if len(fitting) > 1:
        message = f"config.json has several groups that {codes.name} may be of: {weight.scheme.words}."
        raise SourceError(message, "Leave one of them in config.json, or use the repo that it was quantized from.")
    if not fitting:
        raise weight.odd()
    ((bits, shape, group),) = fitting
    grid = weight.grid(shape, (1, group))
    kind, of_zeros = f"U{bits}", None
    if zeros:
        rows = -(-shape[-2] * bits // 32)
        if zeros.dtype != "I32" or zeros.shape != (*shape[:-2], rows, scales.shape[-1]):
            raise weight.odd()
        of_zeros = Grid(zeros.recipe, Codes(kind, down=4), grid.block)
    index, zero = weight.recipe("_g_idx"), 0 if zeros else 1 << bits - 1
    return weight.made(Scaled(codes.recipe, Codes(kind), shape, grid, weight.rounded, of_zeros, zero, index=index))


def _columns(weight: Weight, bits: int) -> int:
    """Return the columns of a weight with a scale a channel. Only `weight_shape` has them."""
    shape, note = weight.parts.get("_shape"), weight.notes.get("_shape", b"")
    if shape is None or len(note) not in (8, 16):
        return weight.codes.shape[-1] * 32 // bits if weight.codes.shape else 0
    return int(unpack("<2q" if len(note) == 16 else "<2i", note)[1])


INT8 = Format("int8", ".weight", ".weight", ("I8",), (("_scale",),), NUMBERS, _whole, ("_zero_point",))
PACKED = Format(
    "packed integers", ".weight_packed", ".weight", ("I32",), (("_scale",),), NUMBERS, _packed,
    ("_zero_point", "_shape", "_g_idx"),
)  # fmt: skip
