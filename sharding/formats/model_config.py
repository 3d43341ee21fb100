"""Change a config.json so that it describes a copy of the weights. Pure."""

import json
from collections.abc import Iterable
from typing import Any

from sharding.core.dtypes import BY_NAME, CASTABLE, NUMBERS
from sharding.core.values import Tensor

CONFIG_NAME = "config.json"
"""The name of the configuration that lies beside the weights of a model."""

WEIGHTS_NAMED = "transformers_weights"
"""The key that names a weight file to load instead of the usual ones (transformers 5.23, `utils/hub.py`)."""

_NUMBERS = {BY_NAME[dtype].torch for dtype in NUMBERS}


def configured(config: str, torch_dtype: str | None) -> dict[str, Any] | None:
    """Return the config.json of a copy, with `torch_dtype` ("float16") in place of every other dtype.

    The key that names the weight files is removed, as in `save_pretrained`, because the copy has the usual names.
    Returns None if nothing changes, or if `config` is not a configuration.
    """
    if "\ufffd" in config:  # the file was not UTF-8
        return None
    try:
        document = json.loads(config)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    is_changed = document.pop(WEIGHTS_NAMED, None) is not None
    if torch_dtype is None:
        return document if is_changed else None
    if "model_type" in document and not {"dtype", "torch_dtype"} & document.keys():
        document["dtype"] = torch_dtype
    waiting: list[Any] = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            for key in ("dtype", "torch_dtype"):
                if isinstance(value.get(key), str) and value[key].removeprefix("torch.") in _NUMBERS:
                    value[key] = torch_dtype
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
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
