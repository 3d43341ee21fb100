"""FP4 (E2M1) with a scale for each group of numbers: MXFP4, NVFP4, and the experts of gpt-oss. Pure."""

from functools import partial
from math import prod

from sharding.core.limits import MAX_EXPERT_BYTES
from sharding.core.values import Tensor
from sharding.planning.quantizers.format import EXPONENTS, Format, Weight
from sharding.recipes.laid import laid_of
from sharding.recipes.quantized import Codes, Grid, Scaled


def _make(weight: Weight, group: int, times: str = "", divides: bool = False) -> Tensor:
    codes = weight.codes
    shape = (*codes.shape[:-1], 2 * codes.shape[-1]) if codes.shape else ()
    grid = weight.grid(shape, (1, group), times=times, divides=divides)
    return weight.made(Scaled(codes.recipe, Codes("E2M1"), shape, grid, "F32"))


def _gpt_oss(weight: Weight) -> Tensor:
    """Return the experts as the class saves them, transposed (`convert_moe_packed_tensors` of transformers 5.23)."""
    packed, scales = weight.codes, weight.scales
    fits = (*scales.shape, 16) == packed.shape and len(packed.shape) == 4
    if not fits or prod(scales.shape[1:]) > MAX_EXPERT_BYTES:
        raise weight.odd()
    experts, rows, groups, _ = packed.shape
    turned = laid_of(packed).with_axes(0, 2, 3, 1)
    grid = Grid(scales.recipe, Codes("2^/2"), (32, 1), turned=True)
    shape = experts, groups * 32, rows
    return weight.made(Scaled(turned, Codes("2·E2M1", down=1), shape, grid, "F32"))


GPT_OSS = Format("mxfp4", "_blocks", "", ("U8",), (("_scales",),), ("U8",), _gpt_oss)
FP4_EXPERTS = Format(
    "fp4", ".weight", ".weight", ("I8",), (("scale", "_scale_inv"),), EXPONENTS, partial(_make, group=32)
)
"""The experts of DeepSeek-V4, as `Fp8Dequantize` of transformers 5.23 computes them."""
MXFP4 = Format("mxfp4", ".weight_packed", ".weight", ("U8",), (("_scale",),), EXPONENTS, partial(_make, group=32))
NVFP4 = Format(
    "nvfp4", ".weight_packed", ".weight", ("U8",), (("_scale",), ("_global_scale",)), ("F8_E4M3",),
    partial(_make, group=16, times="_global_scale", divides=True),
)  # fmt: skip
"""Both of compressed-tensors 0.20 (`MXFP4PackedCompressor`, `NVFP4PackedCompressor`)."""
OF_MODELOPT = Format(
    "nvfp4", ".weight", ".weight", ("U8",), (("_scale",), ("_scale_2",)), ("F8_E4M3",),
    partial(_make, group=16, times="_scale_2"),
)  # fmt: skip
"""`NVFP4QTensor.dequantize` of nvidia-modelopt 0.47."""
