"""compressed-tensors: what it says of its weights, of which its integers are made here. Pure."""

from collections.abc import Mapping
from struct import unpack
from typing import Any

from sharding.core.errors import SourceError
from sharding.core.values import Tensor
from sharding.planning.quantizers.floats import FP8, MXFP4, NVFP4, block_in
from sharding.planning.quantizers.format import NUMBERS, OF_CHANNEL, WHOLE, Block, Format, Scheme, Weight, refusal
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

METHOD = "compressed-tensors"
_FORMATS: dict[tuple[str, str, int], Format] = {
    ("float-quantized", "float", 8): FP8,
    ("naive-quantized", "float", 8): FP8,
    ("naive-quantized", "int", 8): INT8,
    ("int-quantized", "int", 8): INT8,
    **{("pack-quantized", "int", bits): PACKED for bits in (2, 4, 8)},
    ("nvfp4-pack-quantized", "float", 4): NVFP4,
    ("mxfp4-pack-quantized", "float", 4): MXFP4,
    ("mxfp8-quantized", "float", 8): FP8,
}
"""The formats of compressed-tensors 0.20 by name, type and bits, each as its compressor's `decompress` computes it."""
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
    strategy, size = str(weights.get("strategy"))[:50], weights.get("group_size")
    if strategy in ("group", "tensor_group") and type(size) is int and 0 < size < 2**31:
        if form is not FP8 or name == "mxfp8-quantized":
            return (1, size), f"one scale for each {size}"
    elif strategy in _STRATEGIES and form not in (NVFP4, MXFP4) and not (form is PACKED and strategy == "block"):
        usual = {"tensor": WHOLE, "channel": OF_CHANNEL}.get(strategy)
        return usual or block_in(weights.get("block_structure"), METHOD), _STRATEGIES[strategy]
    raise refusal(f"{METHOD} {name} with a scale for each {strategy}", METHOD)
