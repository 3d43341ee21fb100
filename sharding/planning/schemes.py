"""Choose how the weights of a component are dequantized, or say why they cannot be. Pure."""

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
COMFY_KEY = "_quantization_metadata"  # ComfyUI's, in the metadata of a file.
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
    is_comfy = COMFY_KEY in component.metadata
    return COMFY if is_comfy or any(OF_COMFY.search(tensor.name) for tensor in tensors) else UNSTATED


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
