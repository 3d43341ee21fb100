"""Choose how the weights of a component are dequantized, or say why they cannot be. Pure."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sharding.core.errors import SourceError
from sharding.core.values import Component, Tensor
from sharding.formats.quantization import OF_COMFY, method_of
from sharding.planning.quantizers.bitsandbytes import OF_4_BITS, OF_8_BITS, bitsandbytes
from sharding.planning.quantizers.compressed import compressed
from sharding.planning.quantizers.floats import COMFY, FP8, GPT_OSS, NVFP4, OF_MODELOPT, fine_grained, modelopt
from sharding.planning.quantizers.format import Scheme, refusal, weight_of
from sharding.planning.quantizers.transposed import awq, gptq

_PARTS = re.compile(
    r"_(scale(_inv|_2)?|blocks|scales|packed|global_scale|shape|zero_point|g_idx)$"
    r"|\.((nested_)?(absmax|quant_map)|quant_state\.\w+)$"
    r"|(?<=\.)(qweight|qzeros|scales|g_idx|SCB|weight_format|scale|q?scale_weight)$"
)
"""What the names of the parts of a quantized weight have after its own, or in the place of "weight"."""

_METHODS: Mapping[str, Callable[[Mapping[str, Any]], Scheme]] = {
    "mxfp4": lambda _: Scheme("mxfp4, one scale for each 32 numbers", (GPT_OSS,)),
    "fp8": fine_grained,
    "mxfp8": lambda stated: fine_grained({**stated, "weight_block_size": (1, 32)}),
    "compressed-tensors": compressed,
    "modelopt": modelopt,
    "modelopt_fp4": modelopt,
    "modelopt_mixed": modelopt,
    "bitsandbytes": bitsandbytes,
    "gptq": gptq,
    "awq": awq,
}
UNSTATED = Scheme("", (FP8, OF_MODELOPT, NVFP4, OF_4_BITS, OF_8_BITS))
"""What the names and dtypes of the tensors alone explain. ModelOpt's own file says no more either."""


def scheme_of(quantization: Mapping[str, Any]) -> Scheme:
    """Return the scheme for the `quantization` of a config.json. Raises SourceError, which names any other method."""
    method = method_of(quantization)
    if method not in _METHODS:
        raise refusal(method)
    return _METHODS[method](quantization)


def scheme_without(component: Component, tensors: Iterable[Tensor]) -> Scheme:
    """Return the scheme for the quantized `tensors` of a component that no config.json explains."""
    is_comfy = "_quantization_metadata" in component.metadata
    return COMFY if is_comfy or any(OF_COMFY.search(tensor.name) for tensor in tensors) else UNSTATED


def weight_of_part(name: str) -> str:
    """Return the name of the weight whose part a tensor would be, by its own name.

    >>> [weight_of_part(name) for name in ("m.qzeros", "m.weight_packed", "m.up_blocks", "m.bias")]
    ['m.weight', 'm.weight', 'm.up', 'm.bias']
    """
    return _PARTS.sub(lambda match: "weight" if name[match.start() - 1] == "." else "", name)


def can_help(quantization: Mapping[str, Any] | None, tensors: Sequence[Tensor]) -> bool:
    """Return whether quantized weights among `tensors`, which a config.json explains or not, can be dequantized."""
    if quantization is None:
        scheme, by_name = scheme_without(Component(), tensors), {tensor.name: tensor for tensor in tensors}
        return any(weight_of(tensor, scheme, by_name, {}) for tensor in tensors)
    try:
        scheme_of(quantization)
    except SourceError:
        return False
    return True
