"""Say what the names and shapes of tensors show about how they were saved. Pure."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from sharding.core.text import count, name_some
from sharding.core.values import Finding, RepoRef, Tensor
from sharding.formats.names import DDP, wrapper_of

_UNGATHERED = (
    "DeepSpeed's ZeRO-3 leaves such tensors where nobody gathers the weights first. Save the model again with "
    "stage3_gather_16bit_weights_on_model_save, or use zero_to_fp32.py of its checkpoint."
)


def remarks_on(tensors: Iterable[Tensor]) -> Iterator[Finding]:
    """Yield warnings for tensors without numbers, and for names that a wrapper of the model has left."""
    empty, wrapped, seen = list[str](), dict[str, list[str]](), 0
    for tensor in tensors:
        seen += 1
        if tensor.shape == (0,):
            empty.append(tensor.name)
        if wrapper := wrapper_of(tensor.name.removeprefix(tensor.folder)):
            wrapped.setdefault(wrapper, []).append(tensor.name)
    if empty:
        yield Finding("warning", "empty-tensors", f"{_some(empty)} no numbers: {name_some(empty)}.", _UNGATHERED)
    for wrapper, names in wrapped.items():
        if wrapper == DDP and len(names) < seen:
            continue  # it wraps the whole model, so a part of it may well have that name
        message = f"{_some(names)} names that {wrapper} makes, so no library finds them: {name_some(names)}."
        yield Finding("warning", "wrapped-names", message, "Save the model inside the wrapper again, not the wrapper.")


def _some(names: list[str]) -> str:
    return f"{count(len(names), 'tensor')} {'has' if len(names) == 1 else 'have'}"


def adapter_alone(config: Any, source: RepoRef, place: str) -> Finding | None:
    """Return the warning for a source that is only an adapter. `config` is its adapter_config.json."""
    if not isinstance(config, dict) or "peft_type" not in config:
        return None
    base = re.split(r"[\\/]", str(config.get("base_model_name_or_path") or "").rstrip("\\/"))
    name = "/".join(base) if len(base) == 2 and all(base) else base[-1]
    of = f" of {name[:200]}" if name else ""
    command = f"shard-my-repo shard {name[:200] or 'BASE'} ./merged --adapter {place}"
    message = f"This is an adapter{of}, not a whole model. The copy is the same adapter."
    return Finding("warning", "adapter-alone", message, f"To merge it: {command}")
