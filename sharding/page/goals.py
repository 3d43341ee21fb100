"""Offer the goals that people come with. Each sets the size, the cut, the dtype and the format. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sharding.checkpoint.trained import needs_base
from sharding.core.options import SINGLE_FILE, Options
from sharding.core.values import Checkpoint
from sharding.planning.dequantize import offer
from sharding.planning.sizes import colab_size, usual_size

_WIDE = ("F32", "F64")
"""Dtypes that a cast to bf16 halves, or more."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal, under its `title`. `choose` returns the choices for a model, or why there are none for it."""

    title: str
    choose: Callable[[Checkpoint], Options | str]


def _largest(checkpoint: Checkpoint) -> int:
    return max((tensor.bytes for tensor in checkpoint.tensors), default=0)


def _usual(checkpoint: Checkpoint) -> str:
    return usual_size(checkpoint.total_bytes, _largest(checkpoint))


def _is_wide(checkpoint: Checkpoint) -> bool:
    wide = sum(tensor.bytes for tensor in checkpoint.tensors if tensor.dtype in _WIDE)
    return 2 * wide > checkpoint.total_bytes


def _colab(checkpoint: Checkpoint) -> Options:
    # A T4 computes in fp16, and has no bf16.
    if _is_wide(checkpoint):
        return Options(_usual(checkpoint), dtype="fp16")
    return Options(colab_size(checkpoint.total_bytes, _largest(checkpoint)) or _usual(checkpoint))


def _slow(checkpoint: Checkpoint) -> Options:
    return Options(_usual(checkpoint))


def _one_file(checkpoint: Checkpoint) -> Options | str:
    if len({tensor.folder for tensor in checkpoint.tensors}) > 1:
        return (
            "This is a pipeline of several components. ComfyUI and kohya load one file only if it has another layout, "
            "which this tool does not write."
        )
    return Options(SINGLE_FILE)


def _two_machines(checkpoint: Checkpoint) -> Options:
    return Options(_usual(checkpoint), strategy="pp:2")


def _half(checkpoint: Checkpoint) -> Options | str:
    if not _is_wide(checkpoint):
        return "Its weights are not in fp32, so bf16 does not make it smaller."
    return Options(_usual(checkpoint), dtype="bf16")


def _unquantize(checkpoint: Checkpoint) -> Options | str:
    offered = offer(checkpoint)
    if offered is None:
        return "Its weights are not quantized in FP8 or MXFP4."
    return Options(usual_size(offered.bytes_after, _largest(checkpoint)), dequantize=True)


def _training_run(checkpoint: Checkpoint) -> Options | str:
    if not needs_base(checkpoint):
        return "It is an ordinary model, not the files that a training run saved."
    return Options(_usual(checkpoint))


GOALS: Mapping[str, Goal] = {
    "free-colab": Goal("Free Colab", _colab),
    "slow-connection": Goal("Slow connection", _slow),
    "one-file": Goal("One file", _one_file),
    "two-machines": Goal("Two machines", _two_machines),
    "half-size": Goal("Half the size (bf16)", _half),
    "unquantize": Goal("Unquantize", _unquantize),
    "training-run": Goal("My training run", _training_run),
}
"""By the name in a link: `?goal=one-file`."""
