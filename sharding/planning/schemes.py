"""Choose how the weights of a component are dequantized, or say why they cannot be. Pure."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sharding.core.errors import SourceError
from sharding.core.values import Component, Tensor
from sharding.formats.quantization import OF_COMFY, method_of
from sharding.planning.quantizers.awq import awq
from sharding.planning.quantizers.bitsandbytes import OF_4_BITS, OF_8_BITS, bitsandbytes
from sharding.planning.quantizers.compressed import compressed
from sharding.planning.quantizers.format import Scheme, refusal
from sharding.planning.quantizers.fp4 import GPT_OSS, NVFP4, OF_MODELOPT
from sharding.planning.quantizers.fp8 import COMFY, FP8, fine_grained, modelopt
from sharding.planning.quantizers.gptq import gptq

PARTS = (
    "_scale_inv", "_scale", "_blocks", "_scales", "_packed", "_global_scale", "_scale_2", "_shape", "_zero_point",
    ".absmax", ".nested_absmax", ".quant_map", ".nested_quant_map",
)  # fmt: skip
"""Endings that the parts of a quantized weight have after its name."""

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


def can_help(quantization: Mapping[str, Any]) -> bool:
    """Return whether weights with this `quantization` can be dequantized."""
    try:
        scheme_of(quantization)
    except SourceError:
        return False
    return True
