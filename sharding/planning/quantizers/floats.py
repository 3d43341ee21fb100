"""Weights of FP8 and FP4 (E2M1), with scales for the tensor, channels, blocks or groups. Pure."""

from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Any

from sharding.core.limits import MAX_EXPERT_BYTES
from sharding.core.values import Tensor
from sharding.planning.quantizers.format import EXPONENTS, NUMBERS, OF_CHANNEL, WHOLE, Format, Scheme, Weight, refusal
from sharding.recipes.laid import laid_of
from sharding.recipes.quantized import Codes, Grid, Scaled


def _of_fp4(weight: Weight, group: int, times: str = "", divides: bool = False) -> Tensor:
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
    "fp4", ".weight", ".weight", ("I8",), (("scale", "_scale_inv"),), EXPONENTS, partial(_of_fp4, group=32)
)
"""The experts of DeepSeek-V4, as `Fp8Dequantize` of transformers 5.23 computes them."""
MXFP4 = Format("mxfp4", ".weight_packed", ".weight", ("U8",), (("_scale",),), EXPONENTS, partial(_of_fp4, group=32))
NVFP4 = Format(
    "nvfp4", ".weight_packed", ".weight", ("U8",), (("_scale",), ("_global_scale",)), ("F8_E4M3",),
    partial(_of_fp4, group=16, times="_global_scale", divides=True),
)  # fmt: skip
"""Both of compressed-tensors 0.20 (`MXFP4PackedCompressor`, `NVFP4PackedCompressor`)."""
OF_MODELOPT = Format(
    "nvfp4", ".weight", ".weight", ("U8",), (("_scale",), ("_scale_2",)), ("F8_E4M3",),
    partial(_of_fp4, group=16, times="_scale_2"),
)  # fmt: skip
"""`NVFP4QTensor.dequantize` of nvidia-modelopt 0.47."""

OF_32 = (1, 32)
_SCALES = (("_scale_inv", "_scale", "scale", "scale_weight", "qscale_weight"),)
"""Names of DeepSeek and Qwen, of AutoFP8, vLLM and ModelOpt, of DeepSeek-V4, of ComfyUI, and of Mistral."""


def _of_fp8(weight: Weight) -> Tensor:
    scheme, codes = weight.scheme, weight.codes
    # Fine-grained FP8 multiplies in float32, compressed-tensors in the dtype of its scales. The exception is the
    # experts that transformers 5.23 unites: it multiplies those in float32 (`CompressedTensorsDequantize`).
    dtype = weight.rounded if scheme.rounds_to_scale and ".experts." not in codes.name else "F32"
    blocks = (*scheme.blocks, OF_32) if weight.scales.dtype in EXPONENTS else scheme.blocks
    grid = weight.grid(codes.shape, *blocks)
    return weight.made(Scaled(codes.recipe, Codes(codes.dtype), codes.shape, grid, dtype))


FP8 = Format("fp8", "", "", ("F8_E4M3",), _SCALES, (*NUMBERS, *EXPONENTS), _of_fp8)
"""The formula is float32(weight) * float32(scale), as in `weight_dequant` of DeepSeek-V3 (inference/kernel.py)."""


def fine_grained(quantization: Mapping[str, Any]) -> Scheme:
    """Return the scheme of `FineGrainedFP8Config` (transformers 5.23) and AutoFP8. Raises SourceError."""
    experts = quantization.get("expert_dtype", "fp8")
    if experts not in ("fp8", "fp4"):
        raise refusal(f"fp8 with experts in {str(experts)[:50]}", "fp8")
    size = quantization.get("weight_block_size", (128, 128))
    block = WHOLE if size is None else block_in(size, "fp8")
    words = "fp8, one scale a tensor" if size is None else f"fp8, one scale for each {block[0]} x {block[1]}"
    words = words if "weight_block_size" in quantization else "fp8"
    words = "mxfp8, one scale for each 32 numbers" if block == OF_32 else words
    words += ", and experts in fp4, one scale for each 32 numbers" if experts == "fp4" else ""
    return Scheme(words, (FP8, FP4_EXPERTS) if experts == "fp4" else (FP8,), (block, WHOLE, OF_CHANNEL))


def block_in(size: Any, method: str) -> tuple[int, int]:
    """Return a block as a configuration states it. Raises SourceError if it is none."""
    is_pair = isinstance(size, list | tuple) and len(size) == 2
    if is_pair and all(type(side) is int and 0 < side < 2**31 for side in size):
        return size[0], size[1]
    raise refusal(f"{method} in blocks of {str(size)[:50]}", method)


_OF_MODELOPT = ("FP8", "FP8_PB_WO", "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4", "MXFP8", "MIXED_PRECISION")


def modelopt(quantization: Mapping[str, Any]) -> Scheme:
    """Return the scheme of NVIDIA's ModelOpt. Raises SourceError for what it cannot be."""
    stated = quantization.get("quantization")
    algorithm = str((stated if isinstance(stated, dict) else quantization).get("quant_algo"))[:50]
    if algorithm not in _OF_MODELOPT:
        raise refusal(f"modelopt {algorithm}", "modelopt")
    return Scheme(f"modelopt {algorithm}", (FP8, OF_MODELOPT))


COMFY = Scheme("the scaled fp8 of ComfyUI", (FP8._replace(dtypes=("F8_E4M3", "F8_E5M2"), scales=NUMBERS),))
"""ComfyUI has other formats under the same names, whose scales lie in another order."""
