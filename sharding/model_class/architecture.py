"""Ask transformers about a model, in a child process on the meta device."""

import json
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
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
from sharding.formats.quantization import (
    method_of,
    ordinary_name,
    quantization_of,
    quantized_in,
    without_quantization,
)
from sharding.model_class.claims import refuse_contradiction
from sharding.model_class.class_table import hints_from_table
from sharding.model_class.diffusers_table import hints_of_diffusers

_TOO_LONG = "transformers took too long to build this model without weights."
_LEAVE_OUT = "Check its config.json. Or cut by size, in natural order and without a cast. This needs no transformers."


_ON_GPUS = ("hqq",)
_TOGETHER = ("bitsandbytes", "bitnet", "quanto")
"""Methods whose weights are on GPUs only, or either all on GPUs or all in memory."""


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of the model: its name in memory, its names in files, and its size when loaded."""

    name: str
    saved_as: tuple[str, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class Architecture:
    """What transformers 5.23 knows about a model class.

    `blocks` are the modules of `no_split_classes`. `weights` has every tensor once. `trouble` says why no code loads
    it by `device_map`, or is "".
    """

    class_name: str
    no_split_classes: tuple[str, ...]
    blocks: tuple[str, ...]
    weights: tuple[Weight, ...]
    device_map: Mapping[str, str]
    trouble: str = ""


def ask_architecture(
    checkpoint: Checkpoint,
    dtype: str | None = None,
    budgets: Mapping[str, int] | None = None,
    limit_seconds: float = ARCHITECTURE_SECONDS,
) -> Architecture:
    """Return the architecture that the config.json of `checkpoint` describes, as if loaded in torch's `dtype`.

    Quantized weights have the size that they have in the files. With `budgets` (device to bytes), the answer has
    accelerate's device map for them. Raises SourceError if
    transformers has no class for the model, or only the repo has code for it. Raises ModelRefused as in `hints_for`.
    """
    config = checkpoint.configs[""]
    refuse_contradiction(config, (tensor.shape for tensor in checkpoint.tensors))
    asked: dict[str, Any] = {"config": config, "dtype": dtype, "budgets": dict(budgets or {})}
    quantization = quantization_of(config)
    method = method_of(quantization) if quantization is not None else ""
    if budgets and (method or quantized_in(checkpoint.tensors)):
        asked["stored"] = [(tensor.name, tensor.dtype, tensor.shape, tensor.bytes) for tensor in checkpoint.tensors]
        asked["only"] = _together(method, budgets)
    answer = from_answer(ask_meta_model(asked, limit_seconds))
    if asked.get("only") and "disk" in answer.device_map.values():
        where = "GPUs" if method in _ON_GPUS else "GPUs, or all of them in memory"
        return replace(answer, trouble=f"transformers loads weights of {method} only if all of them are on {where}.")
    return answer


def _together(method: str, budgets: Mapping[str, int]) -> list[list[str]]:
    """Return sets of devices: one of them must hold all weights. [] if each device may hold a part.

    Source: `validate_environment` of the quantizers of transformers 5.23. What it takes with an offload is for weights
    that it quantizes itself: those of a file have other shapes.
    """
    gpus = [device for device in budgets if device != "cpu"]
    if method in _ON_GPUS:
        return [gpus]
    return [devices for devices in (gpus, ["cpu"]) if budgets.keys() & devices] if method in _TOGETHER else []


def stored_names(checkpoint: Checkpoint, limit_seconds: float = ARCHITECTURE_SECONDS) -> dict[str, str]:
    """Return the names in files of all weights of the class, by their names in memory, {} without transformers.

    Takes seconds, because another process imports transformers. Raises ModelRefused as in `hints_for`.
    """
    if "" not in checkpoint.configs or not is_installed("transformers"):
        return {}
    try:
        weights = ask_architecture(checkpoint, limit_seconds=limit_seconds).weights
    except ModelRefused:
        raise
    except SourceError:
        return {}
    return {weight.name: weight.saved_as[0] for weight in weights if weight.saved_as}


def hints_for(
    checkpoint: Checkpoint, options: Options, *, limit_seconds: float = ARCHITECTURE_SECONDS
) -> dict[str, ModelHints]:
    """Return hints about each component, by its folder. The result is empty if the plan needs no hints.

    The table in this package answers what it can. Otherwise another process imports transformers, which takes seconds
    and reads no weights. Raises Refused if transformers is needed but not installed. Raises ModelRefused if a
    config.json claims far more than the headers can hold. Raises it too if the answers take longer than `limit_seconds`
    or more memory than allowed.
    """
    if not options.asks_class:
        return {}
    end = time.monotonic() + limit_seconds
    return {folder: _hints(checkpoint, folder, options, end - time.monotonic()) for folder in checkpoint.configs}


def _hints(checkpoint: Checkpoint, folder: str, options: Options, limit_seconds: float) -> ModelHints:
    config = checkpoint.configs[folder]
    inside = [tensor for tensor in checkpoint.tensors if tensor.folder == folder]
    if (
        not options.asks_library
        and options.strategy == "size"
        and (hints := hints_of_diffusers(config, inside, folder))
    ):
        return hints
    if '"model_type"' not in config:  # then transformers has no class for it
        return ModelHints(unknown=f"{folder}config.json names no model type.")
    if not options.asks_library:
        blocks = options.strategy == "blocks"
        if hints := hints_from_table(config, inside, folder, options.dtype, with_blocks=blocks):
            return hints
        if not is_installed("transformers"):
            reason = "Its class is not in this tool's table, and transformers, which may know it, is not installed."
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
    """Return the question about a quantized checkpoint, as if it were not quantized. The class does not change.

    Most quantizers of transformers 5.23 need extra libraries and a GPU. The FP8 quantizer cannot save a mixture of
    experts.
    """
    return {
        "config": without_quantization(config),
        "dtype": "bfloat16",
        "tensors": [(ordinary_name(name), dtype, shape) for name, dtype, shape in tensors],
        "is_quantized": True,
    }


def ask_meta_model(question: Mapping[str, Any], limit_seconds: float = ARCHITECTURE_SECONDS) -> Any:
    """Return the answer of `model_class.meta_model`, which runs in its own process. It describes question and answer.

    Raises ModelRefused if the process takes longer than `limit_seconds`, and kills it, or needs more memory than
    allowed. Raises SourceError if the process fails, or has no class for the model.
    """
    limit_seconds = max(limit_seconds, 0.001)
    # A library may write a lot to standard error, so a file takes it and only its end is read.
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
    if done.returncode < 0:  # for example, a library ran out of memory
        killer = signal.Signals(-done.returncode).name
        raise ModelRefused(f"transformers cannot build this model: its process was ended by {killer}.", _LEAVE_OUT)
    if done.returncode:
        problem = (lines or ["no reason given"])[-1][:300]
        raise SourceError(f"transformers cannot build this model: {problem}", _LEAVE_OUT)
    answer = json.loads(done.stdout)
    if "refused" in answer:
        raise ModelRefused(answer["refused"], _LEAVE_OUT)
    if "unsupported" in answer:
        raise SourceError(answer["unsupported"], "You can still inspect, plan and shard its files.")
    return answer


def hints_from(answer: Mapping[str, Any], folder: str = "") -> ModelHints:
    """Return the answer of `model_class.meta_model` about saved tensors as hints, with `folder` before every name."""
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
    """Return the answer of `sharding.model_class.meta_model` as an Architecture."""
    return Architecture(
        class_name=answer["class_name"],
        no_split_classes=tuple(answer["no_split_classes"]),
        blocks=tuple(answer["blocks"]),
        weights=tuple(
            Weight(weight["name"], tuple(weight["saved_as"]), weight["bytes"]) for weight in answer["weights"]
        ),
        device_map=answer.get("device_map", {}),
    )
