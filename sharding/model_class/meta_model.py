"""Build a model without weights to find out what transformers and accelerate know about it. Runs as its own process.

Standard input has one JSON object with these keys:

- `config`: the text of a config.json.
- `dtype`: torch's name of the dtype, or None for the configured one.
- `limit_seconds`: the process ends after this time.
- Either `budgets`: device to bytes, or None. With it, if the files are quantized, `stored`: name, dtype, shape and
  bytes of each tensor in them. With `only`, some sets of devices: the first of them that holds all weights gets them.
- Or `tensors`: name, dtype and shape of each tensor in the files. With it, `ranks`: how many a pipeline has, or 0.
- `is_quantized` (default: false): if true, shapes may differ from those of the class.

Standard output gets one JSON object. No code of a repo is run.
"""

import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from sharding.core.allowance import memory_allowance
from sharding.core.dtypes import BY_NAME
from sharding.core.limits import MAX_DESCRIPTION_BYTES
from sharding.core.text import format_bytes
from sharding.core.values import Tensor
from sharding.formats.quantization import stored_sizes
from sharding.model_class.transformers_class import Unsupported, model_class
from sharding.recipes.stored import Stored

MODEL_MEMORY_BYTES = 2_000_000_000  # On top of the libraries. 300,000 tensors, the most known, take 1.3 GB.
_TORCH = {dtype.name: getattr(torch, dtype.torch) for dtype in BY_NAME.values() if dtype.torch}
"""The dtypes of torch by their names in safetensors. Tensors of other dtypes are skipped."""
_DECODER = ("embed_tokens", "layers", "norm")  # Beside the head, what transformers 5.23 splits (`pipeline_parallel`).
_SAFETENSORS = {dtype: name for name, dtype in _TORCH.items()}


def main() -> None:
    """Answer one question."""
    asked = json.load(sys.stdin)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries may print, which must not mix with the answer
    signal.setitimer(signal.ITIMER_REAL, asked["limit_seconds"])  # the parent process may be gone by then
    # The memory of these large libraries does not count as the model's.
    import accelerate  # noqa: F401
    from transformers import core_model_loading, logging, modeling_utils  # noqa: F401

    torch.set_num_threads(1)
    logging.set_verbosity_error()  # otherwise it lists all weights that the model lacks
    try:
        with memory_allowance(MODEL_MEMORY_BYTES):
            answer = json.dumps(load_and_save(asked) if "tensors" in asked else describe(asked))
    except Unsupported as error:
        answer = json.dumps({"unsupported": str(error)})
    except MemoryError:
        answer = ""
    if not 0 < len(answer) <= MAX_DESCRIPTION_BYTES:
        problem = f"even without weights it needs more memory than the limit of {format_bytes(MODEL_MEMORY_BYTES)}"
        answer = json.dumps({"refused": f"transformers cannot build this model: {problem}."})
    with out:
        out.write(answer)


def describe(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a question with `budgets`: see `Architecture`. Raises Unsupported."""
    from transformers.initialization import meta_device_safe_creation_ops

    cls, config = _class_of(asked["config"])
    dtype = getattr(torch, asked["dtype"]) if asked["dtype"] else config.dtype
    # As in from_pretrained, so that buffers take no memory either.
    with torch.device("meta"), meta_device_safe_creation_ops():
        model = cls._from_config(config, dtype=dtype)
    model.tie_weights()
    classes = sorted(model._no_split_modules or [])
    answer = {
        "class_name": cls.__name__,
        "no_split_classes": classes,
        "blocks": [name for name, module in model.named_modules() if type(module).__name__ in classes],
        "weights": _weights(model),
    }
    if stored := asked.get("stored"):
        tensors = [Tensor(name, dtype, tuple(shape), Stored(0, "", 0, size)) for name, dtype, shape, size in stored]
        _hold_as_stored(model, answer["weights"], tensors)
    if budgets := asked["budgets"]:
        total = sum(weight["bytes"] for weight in answer["weights"])
        sets = [{device: budgets[device] for device in devices} for devices in asked.get("only") or [budgets]]
        maps = [_place(model, some, classes, total) for some in sets]
        answer["device_map"] = next((placed for placed in maps if "disk" not in placed.values()), maps[0])
    return answer


def load_and_save(asked: dict[str, Any]) -> dict[str, Any]:
    """Return what transformers 5.23 would save after loading a checkpoint. No tensor bytes are needed. `saved` has
    name, dtype, storage and block of every tensor, in the order of `PreTrainedModel.save_pretrained`. `tied` has groups
    of names that stand for one tensor. `pipeline` is the result of `cut_over`. Raises Unsupported."""
    from transformers.core_model_loading import revert_weight_conversion
    from transformers.modeling_utils import remove_tied_weights_from_state_dict

    cls, config = _class_of(asked["config"])
    known = ((name, _TORCH[dtype], shape) for name, dtype, shape in asked["tensors"] if dtype in _TORCH)
    state = {name: torch.empty(shape, dtype=dtype, device="meta") for name, dtype, shape in known}
    wanted = getattr(torch, asked["dtype"]) if asked["dtype"] else "auto"
    with torch.device("meta"):  # also for the buffers that it computes after loading
        how = {"dtype": wanted, "device_map": {"": "meta"}, "ignore_mismatched_sizes": asked.get("is_quantized", False)}
        model = cls.from_pretrained(None, config=config, state_dict=state, **how)
    ignored = model._keys_to_ignore_on_save or ()
    state = {name: tensor for name, tensor in model.state_dict().items() if name not in ignored}
    state = remove_tied_weights_from_state_dict(state, model)
    block_of = blocks_in_files(model, state)
    storages: dict[int, int] = {}
    saved = []
    for name, tensor in revert_weight_conversion(model, state).items():
        storage = storages.setdefault(tensor.untyped_storage()._cdata, len(storages))
        saved.append((name, _SAFETENSORS.get(tensor.dtype, ""), storage, block_of.get(name, "")))
    stored = {name for name, _, _ in asked["tensors"]}
    pipeline = cut_over(model, asked["ranks"], stored) if asked["ranks"] else None
    tied = [in_files(model, names, stored) for names in tied_names(model)]
    return {"class_name": cls.__name__, "saved": saved, "tied": tied, "pipeline": pipeline}


def _hold_as_stored(model: Any, weights: list[dict[str, Any]], tensors: list[Tensor]) -> None:
    """Give each parameter of `model` that is quantized in the files the bytes that it has there, and `weights` too."""
    stored = stored_sizes([name for weight in weights for name in weight["saved_as"]], tensors)
    sizes = {tensor.name: tensor.bytes for tensor in tensors} | stored
    held = {}
    for weight in weights:
        if stored.keys() & weight["saved_as"]:
            weight["bytes"] = sum(sizes.get(name, 0) for name in weight["saved_as"])
            data = torch.empty(weight["bytes"], dtype=torch.uint8, device="meta")
            held[id(model.get_parameter(weight["name"]))] = torch.nn.Parameter(data, requires_grad=False)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in held:
                setattr(module, name, held[id(parameter)])


def _class_of(text: str) -> tuple[Any, Any]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(text)
        return model_class(Path(folder))


def blocks_in_files(model: Any, state: dict[str, Any]) -> dict[str, str]:
    """Return the module around each tensor of `state` that is never split over devices, both as named in files."""
    from transformers.core_model_loading import revert_weight_conversion

    classes = set(model._no_split_modules or ())
    whole = {name for name, module in model.named_modules() if type(module).__name__ in classes}
    by_block: dict[str, dict[str, Any]] = {}
    for name, tensor in state.items():
        modules = name.split(".")
        around = (".".join(modules[:count]) for count in range(1, len(modules)))  # the outermost first
        if block := next((module for module in around if module in whole), None):
            by_block.setdefault(block, {})[name] = tensor
    block_of = {}
    for block, inside in by_block.items():
        names = list(revert_weight_conversion(model, inside))
        if not all(name.startswith(f"{block}.") for name in names):  # the module has another name in the files
            block = ".".join(os.path.commonprefix([name.split(".") for name in names])) or block
        block_of.update(dict.fromkeys(names, block))
    return block_of


def _place(model: Any, budgets: dict[str, int], classes: list[str], total_bytes: int) -> dict[str, str]:
    from accelerate import infer_auto_device_map

    first = next(iter(budgets), "disk")
    if first == "disk" or total_bytes <= budgets[first]:  # accelerate also keeps room for buffers that are computed
        return {"": first}
    numbered = {int(name[5:]) if name.startswith("cuda:") else name: size for name, size in budgets.items()}
    placed = infer_auto_device_map(model, max_memory=numbered, no_split_module_classes=classes)
    return {name: f"cuda:{device}" if isinstance(device, int) else device for name, device in placed.items()}


def _weights(model: Any) -> list[dict[str, Any]]:
    from transformers.core_model_loading import dot_natural_key, revert_weight_conversion

    kept = dict(model.named_parameters())
    saved = model.state_dict()
    kept |= {name: tensor for name, tensor in model.named_buffers() if name in saved}
    weights = []
    for name in sorted(kept, key=dot_natural_key):
        names = list(revert_weight_conversion(model, {name: kept[name]}))
        weights.append({"name": name, "saved_as": names, "bytes": kept[name].nbytes})
    return weights


def cut_over(model: Any, ranks: int, stored: set[str]) -> dict[str, Any]:
    """Return how transformers splits `model`: its version, and the layers and stored names of each rank. A tensor of no
    rank is left out. If it cannot be split, the only key is `uncut` with the reason."""
    import transformers
    from transformers.distributed.pipeline_parallel import PipelineStage

    if reason := _refusal(model):
        return {"uncut": reason}
    stage = PipelineStage.__new__(PipelineStage)  # its constructor needs the running processes
    stage.pp_size = ranks
    count = len(model.base_model.layers)
    rank_of = {name: stage.find_rank_for_key(name, count, model.base_model_prefix) for name in model.state_dict()}
    owners = {name: rank for name, rank in rank_of.items() if rank is not None}
    groups = {name: names for names in tied_names(model) for name in names}
    names_of: list[list[str]] = [[] for _ in range(ranks)]
    for name in rank_of:
        for rank in {owners[other] for other in groups.get(name, [name]) if other in owners}:
            names_of[rank].append(name)
    return {
        "transformers": transformers.__version__,
        "layers": [stage.layer_range_for_rank(rank, count) for rank in range(ranks)],
        "loads": [in_files(model, names, stored) for names in names_of],
    }


def tied_names(model: Any) -> list[list[str]]:
    """Return the groups of names that stand for one tensor."""
    groups: dict[int, list[str]] = {}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(tensor), []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def in_files(model: Any, names: Iterable[str], stored: set[str]) -> list[str]:
    """Return the names in files of the tensors `names`. `stored` names may lack the prefix of the base model."""
    from transformers.core_model_loading import revert_weight_conversion

    tensors = dict(model.named_parameters(remove_duplicate=False)) | model.state_dict()
    saved = revert_weight_conversion(model, {name: tensors[name] for name in names})
    shorter = {name: name.removeprefix(f"{model.base_model_prefix}.") for name in saved}
    return [short if short in stored else name for name, short in shorter.items()]


def _refusal(model: Any) -> str:
    kind = type(model).__name__
    base = getattr(model, model.base_model_prefix, None) if model.base_model_prefix else None
    missing = [part for part in _DECODER if not hasattr(base, part)]
    if base is None or missing:
        return f"{kind} has no {missing[0] if base is not None else 'base model'}, which a decoder needs"
    if getattr(model, "lm_head", None) is None or model.get_output_embeddings() is not model.lm_head:
        return f"{kind} has no lm_head"
    others = [name for name, module in base.named_children() if name not in _DECODER and any(module.parameters())]
    inside = (model.base_model_prefix, "lm_head")
    others += [name for name, module in model.named_children() if name not in inside and any(module.parameters())]
    return f"{kind} has {others[0]} beside its layers" if others else ""


if __name__ == "__main__":
    main()
