"""bitsandbytes: NF4 and FP4 in blocks, and 8-bit integers with a scale a row. Pure."""

from collections.abc import Mapping
from math import prod
from typing import Any

from sharding.core.dtypes import BY_TORCH
from sharding.core.text import parsed_json
from sharding.core.values import Tensor
from sharding.planning.quantizers.format import NUMBERS, OF_CHANNEL, Format, Scheme, Weight
from sharding.recipes.quantized import Codes, Grid, Scaled

_STATE = ".quant_state.bitsandbytes__nf4"
_127TH = 7.874015718698502e-3


def _of_4_bits(weight: Weight) -> Tensor:
    """Return the weight as `dequantize_4bit` of bitsandbytes 0.50 computes it, in the dtype that the state names.

    Its blocks go through the rows. So they are those of a single row.
    """
    state, scales = _state(weight), weight.scales
    shape, size = state["shape"], state["blocksize"]
    count, nested = prod(shape), scales.dtype == "U8"
    blocks = -(-count // size)
    expected = {".quant_map": ("F32", 16), ".absmax": (scales.dtype, blocks)}
    if nested:
        over = -(-blocks // state["nested_blocksize"])
        expected |= {".nested_absmax": ("F32", over), ".nested_quant_map": ("F32", 256)}
    sizes = {name: (part.dtype, prod(part.shape)) for name, part in weight.parts.items() if name in expected}
    if sizes != expected or prod(weight.codes.shape) != -(-count // 2):
        raise weight.odd()
    absmax = scales.recipe
    if nested:
        grid = Grid(weight.parts[".nested_absmax"].recipe, Codes("F32"), (1, state["nested_blocksize"]))
        absmax = Scaled(
            absmax, Codes("MAP8"), (blocks,), grid, "F32", plus=state["nested_offset"],
            map=weight.recipe(".nested_quant_map"),
        )  # fmt: skip
    grid = Grid(absmax, Codes("F32"), (1, size))
    codes = Codes("MAP4", (1, 0))
    made = Scaled(weight.codes.recipe, codes, (count,), grid, state["dtype"], map=weight.recipe(".quant_map"))
    return weight.made(made)._replace(shape=shape)


def _state(weight: Weight) -> dict[str, Any]:
    state: Any = parsed_json(weight.notes.get(_STATE, b"").decode(errors="replace"))
    try:
        shape = tuple(int(length) for length in state["shape"])
        dtype = BY_TORCH[state["dtype"]].name
        size, over = int(state["blocksize"]), int(state.get("nested_blocksize", 256))
        offset = float(state.get("nested_offset", 0.0))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise weight.odd() from None
    if not (all(0 < length < 2**40 for length in shape) and size > 0 < over and dtype in NUMBERS):
        raise weight.odd()
    return {"shape": shape, "dtype": dtype, "blocksize": size, "nested_blocksize": over, "nested_offset": offset}


def _of_8_bits(weight: Weight) -> Tensor:
    """Return the weight as `int8_vectorwise_dequant` of bitsandbytes 0.50 computes it."""
    codes = weight.codes
    grid = weight.grid(codes.shape, OF_CHANNEL)
    return weight.made(Scaled(codes.recipe, Codes("I8"), codes.shape, grid, "F32", factor=_127TH))


OF_4_BITS = Format(
    "bitsandbytes 4-bit", ".weight", ".weight", ("U8",),
    ((".absmax",), (".quant_map",), (_STATE, _STATE.replace("nf4", "fp4"))), ("U8", "F32"), _of_4_bits,
    (".nested_absmax", ".nested_quant_map"),
)  # fmt: skip
OF_8_BITS = Format("bitsandbytes 8-bit", ".weight", ".weight", ("I8",), (("SCB",),), ("F32",), _of_8_bits)


def bitsandbytes(quantization: Mapping[str, Any]) -> Scheme:
    """Return the scheme of bitsandbytes."""
    kind = f"{str(quantization.get('bnb_4bit_quant_type', '4 bits'))[:20]}"
    words = f"bitsandbytes {'int8' if quantization.get('load_in_8bit') else kind}"
    return Scheme(words, (OF_4_BITS, OF_8_BITS), peer="from_pretrained, model.dequantize()")
