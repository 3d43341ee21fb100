"""Choose the formula that dequantizes weights, or say why there is none. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sharding.core.errors import SourceError
from sharding.formats.quantization import method_of

Block = tuple[int, int]  # Rows and columns of numbers that share a scale; 0 means all of them.
OF_ORIGIN = "Use the repo that it was quantized from. Its card usually names that repo as the base model."
_BY_TRANSFORMERS = f"transformers may be able to dequantize it with %s(dequantize=True). Or: {OF_ORIGIN}"
_HINTS = {
    "bitsandbytes": "Load it with transformers on a GPU, then call model.dequantize() and save_pretrained. Or use the "
    "repo that it was quantized from.",
    "compressed-tensors": _BY_TRANSFORMERS % "CompressedTensorsConfig",
    "fp8": _BY_TRANSFORMERS % "FineGrainedFP8Config",
    "mxfp8": _BY_TRANSFORMERS % "FineGrainedFP8Config",
}
"""The hint for each method. For all others, such as GPTQ, AWQ, torchao and NVFP4, it is `OF_ORIGIN`."""

PARTS = ("_scale_inv", "_scale", "_blocks", "_scales")
"""Endings that the parts of a quantized weight have after its name."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the weights of a component are quantized, and where their scales are.

    `words` describe it for people. The tensor with the numbers has the name of the weight plus `packed`; the one with
    the scales, the name plus `scale`. `blocks` are the blocks that a weight may have. `dropped` are the endings of
    tensors that only a kernel for quantized weights reads. With `rounds_to_scale`, products are rounded to the dtype of
    their scales.
    """

    words: str
    encoding: Literal["fp8", "fp4"]
    packed: str
    scale: str
    blocks: tuple[Block, ...]
    dropped: tuple[str, ...] = ()
    rounds_to_scale: bool = False


def scheme_of(quantization: Mapping[str, Any]) -> Scheme:
    """Return the scheme for the `quantization` of a config.json. Raises SourceError, which names any other method."""
    method = method_of(quantization)
    if method == "mxfp4":
        return Scheme("mxfp4, one scale for each 32 numbers", "fp4", "_blocks", "_scales", ())
    if method == "fp8":
        return _fine_grained(quantization)
    if method == "compressed-tensors":
        return _compressed(quantization)
    raise refusal(method)


def can_help(quantization: Mapping[str, Any]) -> bool:
    """Return whether weights with this `quantization` can be dequantized."""
    try:
        scheme_of(quantization)
    except SourceError:
        return False
    return True


def refusal(what: str, method: str = "") -> SourceError:
    """Return the error for weights quantized with `what`, a kind of `method`."""
    hint = _HINTS.get(method or what, OF_ORIGIN)
    return SourceError(f"This tool cannot dequantize weights that are quantized with {what}.", hint)


def _fine_grained(quantization: Mapping[str, Any]) -> Scheme:
    """Return the scheme of `FineGrainedFP8Config` (transformers 5.23), which DeepSeek-V3 uses."""
    if quantization.get("expert_dtype", "fp8") != "fp8":
        raise refusal("fp8 with experts in fp4", "fp8")
    size = quantization.get("weight_block_size", (128, 128))
    block = (0, 0) if size is None else _block(size, "fp8")
    if block == (1, 32):
        raise refusal("mxfp8")
    words = "fp8, one scale a tensor" if size is None else f"fp8, one scale for each {block[0]} x {block[1]}"
    return Scheme(words, "fp8", "", "_scale_inv", (block, (0, 0)), ("activation_scale", "input_scale"))


_STRATEGIES = {"tensor": "one scale a tensor", "channel": "one scale a channel", "block": "one scale for each block"}


def _compressed(quantization: Mapping[str, Any]) -> Scheme:
    """Return the scheme of compressed-tensors 0.20 (`NaiveQuantizationCompressor.decompress`) for its FP8."""
    method = "compressed-tensors"
    stated = quantization.get("config_groups")
    groups = [group for group in stated.values() if isinstance(group, dict)] if isinstance(stated, dict) else []
    weights = [group["weights"] for group in groups if isinstance(group.get("weights"), dict)]
    formats = {str(name)[:50] for name in (quantization.get("format"), *(group.get("format") for group in groups))}
    formats = formats - {"None"} or {"no format"}
    if other := sorted(formats - {"float-quantized"}):
        raise refusal(f"{method} {other[0]}", method)
    if not weights or len(weights) < len(groups):
        raise refusal(f"{method} that does not say how", method)
    for key in ("sparsity_config", "transform_config"):
        config = quantization.get(key)
        if config and not (isinstance(config, dict) and config.get("format", "") == "dense"):
            raise refusal(f"{method} and a {key}", method)
    blocks: list[Block] = []
    words: dict[str, None] = {}
    for scheme in weights:
        strategy = str(scheme.get("strategy"))[:50]
        is_fp8 = (scheme.get("type"), scheme.get("num_bits"), scheme.get("symmetric", True)) == ("float", 8, True)
        if not is_fp8 or strategy not in _STRATEGIES:
            raise refusal(f"{method} other than fp8 with {', '.join(_STRATEGIES)} scales", method)
        usual = {"tensor": (0, 0), "channel": (1, 0)}.get(strategy)
        blocks.append(usual or _block(scheme.get("block_structure"), method))
        words[_STRATEGIES[strategy]] = None
    dropped = ["input_scale", "input_zero_point", "output_scale", "output_zero_point"]
    if quantization.get("kv_cache_scheme"):
        dropped += ["k_scale", "v_scale", "q_scale", "k_zero_point", "v_zero_point"]
    summary = f"compressed-tensors float-quantized (fp8), {' or '.join(words)}"
    return Scheme(summary, "fp8", "", "_scale", (*blocks, (0, 0)), tuple(dropped), rounds_to_scale=True)


def _block(size: Any, method: str) -> Block:
    is_pair = isinstance(size, list | tuple) and len(size) == 2
    if is_pair and all(type(side) is int and 0 < side < 2**31 for side in size):
        return size[0], size[1]
    raise refusal(f"{method} in blocks of {str(size)[:50]}", method)
