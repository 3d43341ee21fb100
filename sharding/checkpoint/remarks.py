"""Say what the names and shapes of tensors show about how they were saved. Pure."""

import shlex
from collections.abc import Iterable, Iterator
from typing import Any

from sharding.core.text import count, name_some
from sharding.core.values import Finding, Tensor
from sharding.formats.names import DDP, wrapper_of
from sharding.formats.peft_config import named_base

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


def adapter_alone(config: Any, place: str) -> Finding | None:
    """Return the warning for a source at `place` that is only an adapter. `config` is its adapter_config.json."""
    if not isinstance(config, dict) or "peft_type" not in config:
        return None
    name = named_base(config)
    message = f"This is an adapter{f' of {name}' if name else ''}, not a whole model. The copy is the same adapter."
    command = f"shard-my-repo shard {shlex.quote(name or 'BASE')} ./merged --adapter {shlex.quote(place)}"
    return Finding("warning", "adapter-alone", message, f"To merge it: {command}")
