"""Read what compressed-tensors says of its weights. Pure."""

from collections.abc import Mapping
from typing import Any

from sharding.planning.quantizers.format import OF_CHANNEL, WHOLE, Block, Format, Scheme, refusal
from sharding.planning.quantizers.fp4 import MXFP4, NVFP4
from sharding.planning.quantizers.fp8 import FP8, block_in
from sharding.planning.quantizers.integers import INT8, PACKED

METHOD = "compressed-tensors"
_FORMATS: dict[tuple[str, str, int], Format] = {
    ("float-quantized", "float", 8): FP8,
    ("naive-quantized", "float", 8): FP8,
    ("naive-quantized", "int", 8): INT8,
    ("int-quantized", "int", 8): INT8,
    ("pack-quantized", "int", 2): PACKED,
    ("pack-quantized", "int", 4): PACKED,
    ("pack-quantized", "int", 8): PACKED,
    ("nvfp4-pack-quantized", "float", 4): NVFP4,
    ("mxfp4-pack-quantized", "float", 4): MXFP4,
    ("mxfp8-quantized", "float", 8): FP8,
}
"""The formats of compressed-tensors 0.20 that are read, by their name, type and bits. Each is what its compressor's
`decompress` computes."""
_STRATEGIES = {"tensor": "one scale a tensor", "channel": "one scale a channel", "block": "one scale for each block"}


def compressed(quantization: Mapping[str, Any]) -> Scheme:
    """Return the scheme of compressed-tensors 0.20. Raises SourceError."""
    stated = quantization.get("config_groups")
    groups = [group for group in stated.values() if isinstance(group, dict)] if isinstance(stated, dict) else []
    if not groups or not all(isinstance(group.get("weights"), dict) for group in groups):
        raise refusal(f"{METHOD} that does not say how", METHOD)
    for key in ("sparsity_config", "transform_config"):
        config = quantization.get(key)
        if config and not (isinstance(config, dict) and config.get("format", "") == "dense"):
            raise refusal(f"{METHOD} and a {key}", METHOD)
    formats, blocks, integers = dict[Format, None](), dict[Block, None](), dict[tuple[int, int], None]()
    words: dict[str, dict[str, None]] = {}
    for group in groups:
        weights, name = group["weights"], str(group.get("format") or quantization.get("format"))[:50]
        what, bits = f"{str(weights.get('type', 'int'))[:20]}", weights.get("num_bits")
        found = _FORMATS.get((name, what, bits)) if isinstance(bits, int) else None
        is_symmetric = weights.get("symmetric", True) is not False
        if found is None or not (is_symmetric or found in (INT8, PACKED)):
            how = "" if is_symmetric else ", asymmetric"
            raise refusal(f"{METHOD} {name} ({what}{str(bits)[:20]}{how})", METHOD)
        block, scales = _block(weights, found, name)
        formats[found] = blocks[block] = None
        if found is PACKED:
            integers[int(bits), block[1]] = None
        words.setdefault(f"{name} ({what.replace('float', 'fp')}{bits})", {})[scales] = None
    said = " and ".join(f"{name}, {' or '.join(scales)}" for name, scales in words.items())
    return Scheme(f"{METHOD} {said}", (*formats,), (*blocks, WHOLE), (*integers,), rounds_to_scale=True)


def _block(weights: Mapping[str, Any], form: Format, name: str) -> tuple[Block, str]:
    """Return the rows and columns that share a scale, and how that is called. Raises SourceError."""
    strategy, size = str(weights.get("strategy"))[:50], weights.get("group_size")
    if strategy in ("group", "tensor_group") and type(size) is int and 0 < size < 2**31:
        if form is not FP8 or name == "mxfp8-quantized":
            return (1, size), f"one scale for each {size}"
    elif strategy in _STRATEGIES and form not in (NVFP4, MXFP4) and not (form is PACKED and strategy == "block"):
        usual = {"tensor": WHOLE, "channel": OF_CHANNEL}.get(strategy)
        return usual or block_in(weights.get("block_structure"), METHOD), _STRATEGIES[strategy]
    raise refusal(f"{METHOD} {name} with a scale for each {strategy}", METHOD)
