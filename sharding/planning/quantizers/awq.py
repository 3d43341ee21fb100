"""AWQ (GEMM), whose weights lie transposed in words of eight numbers of a row. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sharding.core.values import Tensor
from sharding.planning.quantizers.format import NUMBERS, Format, Scheme, Weight, refusal
from sharding.planning.quantizers.gptq import TILE_BYTES
from sharding.recipes.laid import laid_of
from sharding.recipes.quantized import Codes, Grid, Scaled

_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""The places of the eight numbers of a word (`AWQ_REVERSE_ORDER` of AutoAWQ 0.2.9)."""


def _make(weight: Weight) -> Tensor:
    """Return the weight as `dequantize_gemm` of AutoAWQ 0.2.9 computes it, transposed."""
    words, scales, zeros = weight.codes, weight.scales, weight.parts["qzeros"]
    if len(words.shape) != 2 or len(scales.shape) != 2:
        raise weight.odd()
    shape = words.shape[1] * 8, words.shape[0]
    group = weight.scheme.integers[0][1] or shape[1]
    groups = -(-shape[1] // group)
    if scales.shape != (groups, shape[0]) or (zeros.dtype, zeros.shape) != ("I32", (groups, words.shape[1])):
        raise weight.odd()
    turned = replace(laid_of(words).turned(), tile_bytes=TILE_BYTES)
    grid = Grid(scales.recipe, Codes(scales.dtype), (1, group), turned=True)
    of_zeros = Grid(zeros.recipe, Codes("U4", _ORDER), (1, group), turned=True)
    return weight.made(Scaled(turned, Codes("U4", _ORDER, 4), shape, grid, scales.dtype, of_zeros))


AWQ = Format("awq", ".qweight", ".weight", ("I32",), (("scales",), ("qzeros",)), NUMBERS, _make)


def awq(quantization: Mapping[str, Any]) -> Scheme:
    """Return the scheme of AutoAWQ. Raises SourceError for what it writes otherwise."""
    bits, group = quantization.get("bits", quantization.get("w_bit")), quantization.get("group_size", 128)
    version = str(quantization.get("version") or quantization.get("format") or "gemm").lower()[:50]
    if bits != 4 or version != "gemm" or type(group) is not int:
        raise refusal(f"awq with {str(bits)[:20]} bits, version {version}", "awq")
    scales = "one scale a channel" if group < 0 else f"one scale for each {group}"
    return Scheme(f"awq, 4 bits, {scales}", (AWQ,), integers=((4, max(group, 0)),))
