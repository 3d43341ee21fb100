"""Decide which dtype every tensor of a copy has, and where its bytes lie after the cast. Pure."""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from sharding.errors import SourceError, UsageError
from sharding.files import name_some
from sharding.layout import tensor_bytes
from sharding.values import Checkpoint, Finding, ModelHints, TensorEntry

Dtype = Literal["keep", "fp32", "fp16", "bf16"]

STORED = {"fp32": "F32", "fp16": "F16", "bf16": "BF16"}
"""The names that options have, and those of safetensors."""

TORCH = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""What can be cast: the names of safetensors, and torch's. Integers, booleans and fp8 stay as they are."""

_PACKED = {"F4", "F6_E2M3", "F6_E3M2"}
_QUANTIZED = re.compile(
    r"[.:](qweight|qzeros|g_idx|SCB|absmax|nested_absmax|quant_map|weight_packed|weight_scale(_inv)?|qdata"
    r"|quant_state\.[\w.]+)"
)
"""Names of GPTQ, AWQ, bitsandbytes, compressed-tensors, fine-grained FP8 and torchao."""


def cast_tensors(tensors: Sequence[TensorEntry], dtype: str, hints: ModelHints | None) -> tuple[TensorEntry, ...]:
    """Return `tensors` as they are after a cast to `dtype`, file for file one after another from byte 0.

    A tensor gets the dtype that `from_pretrained(dtype=…)` and `save_pretrained` give it, which keep some modules
    in fp32; one that `hints` do not know, and every one without hints, gets `dtype`.

    >>> [after] = cast_tensors([TensorEntry("w", "F32", (3,), "f", 8, 20)], "bf16", None)
    >>> after.dtype, after.start_byte, after.end_byte
    ('BF16', 0, 6)
    """
    kept = {saved.name: saved.dtype for saved in hints.saved} if hints else {}
    ends: dict[str, int] = {}
    after = []
    for tensor in tensors:
        target = tensor.dtype
        if target in TORCH:
            target = kept.get(tensor.name, STORED[dtype])
            target = target if target in TORCH else STORED[dtype]
        start = ends.get(tensor.file, 0)
        end = ends[tensor.file] = start + tensor_bytes(target, tensor.shape)
        after.append(TensorEntry(tensor.name, target, tensor.shape, tensor.file, start, end))
    return tuple(after)


def cast_findings(after: Iterable[TensorEntry], dtype: str, hints: ModelHints | None) -> tuple[Finding, ...]:
    """Return what a person should know of a cast whose outcome is `after`."""
    if hints is None or hints.unknown:
        reason = hints.unknown if hints else "there is no config.json"
        message = f"Every floating-point tensor is cast, as it is not known what the model keeps in fp32: {reason}"
        return (
            Finding("warning", "cast-without-class", message, "Check that the model's code needs no fp32 weights."),
        )
    kept = [tensor.name for tensor in after if tensor.dtype in TORCH and tensor.dtype != STORED[dtype]]
    if not kept:
        return ()
    message = f"{len(kept)} tensors are in another dtype than {dtype}, as {hints.class_name} keeps them: "
    return (Finding("info", "kept-dtype", f"{message}{name_some(kept)}."),)


def refuse_cast(checkpoint: Checkpoint, dtype: str) -> None:
    """Raise where a checkpoint cannot be cast to `dtype`: UsageError for no dtype, SourceError for a quantized one."""
    if dtype not in STORED:
        raise UsageError(f"There is no dtype {dtype!r}.", f"Dtypes: keep, {', '.join(STORED)}.")
    method = _quantization_method(checkpoint.config)
    telling = [tensor.name for tensor in checkpoint.tensors if _is_packed(tensor)]
    if method or telling:
        how = f" with {method}" if method else f", as {name_some(telling, 1)} tells"
        raise SourceError(
            f"This checkpoint is quantized{how}: its numbers mean nothing without their scales, so it is not cast.",
            "Keep the dtype, or take the repo that it was quantized from.",
        )


def configured(config: bytes, torch_dtype: str | None) -> dict[str, Any] | None:
    """Return a config.json that says `torch_dtype` ("float16") wherever it said another dtype; None if it is none.

    Without a `torch_dtype` it says what it said.
    """
    try:
        document = json.loads(config)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    if torch_dtype is None:
        return document
    if not {"dtype", "torch_dtype"} & document.keys():
        document["dtype"] = torch_dtype
    waiting: list[Any] = [document]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            for key in ("dtype", "torch_dtype"):
                if isinstance(part.get(key), str) and part[key].removeprefix("torch.") in TORCH.values():
                    part[key] = torch_dtype
        waiting += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return document


def _is_packed(tensor: TensorEntry) -> bool:
    return tensor.dtype in _PACKED or _QUANTIZED.search(tensor.name) is not None


def _quantization_method(config: str) -> str:
    """Return what a config.json says of quantization, "" if nothing."""
    try:
        document = json.loads(config or "{}")
    except (ValueError, RecursionError):
        return ""
    parts = [document, *document.values()] if isinstance(document, dict) else []
    for part in parts:
        found = part.get("quantization_config") if isinstance(part, dict) else None
        if found:
            method = found.get("quant_method") if isinstance(found, dict) else None
            return method[:50] if isinstance(method, str) else "an unnamed method"
    return ""
