"""Read what a config.json says of how weights are quantized, and take it out. Pure."""

import json
from collections.abc import Mapping
from typing import Any

_KEYS = ("quantization_config", "compression_config")
"""The second is what releases of compressed-tensors before 0.8 wrote."""


def quantization_of(config: str) -> Mapping[str, Any] | None:
    """Return what a config.json says of quantization, at its top or of one part of the model; None if nothing.

    >>> quantization_of('{"text_config": {"quantization_config": {"quant_method": "fp8"}}}')
    {'quant_method': 'fp8'}
    """
    try:
        document = json.loads(config or "{}")
    except (ValueError, RecursionError):
        return None
    for level in _levels(document):
        for key in _KEYS:
            if found := level.get(key):
                return found if isinstance(found, dict) else {}
    return None


def method_of(quantization: Mapping[str, Any]) -> str:
    """Return the name of a method, as transformers has it, or a word for one that has none.

    >>> method_of({"quant_method": "gptq"}), method_of({"bits": 4})
    ('gptq', 'an unnamed method')
    """
    method = quantization.get("quant_method")
    if not method and quantization.get("load_in_4bit", quantization.get("load_in_8bit")) is not None:
        return "bitsandbytes"  # as transformers read it before it wrote the name
    return method[:50] if isinstance(method, str) and method else "an unnamed method"


def drop_quantization(document: Any) -> bool:
    """Take what `quantization_of` finds out of the parsed config.json `document`; return whether there was any."""
    dropped = [level.pop(key) for level in _levels(document) for key in _KEYS if key in level]
    return bool(dropped)


def without_quantization(config: str) -> str:
    """Return the text of a config.json without what it says of quantization."""
    document = json.loads(config)
    drop_quantization(document)
    return json.dumps(document)


def _levels(document: Any) -> list[dict[str, Any]]:
    levels = [document, *document.values()] if isinstance(document, dict) else []
    return [level for level in levels if isinstance(level, dict)]
