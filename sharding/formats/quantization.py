"""Read and change what config.json and tensors say about the dtype and the quantization of a model. Pure."""

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sharding.core.dtypes import BY_NAME, CASTABLE, NUMBERS
from sharding.core.text import objects_in, parsed_json
from sharding.core.values import Tensor

WEIGHTS_NAMED = "transformers_weights"
"""The key that names a weight file to load instead of the usual ones (transformers 5.23, `utils/hub.py`)."""
_KEYS = ("quantization_config", "compression_config")  # Releases of compressed-tensors before 0.8 wrote the second key.
_QUANTIZED = re.compile(
    r"[.:](qweight|qzeros|g_idx|SCB|absmax|nested_absmax|quant_map|weight_(packed|scale(_inv)?|zero_point|global_scale)|qdata"
    r"|quant_state\.[\w.]+)"
)
"""Names of GPTQ, AWQ, bitsandbytes, compressed-tensors, fine-grained FP8 and torchao."""
_NUMBERS = re.compile(r"\.(?:qweight|weight_packed|_weight_qdata|weight:qdata)$")
"""Names that GPTQ, AWQ, compressed-tensors and torchao give the numbers of `weight`."""

OF_COMFY = re.compile(r"(?:^|\.)(?:scaled_fp8|comfy_quant)$")
"""Names of the tensors by which ComfyUI knows its own quantized weights."""

NOTES = re.compile(r"\.quant_state\.bitsandbytes__(?:nf4|fp4)$|\.weight_shape$")
"""Names of small tensors whose bytes say how a weight of bitsandbytes or compressed-tensors lies."""

NEEDS_KERNELS = ("fp8", "mxfp4")
"""Methods that transformers 5.23 dequantizes without their kernels (`validate_environment`): FP8 on CPUs and on cards
below compute capability 8.9, MXFP4 without the packages triton and kernels."""

QUANTIZERS_FILES = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")
"""Files that AutoGPTQ, AWQ and ModelOpt write beside quantized weights. Some programs load by them."""


def _is_packed(tensor: Tensor) -> bool:
    return BY_NAME[tensor.dtype].bits < 8 or _QUANTIZED.search(tensor.name) is not None


def is_quantized(tensor: Tensor) -> bool:
    """Return whether the name or the dtype of a tensor shows that it is part of a quantized weight."""
    return _is_packed(tensor) or tensor.dtype.startswith("F8_")


def holds_quantized(tensor: Tensor) -> bool:
    """Return whether a tensor has the numbers of a quantized weight. Scales and buffers of bytes do not count."""
    of_bytes = tensor.dtype in ("U8", "I8") and tensor.name.endswith((".weight", "_blocks"))
    of_words = tensor.name.endswith((".qweight", ".weight_packed", ".qdata"))
    return of_bytes or of_words or tensor.dtype.startswith("F8_") or BY_NAME[tensor.dtype].bits < 8


_CODES = ("I8", "U8", "I16", "U16", "I32", "U32")
"""Dtypes in which files have the codes of quantized numbers. Buffers of models are mostly I64 or BOOL."""
_NO_WEIGHT = re.compile(r"(?:bias|mask|ids|index|indices)$")
"""How the names of integer buffers end that models have beside floating-point numbers."""


def quantized_in(tensors: Iterable[Tensor]) -> list[str]:
    """Return the names of the tensors that show that weights are quantized, [] if none does.

    Either the name or the dtype says so, or a tensor has numbers that need the scales beside it in its module: FP8
    numbers, or integers in several rows and columns. FP8 numbers beside no scale are ordinary numbers.

    >>> from sharding.recipes.stored import Stored
    >>> forms = [("a.weight", "F8_E4M3", (8, 8)), ("b.weight", "F8_E4M3", (8, 8)), ("b.scale_weight", "F32", ())]
    >>> quantized_in(Tensor(name, dtype, shape, Stored(0, "f", 0, 64)) for name, dtype, shape in forms)
    ['b.weight']
    """
    modules: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        if "." in tensor.name or _is_packed(tensor):  # names without a dot are in no module
            modules.setdefault(tensor.name.rpartition(".")[0], []).append(tensor)
    return [tensor.name for beside in modules.values() for tensor in beside if _needs_scales(tensor, beside)]


def _needs_scales(tensor: Tensor, beside: Sequence[Tensor]) -> bool:
    if _is_packed(tensor):
        return True
    if tensor.dtype in _CODES:
        is_matrix = sum(length > 1 for length in tensor.shape) > 1
        return is_matrix and not _NO_WEIGHT.search(tensor.name) and any(map(_may_be_scale, beside))
    if not tensor.dtype.startswith("F8_") or tensor.dtype == "F8_E8M0":
        return False
    scales = (other for other in beside if _may_be_scale(other) and not other.name.endswith("bias"))
    return any(other.parameters < max(tensor.parameters, 2) for other in scales)


def _may_be_scale(tensor: Tensor) -> bool:
    return tensor.dtype in CASTABLE or tensor.dtype == "F8_E8M0"


def ordinary_name(name: str) -> str:
    """Return the name of a weight without quantization. Any other name is returned unchanged.

    >>> ordinary_name("q_proj.qweight"), ordinary_name("q_proj.bias")
    ('q_proj.weight', 'q_proj.bias')
    """
    return _NUMBERS.sub(".weight", name)


def stored_sizes(saved: Iterable[str], tensors: Iterable[Tensor]) -> dict[str, int]:
    """Return the bytes of each quantized weight among `saved`, with its scales and all else that belongs to it.

    `saved` are the names of a model's weights in files that are not quantized. The bytes are what `tensors` have.

    >>> from sharding.recipes.stored import Stored
    >>> forms = [("a.qweight", "I32", (8, 8)), ("a.scales", "F16", (8,)), ("a.bias", "F16", (8,))]
    >>> stored_sizes(["a.weight", "a.bias"], (Tensor(*form, Stored(0, "f", 0, 256)) for form in forms))
    {'a.weight': 512}
    """
    tensors = list(tensors)
    own, beside = {tensor.name: tensor.bytes for tensor in tensors}, companions(tensors, {*saved})
    return {name: own.get(name, 0) + sum(part.bytes for part in parts) for name, parts in sorted(beside.items())}


_CACHE = re.compile(r"\.([kvq])_(?:scale|zero_point)$")
"""The scales of compressed-tensors for the cache of keys and values. They are beside the projection, not inside it."""


def companions(tensors: Iterable[Tensor], known: Container[str]) -> dict[str, list[Tensor]]:
    """Return the tensors that belong to each quantized weight, by the `known` name of the weight.

    The weight may be stored by another name: GPTQ has `q.qweight`, `q.qzeros` and `q.scales` for `q.weight`. A tensor
    counts as a companion only if the weight, or another tensor beside it, is quantized.
    """
    tensors = list(tensors)
    beside: dict[str, list[Tensor]] = {}
    for tensor in (tensor for tensor in tensors if tensor.name not in known):
        if weight := next((name for name in _weights_of(tensor.name) if name in known), None):
            beside.setdefault(weight, []).append(tensor)
    stored = {tensor.name: tensor for tensor in tensors if tensor.name in beside}
    return {
        weight: group
        for weight, group in beside.items()
        if (weight in stored and _is_quantized(stored[weight])) or any(map(_is_quantized, group))
    }


def _weights_of(name: str) -> Iterator[str]:
    """Yield the possible names of the weight that a tensor belongs to, the nearest first."""
    yield name.rpartition(":")[0]  # torchao: x:scale
    module, _, last = name.rpartition(".")
    if not module:
        return
    words = last.rsplit("_", 4)  # gate_up_proj_weight_global_scale has three after the name of the weight
    for joined in range(len(words) - 1, 0, -1):  # x_scale_inv
        yield f"{module}.{'_'.join(words[:joined])}"
    yield module  # bitsandbytes: x.absmax
    yield module.rpartition(".")[0]  # and x.quant_state.bitsandbytes__nf4
    yield f"{module}.weight"
    if cache := _CACHE.search(name):
        yield f"{module}.{cache[1]}_proj.weight"


def _is_quantized(tensor: Tensor) -> bool:
    return is_quantized(tensor) or holds_quantized(tensor) or tensor.name.endswith("_qdata")


def quantization_of(config: str) -> Mapping[str, Any] | None:
    """Return the quantization entry of a config.json, from its top or from a part of the model. None if it has none.

    >>> quantization_of('{"text_config": {"quantization_config": {"quant_method": "fp8"}}}')
    {'quant_method': 'fp8'}
    """
    for level in objects_in(parsed_json(config)):
        for key in _KEYS:
            if section := level.get(key):
                return section if isinstance(section, dict) else {}
    return None


PLAIN = frozenset((*CASTABLE, "I64", "BOOL"))
"""The dtypes of models without quantized weights."""


def is_left_over(config: str, tensors: Iterable[Tensor]) -> bool:
    """Return whether a config.json says "quantized", although all matrices among `tensors` are ordinary ones."""
    tensors = list(tensors)
    return (
        quantization_of(config) is not None
        and all(tensor.dtype in PLAIN and not _is_packed(tensor) for tensor in tensors)
        and any(len(tensor.shape) > 1 and tensor.dtype in CASTABLE for tensor in tensors)
    )


def method_of(quantization: Mapping[str, Any]) -> str:
    """Return the name of a quantization method in transformers, or a phrase if it has no name.

    >>> method_of({"quant_method": "gptq"}), method_of({"bits": 4})
    ('gptq', 'an unnamed method')
    """
    method = quantization.get("quant_method")
    if not method and quantization.get("load_in_4bit", quantization.get("load_in_8bit")) is not None:
        return "bitsandbytes"  # transformers once wrote these configurations without a name
    return method[:50] if isinstance(method, str) and method else "an unnamed method"


def without_quantization(config: str) -> str:
    """Return the text of a config.json without its quantization entries."""
    document = json.loads(config)
    for level in objects_in(document):
        for key in _KEYS:
            level.pop(key, None)
    return json.dumps(document)


def configured(config: str, torch_dtype: str | None) -> dict[str, Any] | None:
    """Return the config.json of a copy, with `torch_dtype` ("float16") in place of every other dtype.

    The key that names the weight files is removed, as in `save_pretrained`, because the copy has the usual names.
    Returns None if nothing changes, or if `config` is not a configuration.
    """
    if "\ufffd" in config:  # the file was not UTF-8
        return None
    document = parsed_json(config)
    if not isinstance(document, dict):
        return None
    is_changed = document.pop(WEIGHTS_NAMED, None) is not None
    if torch_dtype is None:
        return document if is_changed else None
    if "model_type" in document and not {"dtype", "torch_dtype"} & document.keys():
        document["dtype"] = torch_dtype
    numbers = {BY_NAME[dtype].torch for dtype in NUMBERS}
    for section in objects_in(document):
        for key in ("dtype", "torch_dtype"):
            if isinstance(section.get(key), str) and section[key].removeprefix("torch.") in numbers:
                section[key] = torch_dtype
    return document


def dtype_of_first(tensors: Iterable[Tensor]) -> str:
    """Return torch's name of the dtype of the first floating-point tensor that is not FP8, "" if there is none.

    transformers 5.23 loads a model in this dtype, if neither config.json nor the index names one (`_get_dtype`). It
    looks at the first file only.

    >>> from sharding.recipes.stored import Stored
    >>> dtype_of_first(Tensor("w", dtype, (), Stored(0, "f", 0, 4)) for dtype in ("I64", "BF16", "F32"))
    'bfloat16'
    """
    return next((BY_NAME[tensor.dtype].torch for tensor in tensors if tensor.dtype in CASTABLE), "")
