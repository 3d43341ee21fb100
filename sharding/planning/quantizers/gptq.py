"""GPTQ, whose weights lie transposed in words of 2, 4 or 8 bits. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sharding.core.values import Tensor
from sharding.planning.quantizers.format import NUMBERS, Format, Scheme, Weight, refusal
from sharding.recipes.laid import laid_of
from sharding.recipes.quantized import Codes, Grid, Scaled

TILE_BYTES = 28 << 20
"""Bytes of words that are put in order at once. Two shards are in work, and have 59 MB of them. Most weights have
fewer. Larger ones are read several times."""


def _make(weight: Weight) -> Tensor:
    """Return the weight as the torch kernel of GPTQModel computes it: scales * (weight - zeros), transposed."""
    words, scales, zeros, scheme = weight.codes, weight.scales, weight.parts["qzeros"], weight.scheme
    ((bits, group),) = scheme.integers
    if len(words.shape) != 2 or len(scales.shape) != 2:
        raise weight.odd()
    shape = scales.shape[1], words.shape[0] * 32 // bits
    group = group or shape[1]
    groups = -(-shape[1] // group)
    fits = words.shape[1] == shape[0] and scales.shape[0] == groups
    if not fits or (zeros.dtype, zeros.shape) != ("I32", (groups, -(-shape[0] * bits // 32))):
        raise weight.odd()
    turned = replace(laid_of(words).turned(), tile_bytes=TILE_BYTES)
    grid = Grid(scales.recipe, Codes(scales.dtype), (1, group), turned=True)
    of_zeros = Grid(zeros.recipe, Codes(f"U{bits}{'+1' * scheme.zero}"), (1, group), turned=True)
    index = weight.recipe("g_idx")
    made = Scaled(turned, Codes(f"U{bits}"), shape, grid, scales.dtype, of_zeros, index=index)
    return weight.made(made)


GPTQ = Format("gptq", ".qweight", ".weight", ("I32",), (("scales",), ("qzeros",)), NUMBERS, _make, ("g_idx",))


def gptq(quantization: Mapping[str, Any]) -> Scheme:
    """Return the scheme of AutoGPTQ and GPTQModel. Raises SourceError for what they write otherwise."""
    bits, group = quantization.get("bits"), quantization.get("group_size", 128)
    form = quantization.get("checkpoint_format") or quantization.get("format") or "gptq"
    if bits not in (2, 4, 8) or form not in ("gptq", "gptq_v2") or type(group) is not int:
        raise refusal(f"gptq with {str(bits)[:20]} bits, format {str(form)[:50]}", "gptq")
    scales = "one scale a channel" if group < 0 else f"one scale for each {group}"
    words = f"{'gptq' if form == 'gptq' else 'gptq v2'}, {bits} bits, {scales}"
    return Scheme(words, (GPTQ,), integers=((bits, max(group, 0)),), zero=1 if form == "gptq" else 0)
