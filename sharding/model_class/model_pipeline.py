"""Ask transformers how it splits a model over the ranks of a pipeline. Runs only in child processes."""

from collections.abc import Iterable
from typing import Any

_PARTS = ("embed_tokens", "layers", "norm")
"""The parts, besides the head, that transformers 5.23 splits.

See `distributed.pipeline_parallel.apply_pipeline_parallelism`."""


def cut_over(model: Any, ranks: int, stored: set[str]) -> dict[str, Any]:
    """Return how transformers splits `model` over `ranks`: its version, and the layers and stored names of each rank.

    A tensor that belongs to no rank is left out. If the model cannot be split, the only key is `uncut` with the reason.
    """
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
    """Return why transformers' pipeline cannot run `model`, or "" if it can."""
    kind = type(model).__name__
    base = getattr(model, model.base_model_prefix, None) if model.base_model_prefix else None
    missing = [part for part in _PARTS if not hasattr(base, part)]
    if base is None or missing:
        return f"{kind} has no {missing[0] if base is not None else 'base model'}, which a decoder needs"
    if getattr(model, "lm_head", None) is None or model.get_output_embeddings() is not model.lm_head:
        return f"{kind} has no lm_head"
    others = [name for name, module in base.named_children() if name not in _PARTS and any(module.parameters())]
    inside = (model.base_model_prefix, "lm_head")
    others += [name for name, module in model.named_children() if name not in inside and any(module.parameters())]
    return f"{kind} has {others[0]} beside its layers" if others else ""
