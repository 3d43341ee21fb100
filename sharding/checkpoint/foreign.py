"""Recognise checkpoints of training that this tool does not read, and say what converts them. Pure."""

import re
from collections.abc import Collection, Iterable

from sharding.core.errors import SourceError
from sharding.core.text import name_some

_ZERO_TO_FP32 = (
    "Run the zero_to_fp32.py beside them: python zero_to_fp32.py . OUTPUT --safe_serialization. Then shard OUTPUT."
)
_UNIVERSAL = "Export the model with its trainer, or make a universal checkpoint with DeepSpeed's ds_to_universal.py."
_BRIDGE = "Convert it with export_ckpt of Megatron-Bridge's AutoBridge, which knows how its model family is stored."
_TITAN = "Convert it with torchtitan's scripts/checkpoint_conversion/convert_to_hf.py, or train with last_save_in_hf."
_NEMO = "For one of NeMo, use its llm.export_ckpt with target='hf'."

_Kinds = tuple[tuple[str, str, str], ...]
"""For each kind of checkpoint: what names of its files, or of its tensors, match; its name; what to do."""
_FILES: _Kinds = (
    (
        r"layer_\d+-model_\d+-model_states\.pt|(?:layer_\d+_)?(?:expert_\d+|expp_rank_\d+)_mp_rank_\d+_\w+_states\.pt"
        r"|(?:\w+_)?mp_rank_(?!00_)\d+_(?:model|optim)_states\.pt",
        "DeepSpeed with several model ranks, stages or experts",
        _UNIVERSAL,
    ),
    (r"(?:\w+_)?mp_rank_00_(?:model|optim)_states\.pt", "DeepSpeed", _ZERO_TO_FP32),
    (r"zero/.+/fp32\.pt", "DeepSpeed, as a universal checkpoint", "Export the model with its trainer."),
    (r"mp_rank_\d+(?:_\d+)*/(?:model_optim_rng|model_rng)\.pt", "Megatron-LM", _BRIDGE),
    (
        r"manifest\.ocdbt|ocdbt\.process_\d+/.*|_CHECKPOINT_METADATA",
        "Orbax (JAX)",
        "Convert it with its own library, such as MaxText's to_huggingface.py.",
    ),
)
_TENSORS: _Kinds = (
    (r"(?:.*\.)?decoder\.layers\..*\b(?:linear_qkv|linear_fc1)\.weight", "Megatron-Core", _BRIDGE),
    (r"(?:.*\.)?layers\.\d+\.attention\.wq\.weight", "torchtitan, in its own layout", _TITAN),
)


def refuse_foreign(paths: Collection[str]) -> None:
    """Raise SourceError if files at `paths` are a checkpoint of a kind that this tool does not read."""
    for form, what, hint in _FILES:
        if files := _matching(form, paths):
            raise SourceError(f"This is a checkpoint of {what}, which is not read: {name_some(files)}.", hint)


def refuse_megatron(inside: Iterable[str]) -> None:
    """Raise SourceError if the files `inside` a folder are a distributed checkpoint of Megatron-Core or NeMo."""
    if {"common.pt", "metadata.json"} <= set(inside):
        raise _unreadable("Megatron-Core or NeMo", f"{_BRIDGE} {_NEMO}")


def refuse_foreign_names(names: Collection[str]) -> None:
    """Raise SourceError if tensors have the names of a framework whose tensors hold other numbers than its class."""
    for form, what, hint in _TENSORS:
        if _matching(form, names):
            raise _unreadable(what, hint)


def _matching(form: str, names: Iterable[str]) -> list[str]:
    return list(filter(re.compile(rf"(?:.*/)?(?:{form})", re.DOTALL).fullmatch, names))


def _unreadable(what: str, hint: str) -> SourceError:
    message = f"This is a checkpoint of {what}. Its tensors are not those of a model that a library loads: they are "
    return SourceError(f"{message}joined or put in another order.", hint)
