"""FP8 with scales for the tensor, channels or blocks, by all names that people give them. Pure."""

from collections.abc import Mapping
from typing import Any

from sharding.core.values import Tensor
from sharding.planning.quantizers.format import (
    EXPONENTS,
    NUMBERS,
    OF_CHANNEL,
    WHOLE,
    Block,
    Format,
    Scheme,
    Weight,
    refusal,
)
from sharding.planning.quantizers.fp4 import FP4_EXPERTS, OF_MODELOPT
from sharding.recipes.quantized import Codes, Scaled

OF_32 = (1, 32)
_SCALES = (("_scale_inv", "_scale", "scale", "scale_weight", "qscale_weight"),)
"""Names of DeepSeek and Qwen, of AutoFP8, vLLM and ModelOpt, of DeepSeek-V4, of ComfyUI, and of Mistral."""


def _make(weight: Weight) -> Tensor:
    scheme, codes = weight.scheme, weight.codes
    # Fine-grained FP8 multiplies in float32, compressed-tensors in the dtype of its scales. The exception is the
    # experts that transformers 5.23 unites: it multiplies those in float32 (`CompressedTensorsDequantize`).
    dtype = weight.rounded if scheme.rounds_to_scale and ".experts." not in codes.name else "F32"
    blocks = (*scheme.blocks, OF_32) if weight.scales.dtype in EXPONENTS else scheme.blocks
    grid = weight.grid(codes.shape, *blocks)
    return weight.made(Scaled(codes.recipe, Codes(codes.dtype), codes.shape, grid, dtype))


FP8 = Format("fp8", "", "", ("F8_E4M3",), _SCALES, (*NUMBERS, *EXPONENTS), _make)
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


def block_in(size: Any, method: str) -> Block:
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
