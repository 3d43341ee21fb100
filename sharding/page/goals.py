"""Offer the goals that people come with. Each sets the size, the cut, the dtype and the format. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from sharding.checkpoint.trained import needs_base
from sharding.core.options import SINGLE_FILE, Options
from sharding.core.values import Checkpoint
from sharding.planning.dequantize import ordinary
from sharding.planning.sizes import colab_size, usual_size

SAME = "is-this-copy-the-same"
"""The goal of somebody who compares two repos, in a link. It has a form of its own."""

MERGE = "merge-lora"
"""The goal that has a field for an adapter."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal. `words` say what it sets."""

    title: str
    words: str


GOALS: Mapping[str, Goal] = {
    "free-colab": Goal(
        "Free Colab",
        "Small files for a free machine with a T4. Weights in fp32 become fp16; all others stay as they are.",
    ),
    "slow-connection": Goal("Slow connection", "Small files. If a download breaks, you lose at most one of them."),
    "one-file": Goal("One file", "All weights in one model.safetensors. ComfyUI and kohya load such a file."),
    "two-machines": Goal("Two machines", "Each machine downloads and loads only its half of the layers."),
    "half-size": Goal("Half the size (bf16)", "Weights in fp32 become bf16."),
    "unquantize": Goal(
        "Unquantize", "FP8 and MXFP4 weights become bf16, for training and for tools that cannot read them."
    ),
    MERGE: Goal(
        "Merge my LoRA", "An adapter becomes part of its base model. The result loads like any model, without PEFT."
    ),
    "training-run": Goal(
        "My training run", "The files that FSDP or torch.distributed saved become a model that loads."
    ),
}
"""By the name in a link: `?goal=one-file`."""


def has_components(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is a pipeline of several components with weights."""
    return len({tensor.folder for tensor in checkpoint.tensors}) > 1


def choices_for(checkpoint: Checkpoint, goal: str) -> Options | str:
    """Return the choices of a goal for a model, or the reason why the goal makes no sense for it."""
    largest = max((tensor.bytes for tensor in checkpoint.tensors), default=0)
    usual = usual_size(checkpoint.total_bytes, largest)
    # A cast to bf16 halves these dtypes, or more.
    wide = sum(tensor.bytes for tensor in checkpoint.tensors if tensor.dtype in ("F32", "F64"))
    is_wide = 2 * wide > checkpoint.total_bytes
    match goal:
        case "free-colab" if is_wide:
            return Options(usual, dtype="fp16")  # a T4 has no bf16
        case "free-colab":
            return Options(colab_size(checkpoint.total_bytes, largest) or usual)
        case "one-file" if has_components(checkpoint):
            return (
                "This is a pipeline of several components. ComfyUI and kohya load a single file of another layout, "
                "which this page does not write. Each component can be one file: choose a size above its own."
            )
        case "one-file":
            return Options(SINGLE_FILE)
        case "two-machines":
            return Options(usual, strategy="pp:2")
        case "half-size" if is_wide:
            return Options(usual, dtype="bf16")
        case "half-size":
            return "Most of its weights are not in fp32, so bf16 does not halve it."
        case "unquantize":
            after = ordinary(checkpoint)
            if after is None or not after.dequantized:
                return "Its weights are not quantized in FP8 or MXFP4."
            largest = max((tensor.bytes for tensor in after.tensors), default=0)
            return Options(usual_size(after.total_bytes, largest), dequantize=True)
        case "training-run" if not needs_base(checkpoint):
            return "It is an ordinary model, not the files that a training run saved."
        case "merge-lora" if needs_base(checkpoint):
            return "These are files of a training run. Make an ordinary model of them first."
    return Options(usual)
