"""Ask, in a child process on the meta device, what transformers knows of a model."""

import json
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import Any

from sharding.core.dtypes import torch_name
from sharding.core.environment import child_command, child_variables
from sharding.core.errors import ModelRefused, SourceError
from sharding.core.extras import is_installed
from sharding.core.hints import ModelHints, PipelineCut, SavedTensor
from sharding.core.limits import ARCHITECTURE_SECONDS, STDERR_BYTES
from sharding.core.options import Options
from sharding.core.values import Checkpoint
from sharding.formats.quantization import ordinary_name, quantization_of, without_quantization
from sharding.model_class.claims import refuse_contradiction
from sharding.model_class.class_table import hints_from_table

_TOO_LONG = "transformers took too long to build this model without weights."
_LEAVE_OUT = "Check its config.json. A plan by size in natural order, without a cast, asks nothing of transformers."


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of the model: its name in memory, the names that it is saved under, and its size when loaded."""

    name: str
    saved_as: tuple[str, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class Architecture:
    """What is known of a model class: hints, each as transformers 5.23 has it.

    `blocks` are the modules of `no_split_classes`; `weights` has every tensor once.
    """

    class_name: str
    no_split_classes: tuple[str, ...]
    blocks: tuple[str, ...]
    weights: tuple[Weight, ...]
    device_map: Mapping[str, str]


def ask_architecture(
    checkpoint: Checkpoint,
    dtype: str | None = None,
    budgets: Mapping[str, int] | None = None,
    limit_seconds: float = ARCHITECTURE_SECONDS,
) -> Architecture:
    """Return what is known of the model that the config.json of `checkpoint` describes, as loaded in torch's `dtype`.

    With `budgets` (device to bytes) the answer has accelerate's device map for them. Raises SourceError where
    transformers has no class for it, or only code of the repo has; ModelRefused as `hints_for` does.
    """
    config = checkpoint.configs[""]
    refuse_contradiction(config, (tensor.shape for tensor in checkpoint.tensors))
    asked = {"config": config, "dtype": dtype, "budgets": dict(budgets or {})}
    return from_answer(ask_meta_model(asked, limit_seconds))


def hints_for(
    checkpoint: Checkpoint, options: Options, *, limit_seconds: float = ARCHITECTURE_SECONDS
) -> dict[str, ModelHints]:
    """Return what transformers knows of each component, by its folder; nothing for a plan that needs none of it.

    The table in this package answers what it can. Otherwise it takes seconds, in which another process imports
    transformers and reads no weights. Raises Refused where transformers itself must be asked and is not installed,
    ModelRefused where a config.json claims far more than the headers can hold, or the answers take longer than
    `limit_seconds` or more memory than is allowed.
    """
    if not options.asks_class:
        return {}
    end = time.monotonic() + limit_seconds
    return {folder: _hints(checkpoint, folder, options, end - time.monotonic()) for folder in checkpoint.configs}


def _hints(checkpoint: Checkpoint, folder: str, options: Options, limit_seconds: float) -> ModelHints:
    config = checkpoint.configs[folder]
    inside = [tensor for tensor in checkpoint.tensors if tensor.folder == folder]
    if '"model_type"' not in config:  # so no class of transformers is looked for
        return ModelHints(unknown=f"{folder}config.json names no model type.")
    if not options.asks_library:
        blocks = options.strategy == "blocks"
        if hints := hints_from_table(config, inside, folder, options.dtype, with_blocks=blocks):
            return hints
        if not is_installed("transformers"):
            reason = "its class is not in this tool's table, and transformers, which may know it, is not installed."
            return ModelHints(unknown=reason)
    refuse_contradiction(config, (tensor.shape for tensor in inside), folder)
    tensors = [(tensor.name.removeprefix(folder), tensor.dtype, tensor.shape) for tensor in inside]
    asked = {"config": config, "dtype": torch_name(options.dtype), "tensors": tensors, "ranks": options.ranks}
    if quantization_of(config) is not None:
        asked |= _as_if_ordinary(config, tensors)
    try:
        return hints_from(ask_meta_model(asked, limit_seconds), folder)
    except ModelRefused:
        raise
    except SourceError as error:
        return ModelHints(unknown=error.message)


def _as_if_ordinary(config: str, tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> dict[str, Any]:
    """Return what is asked of a quantized checkpoint: of its class, which is the same without that.

    Most quantizers of transformers 5.23 want libraries and a GPU, and that of FP8 cannot save a mixture of experts.
    """
    return {
        "config": without_quantization(config),
        "dtype": "bfloat16",
        "tensors": [(ordinary_name(name), dtype, shape) for name, dtype, shape in tensors],
        "is_quantized": True,
    }


def ask_meta_model(question: Mapping[str, Any], limit_seconds: float = ARCHITECTURE_SECONDS) -> Any:
    """Return what `model_class.meta_model` answers in a process of its own; both are described there.

    Raises ModelRefused where it takes longer than `limit_seconds`, and is killed, or more memory than is allowed;
    SourceError where it breaks, or has no class for the model.
    """
    limit_seconds = max(limit_seconds, 0.001)
    # A file: of what a library says at length the end is read.
    with TemporaryFile() as errors:
        try:
            done = subprocess.run(
                child_command("sharding.model_class.meta_model"),
                input=json.dumps({**question, "limit_seconds": limit_seconds}).encode(),
                stdout=subprocess.PIPE,
                stderr=errors,
                env=child_variables(),
                timeout=limit_seconds,
            )
        except subprocess.TimeoutExpired as error:
            raise ModelRefused(_TOO_LONG, _LEAVE_OUT) from error
        errors.seek(max(0, errors.tell() - STDERR_BYTES))
        lines = errors.read().decode(errors="replace").strip().splitlines()
    if done.returncode == -signal.SIGALRM:
        raise ModelRefused(_TOO_LONG, _LEAVE_OUT)
    if done.returncode < 0:  # as where there is no memory in the midst of a library
        killer = signal.Signals(-done.returncode).name
        raise ModelRefused(f"transformers cannot build this model: its process was ended by {killer}.", _LEAVE_OUT)
    if done.returncode:
        problem = (lines or ["no reason given"])[-1][:300]
        raise SourceError(f"transformers cannot build this model: {problem}", "Check its config.json.")
    answer = json.loads(done.stdout)
    if "refused" in answer:
        raise ModelRefused(answer["refused"], _LEAVE_OUT)
    if "unsupported" in answer:
        raise SourceError(answer["unsupported"], "Its files can still be inspected, planned and sharded.")
    return answer


def hints_from(answer: Mapping[str, Any], folder: str = "") -> ModelHints:
    """Return what `model_class.meta_model` has answered of what would be saved; names get `folder` before them."""
    cut = answer["pipeline"] or {}
    return ModelHints(
        answer["class_name"],
        tuple(
            SavedTensor(folder + name, dtype, storage, block and folder + block)
            for name, dtype, storage, block in answer["saved"]
        ),
        tied=tuple(tuple(folder + name for name in names) for names in answer["tied"]),
        pipeline=PipelineCut(cut["transformers"], tuple(map(tuple, cut["layers"]))) if "layers" in cut else None,
        loads=tuple(frozenset(folder + name for name in names) for names in cut.get("loads", ())),
        uncut=cut.get("uncut", ""),
    )


def from_answer(answer: Mapping[str, Any]) -> Architecture:
    """Return what `sharding.model_class.meta_model` has answered."""
    return Architecture(
        class_name=answer["class_name"],
        no_split_classes=tuple(answer["no_split_classes"]),
        blocks=tuple(answer["blocks"]),
        weights=tuple(
            Weight(weight["name"], tuple(weight["saved_as"]), weight["bytes"]) for weight in answer["weights"]
        ),
        device_map=answer.get("device_map", {}),
    )
