"""GPTQ and AWQ (GEMM), whose weights lie transposed in words of 32 bits. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from sharding.core.values import Tensor
from sharding.planning.quantizers.format import NUMBERS, Format, Scheme, Weight, refusal
from sharding.recipes.laid import laid_of
from sharding.recipes.quantized import Codes, Grid, Scaled

TILE_BYTES = 28 << 20
"""Bytes of words to put in order at once, in each of two shards. Weights of more words are read several times."""

_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""The places of the eight numbers of a word of AWQ (`AWQ_REVERSE_ORDER` of AutoAWQ 0.2.9)."""


def _make(weight: Weight, order: tuple[int, ...] = ()) -> Tensor:
    """Return the weight: scales * (words - zeros), transposed.

    A word of GPTQ has numbers of a column, as the torch kernel of GPTQModel reads it. One of AWQ has those of a row, in
    an `order` of its own (`dequantize_gemm` of AutoAWQ 0.2.9).
    """
    words, scales, zeros, scheme = weight.codes, weight.scales, weight.parts["qzeros"], weight.scheme
    ((bits, group),) = scheme.integers
    if len(words.shape) != 2 or len(scales.shape) != 2:
        raise weight.odd()
    columns = words.shape[0] if order else words.shape[0] * 32 // bits
    shape = words.shape[1] * 8 if order else words.shape[1], columns
    group = group or columns
    groups = -(-columns // group)
    of_zeros = "I32", (groups, -(-shape[0] * bits // 32))
    if scales.shape != (groups, shape[0]) or (zeros.dtype, zeros.shape) != of_zeros:
        raise weight.odd()
    turned = replace(laid_of(words).turned(), tile_bytes=TILE_BYTES)
    grid = Grid(scales.recipe, Codes(scales.dtype), (1, group), turned=True)
    points = Grid(zeros.recipe, Codes(f"U{bits}{'+1' * scheme.zero}", order), (1, group), turned=True)
    codes = Codes(f"U{bits}", order, 4) if order else Codes(f"U{bits}")
    return weight.made(Scaled(turned, codes, shape, grid, scales.dtype, points, index=weight.recipe("g_idx")))


GPTQ = Format("gptq", ".qweight", ".weight", ("I32",), (("scales",), ("qzeros",)), NUMBERS, _make, ("g_idx",))
AWQ = GPTQ._replace(words="awq", make=partial(_make, order=_ORDER), may=())


def gptq(quantization: Mapping[str, Any]) -> Scheme:
    """Return the scheme of AutoGPTQ and GPTQModel. Raises SourceError for what they write otherwise."""
    bits, group = quantization.get("bits"), quantization.get("group_size", 128)
    form = str(quantization.get("checkpoint_format") or quantization.get("format") or "gptq")
    if bits not in (2, 4, 8) or form not in ("gptq", "gptq_v2") or type(group) is not int:
        raise refusal(f"gptq with {str(bits)[:20]} bits, format {form[:50]}", "gptq")
    return _scheme(GPTQ, form.replace("_", " "), bits, group, zero=int(form == "gptq"))


def awq(quantization: Mapping[str, Any]) -> Scheme:
    """Return the scheme of AutoAWQ. Raises SourceError for what it writes otherwise."""
    bits, group = quantization.get("bits", quantization.get("w_bit")), quantization.get("group_size", 128)
    version = str(quantization.get("version") or quantization.get("format") or "gemm").lower()[:50]
    if bits != 4 or version != "gemm" or type(group) is not int:
        raise refusal(f"awq with {str(bits)[:20]} bits, version {version}", "awq")
    return _scheme(AWQ, "awq", bits, group, zero=0)


def _scheme(form: Format, words: str, bits: int, group: int, zero: int) -> Scheme:
    scales = "one scale a channel" if group < 0 else f"one scale for each {group}"
    return Scheme(f"{words}, {bits} bits, {scales}", (form,), integers=((bits, max(group, 0)),), zero=zero)
