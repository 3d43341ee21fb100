"""Ask transformers about a model, in a child process on the meta device."""

import json
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from tempfile import TemporaryFile
from typing import Any

from pydantic import TypeAdapter

from sharding.core.dtypes import torch_name
from sharding.core.environment import child_command, child_variables
from sharding.core.errors import ModelRefused, Refused, SourceError
from sharding.core.extras import is_installed
from sharding.core.hints import ModelHints, PipelineCut, SavedTensor
from sharding.core.limits import ARCHITECTURE_SECONDS, STDERR_BYTES
from sharding.core.options import Options
from sharding.core.text import objects_in, parsed_json
from sharding.core.values import Content
from sharding.formats.quantization import (
    NEEDS_KERNELS,
    method_of,
    ordinary_name,
    quantization_of,
    quantized_in,
    without_quantization,
)
from sharding.model_class.class_table import hints_from_table, hints_of_diffusers

_WITHOUT = "cut by size, in natural order and without a cast. This needs no transformers."
_LEAVE_OUT = f"Check its config.json. Or {_WITHOUT}"

_ON_GPUS = ("hqq",)
_TOGETHER = ("bitsandbytes", "bitnet", "quanto")  # All on GPUs, or all in memory. Those above: on GPUs only.


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of the model: its name in memory, its names in files, and its size when loaded."""

    name: str
    saved_as: tuple[str, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class Architecture:
    """What transformers 5.23 knows about a model class. `blocks` are the modules of `no_split_classes`. `weights` has
    every tensor once. `trouble` says why no code loads it by `device_map`, or is ""."""

    class_name: str
    no_split_classes: tuple[str, ...]
    blocks: tuple[str, ...]
    weights: tuple[Weight, ...]
    device_map: Mapping[str, str] = field(default_factory=dict)
    trouble: str = ""


ARCHITECTURE = TypeAdapter(Architecture)  # Reads the answer of `model_class.meta_model`.


def ask_architecture(
    checkpoint: Content,
    dtype: str | None = None,
    budgets: Mapping[str, int] | None = None,
    limit_seconds: float = ARCHITECTURE_SECONDS,
) -> Architecture:
    """Return the architecture that config.json describes, as if loaded in torch's `dtype`. Quantized weights keep their
    size, unless a processor would have to dequantize them. With `budgets` it has accelerate's device map. Raises
    SourceError if transformers has no class of its own for it, and ModelRefused as in `hints_for`."""
    config = checkpoint.configs[""]
    refuse_contradiction(config, (tensor.shape for tensor in checkpoint.tensors))
    asked: dict[str, Any] = {"config": config, "dtype": dtype, "budgets": dict(budgets or {})}
    quantization = quantization_of(config)
    method = method_of(quantization) if quantization is not None else ""
    is_dequantized = method in NEEDS_KERNELS and "cpu" in (budgets or {})
    if budgets and not is_dequantized and (method or quantized_in(checkpoint.tensors)):
        asked["stored"] = [(tensor.name, tensor.dtype, tensor.shape, tensor.bytes) for tensor in checkpoint.tensors]
        asked["only"] = _together(method, budgets)
    answer = ARCHITECTURE.validate_python(ask_meta_model(asked, limit_seconds))
    if asked.get("only") and "disk" in answer.device_map.values():
        where = "GPUs" if method in _ON_GPUS else "GPUs, or all of them in memory"
        return replace(answer, trouble=f"transformers loads weights of {method} only if all of them are on {where}.")
    return answer


def _together(method: str, budgets: Mapping[str, int]) -> list[list[str]]:
    """Return sets of devices of which one must hold all weights, [] if each may hold a part: as the quantizers of
    transformers 5.23 have it in `validate_environment`, for weights of files."""
    gpus = [device for device in budgets if device != "cpu"]
    if method in _ON_GPUS:
        return [gpus]
    return [devices for devices in (gpus, ["cpu"]) if budgets.keys() & devices] if method in _TOGETHER else []


def stored_names(checkpoint: Content, limit_seconds: float = ARCHITECTURE_SECONDS) -> dict[str, str]:
    """Return all names in files by names in memory, {} without transformers. Takes seconds. Raises ModelRefused."""
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
    checkpoint: Content, options: Options, *, limit_seconds: float = ARCHITECTURE_SECONDS
) -> dict[str, ModelHints]:
    """Return hints about each component, by its folder; {} if the plan needs none. The table answers what it can, else
    another process imports transformers. Raises Refused if it is not installed or takes too long, and ModelRefused if a
    config.json claims far more than the headers hold, or takes too much memory."""
    if not options.asks_class:
        return {}
    end = time.monotonic() + limit_seconds
    return {folder: _hints(checkpoint, folder, options, end - time.monotonic()) for folder in checkpoint.configs}


def _hints(checkpoint: Content, folder: str, options: Options, limit_seconds: float) -> ModelHints:
    config = checkpoint.configs[folder]
    inside = [tensor for tensor in checkpoint.tensors if tensor.folder == folder]
    from_table = not (options.ranks or options.order == "transformers")
    if from_table and options.strategy == "size" and (hints := hints_of_diffusers(config, inside, folder)):
        return hints
    if '"model_type"' not in config:  # then transformers has no class for it
        return ModelHints(unknown=f"{folder}config.json names no model type.")
    if from_table:
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
        # Asked as if it were not: most quantizers of transformers 5.23 need extra libraries and a GPU, and the FP8
        # quantizer cannot save a mixture of experts. The class does not change.
        tensors = [(ordinary_name(name), dtype, shape) for name, dtype, shape in tensors]
        asked |= {"config": without_quantization(config), "dtype": "bfloat16", "tensors": tensors, "is_quantized": True}
    try:
        return hints_from(ask_meta_model(asked, limit_seconds), folder)
    except ModelRefused:
        raise
    except SourceError as error:
        return ModelHints(unknown=error.message)


def ask_meta_model(question: Mapping[str, Any], limit_seconds: float = ARCHITECTURE_SECONDS) -> Any:
    """Return the answer of `model_class.meta_model`, in its own process. Raises Refused, and kills it, if it takes too
    long. Raises ModelRefused if it needs too much memory, SourceError if it fails or has no class."""
    limit_seconds = max(limit_seconds, 0.001)
    message = "transformers took too long to build this model without weights. This machine may be busy."
    late = Refused(message, f"Try again in a minute. Or {_WITHOUT}")
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
            raise late from error
        errors.seek(max(0, errors.tell() - STDERR_BYTES))
        lines = errors.read().decode(errors="replace").strip().splitlines()
    if done.returncode == -signal.SIGALRM:
        raise late
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
    cut, saved = answer["pipeline"] or {}, answer["saved"]
    return ModelHints(
        answer["class_name"],
        tuple(SavedTensor(folder + name, dtype, number, at and folder + at) for name, dtype, number, at in saved),
        tied=tuple(tuple(folder + name for name in names) for names in answer["tied"]),
        pipeline=PipelineCut(cut["transformers"], tuple(map(tuple, cut["layers"]))) if "layers" in cut else None,
        loads=tuple(frozenset(folder + name for name in names) for names in cut.get("loads", ())),
        uncut=cut.get("uncut", ""),
    )


# What a config.json may claim without the tensors to match, because they may be only part of a model.
_LAYERS_TAKEN = 1000  # the deepest known model has about 200
_WORDS_TAKEN = 2_000_000  # the largest known vocabulary has 1,000,000 words
_WIDTH_TAKEN = 1_000_000  # the widest known layer has 200,000 numbers

_LAYERS = (
    *("num_hidden_layers", "num_layers", "n_layers", "n_layer", "num_hidden_groups", "num_blocks", "depth"),
    *("encoder_layers", "decoder_layers", "num_encoder_layers", "num_decoder_layers"),
)
_DIMENSIONS = ("vocab_size", "hidden_size", "intermediate_size", "ffn_dim", "d_model", "d_ff", "n_embd", "n_inner")


def refuse_contradiction(config: str, shapes: Iterable[tuple[int, ...]], folder: str = "") -> None:
    """Raise ModelRefused if `config` (a config.json) claims far more than tensors of `shapes` can hold.

    A part of a checkpoint lacks most of the model, so a number that a known model could have is never refused.

    >>> refuse_contradiction('{"n_layer": 10000000}', [(96, 32)])
    Traceback (most recent call last):
        ...
    sharding.core.errors.ModelRefused: config.json sets n_layer to 10,000,000, but the weights have only 1 tensor.
    """
    dimensions = [max(shape, default=1) for shape in shapes]
    count, widest = len(dimensions), max(dimensions, default=0)
    sections = objects_in(parsed_json(config))
    for key, number in (entry for section in sections for entry in section.items() if type(entry[1]) is int):
        if key in _LAYERS and number > max(count, _LAYERS_TAKEN):
            held = "the weights have only 1 tensor" if count == 1 else f"the weights have only {count:,} tensors"
        elif number > max(widest, _WORDS_TAKEN if key == "vocab_size" else _WIDTH_TAKEN) and key in _DIMENSIONS:
            held = f"no dimension of the weights is larger than {widest:,}"
        else:
            continue
        written = f"{number:,}" if number < 10**15 else "a number of more than 15 digits"
        message = f"{folder}config.json sets {key} to {written}, but {held}."
        raise ModelRefused(message, "Use the config.json that belongs to these weights.")
