"""Offer the goals that people come with. Each sets the size, the cut, the dtype and the format. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sharding.checkpoint.trained import needs_base
from sharding.core.options import SINGLE_FILE, Options
from sharding.core.values import Checkpoint
from sharding.planning.dequantize import ordinary
from sharding.planning.sizes import colab_size, usual_size

_WIDE = ("F32", "F64")
"""Dtypes that a cast to bf16 halves, or more."""

SAME = "is-this-copy-the-same"
"""The goal of somebody who compares two repos, in a link. It has a form of its own."""

MERGE = "merge-lora"
"""The goal that has a field for an adapter."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal. `words` say what it sets. `choose` returns the choices for a model, or why there are none."""

    title: str
    words: str
    choose: Callable[[Checkpoint], Options | str]


def has_components(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is a pipeline of several components with weights."""
    return len({tensor.folder for tensor in checkpoint.tensors}) > 1


def no_goal(checkpoint: Checkpoint) -> Options:
    """Return the choices for a model if nobody has a goal."""
    return Options(_usual(checkpoint))


def _largest(checkpoint: Checkpoint) -> int:
    return max((tensor.bytes for tensor in checkpoint.tensors), default=0)


def _usual(checkpoint: Checkpoint) -> str:
    return usual_size(checkpoint.total_bytes, _largest(checkpoint))


def _is_wide(checkpoint: Checkpoint) -> bool:
    wide = sum(tensor.bytes for tensor in checkpoint.tensors if tensor.dtype in _WIDE)
    return 2 * wide > checkpoint.total_bytes


def _colab(checkpoint: Checkpoint) -> Options:
    if _is_wide(checkpoint):
        return Options(_usual(checkpoint), dtype="fp16")  # a T4 has no bf16
    return Options(colab_size(checkpoint.total_bytes, _largest(checkpoint)) or _usual(checkpoint))


def _one_file(checkpoint: Checkpoint) -> Options | str:
    if has_components(checkpoint):
        return (
            "This is a pipeline of several components. ComfyUI and kohya load a single file of another layout, "
            "which this page does not write. Each component can be one file: choose a size above its own."
        )
    return Options(SINGLE_FILE)


def _two_machines(checkpoint: Checkpoint) -> Options:
    return Options(_usual(checkpoint), strategy="pp:2")


def _half(checkpoint: Checkpoint) -> Options | str:
    if not _is_wide(checkpoint):
        return "Most of its weights are not in fp32, so bf16 does not halve it."
    return Options(_usual(checkpoint), dtype="bf16")


def _unquantize(checkpoint: Checkpoint) -> Options | str:
    after = ordinary(checkpoint)
    if after is None or not after.dequantized:
        return "Its weights are not quantized in FP8 or MXFP4."
    return Options(_usual(after), dequantize=True)


def _training_run(checkpoint: Checkpoint) -> Options | str:
    if not needs_base(checkpoint):
        return "It is an ordinary model, not the files that a training run saved."
    return Options(_usual(checkpoint))


def _merge(checkpoint: Checkpoint) -> Options | str:
    if needs_base(checkpoint):
        return "These are files of a training run. Make an ordinary model of them first."
    return Options(_usual(checkpoint))


GOALS: Mapping[str, Goal] = {
    "free-colab": Goal(
        "Free Colab",
        "Small files for a free machine with a T4. Weights in fp32 become fp16; all others stay as they are.",
        _colab,
    ),
    "slow-connection": Goal(
        "Slow connection", "Small files. If a download breaks, you lose at most one of them.", no_goal
    ),
    "one-file": Goal(
        "One file", "All weights in one model.safetensors. ComfyUI and kohya load such a file.", _one_file
    ),
    "two-machines": Goal(
        "Two machines", "Each machine downloads and loads only its half of the layers.", _two_machines
    ),
    "half-size": Goal("Half the size (bf16)", "Weights in fp32 become bf16.", _half),
    "unquantize": Goal(
        "Unquantize",
        "FP8 and MXFP4 weights become bf16, for training and for tools that cannot read them.",
        _unquantize,
    ),
    MERGE: Goal(
        "Merge my LoRA",
        "An adapter becomes part of its base model. The result loads like any model, without PEFT.",
        _merge,
    ),
    "training-run": Goal(
        "My training run", "The files that FSDP or torch.distributed saved become a model that loads.", _training_run
    ),
}
"""By the name in a link: `?goal=one-file`."""
