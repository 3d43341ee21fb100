"""Write down what the classes of the installed transformers are like, for `sharding/model_class/class_table.json`.

Each class is built without weights, from its defaults or the first of a few configurations that builds it. `make
class-table` writes the table, and tests hold it to the library.
"""

import importlib
import json
import logging
import pkgutil
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion
from transformers.initialization import meta_device_safe_creation_ops
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

from sharding.model_class.class_table import EMBEDDINGS, HEADS, OF_DIFFUSERS, TABLE
from sharding.model_class.meta_model import blocks_in_files

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
_EXPERTS = {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}
_WITH: tuple[dict[str, Any], ...] = (
    {},
    {"vocab_size": 96, "pad_token_id": 0},
    {"head_dim": 64, "num_key_value_heads": 8},
    {"head_dim": 64},
    {"prediction_length": 4},
    {"is_decoder": True},
    {"is_encoder_decoder": False},
    {"out_indices": [1, 2, 3, 4]},
    {"n_shared_experts": 2, "n_routed_experts": 8},
    {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2},
    {"vocabulary_map": {"<image>": 5}},
    dict(text_config={"model_type": "cohere2", "hidden_size": 64}, vision_config={"model_type": "siglip_vision_model"}),
    {
        "rope_parameters": {
            f"{kind}_attention": {"rope_type": "default", "rope_theta": 1e4} for kind in ("full", "sliding")
        }
    },
    {"attn_config": {"kv_n_heads": 8, "rope_theta": 1e4, "clip_qkv": 8}},
    {"mlp_layer_types": ["dense"], "num_hidden_layers": 1},
    {"text_config": {"mlp_layer_types": ["dense"], "num_hidden_layers": 1}},
    _EXPERTS,
    {"text_config": _EXPERTS},
    {"vocab_size": 33, "is_folding_model": True},
    {"d_latents": 512, "num_cross_attention_heads": 1, "num_self_attention_heads": 1},
    {"num_images": 2},
)
"""What some configurations need said, as their defaults build nothing."""


def classes() -> Iterator[tuple[str, type[PreTrainedModel]]]:
    """Yield every class of a model that config.json may name, by that name."""
    for name in sorted(dir(transformers)):
        try:
            cls = getattr(transformers, name)
        except Exception:  # what needs a library that is not there
            continue
        if isinstance(cls, type) and issubclass(cls, PreTrainedModel) and cls.config_class is not None:
            yield name, cls


def built(cls: type[PreTrainedModel]) -> PreTrainedModel | None:
    """Return a model of a class in fp16, without weights; None where no configuration that is tried here builds it."""
    for more in _WITH:
        try:
            config = cls.config_class(**more)
            for part in (config, *(getattr(config, key, None) for key in ("text_config", "decoder"))):
                if part is not None:
                    part.tie_word_embeddings = True
            with torch.device("meta"), meta_device_safe_creation_ops():
                model: PreTrainedModel = cls._from_config(config, dtype=torch.float16)
            model.tie_weights()
            return model
        except Exception:
            continue
    return None


def entry_of(cls: type[PreTrainedModel], model: PreTrainedModel) -> dict[str, Any]:
    """Return what the table says of a class."""
    state = saved(model)
    apart = _of_parts(model)
    plain, strict = (
        _own(cls, model, apart, kind) for kind in ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict")
    )
    all_kept = _regexes({*(model._keep_in_fp32_modules or ()), *(model._keep_in_fp32_modules_strict or ())})
    explicit = {
        name
        for name, tensor in state.items()
        if tensor.is_floating_point() and tensor.dtype == torch.float32 and not _search(all_kept, name)
    }
    entry: dict[str, Any] = {"type": cls.config_class.model_type}
    for dtype, patterns in (("fp16", plain | strict), ("bf16", strict)):
        regexes = _regexes(patterns)
        matched = {name for name in state if _search(regexes, name)}
        # What is called otherwise in files, and what is made in fp32 without a pattern that says so.
        files = {
            *_files(model, state, explicit),
            *(n for n in _files(model, state, matched) if not _search(regexes, n)),
        }
        if kept := sorted(regexes | set(map(_as_pattern, files))):
            entry[dtype] = kept
    if blocks := sorted(set(_blocks(model, state))):
        entry["blocks"] = blocks
    if parts := _parts(cls, model):
        entry["parts"] = parts
    if (ties := _ties(model)) is not None:
        entry["ties"] = ties
    if tied := _tied_to_head(model):
        entry |= {"flag": flag} if (flag := _flag_of(model, tied[0])) != "top" else {}
        entry |= {"tied": tied} if len(tied) > 2 or tied[0] != "lm_head.weight" else {}
    elif ties is not None:
        entry["tied"] = []
    return entry


def saved(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return what a class saves, as it names that in memory."""
    ignored = model._keys_to_ignore_on_save or ()
    return {name: tensor for name, tensor in model.state_dict().items() if name not in ignored}


def names_in_files(model: PreTrainedModel) -> list[str]:
    """Return what files call the floating-point tensors that a class saves."""
    state = {name: tensor for name, tensor in saved(model).items() if tensor.is_floating_point()}
    return _files(model, state, state)


def _of_parts(model: PreTrainedModel) -> list[PreTrainedModel]:
    """Return the models inside whose class a configuration chooses."""
    chosen = [getattr(model.config, key, None) for key in _chosen_parts(type(model))]
    types = {type(config) for config in chosen if config is not None}
    return [part for part in model.modules() if part is not model and type(getattr(part, "config", None)) in types]  # type: ignore[misc]


def _chosen_parts(cls: type[PreTrainedModel]) -> list[str]:
    return sorted(key for key, config in cls.config_class.sub_configs.items() if config.__name__ == "AutoConfig")


def _parts(cls: type[PreTrainedModel], model: PreTrainedModel) -> dict[str, str]:
    """Return of what type the models inside are where config.json does not say."""
    configs = {key: getattr(model.config, key, None) for key in _chosen_parts(cls)}
    return {key: config.model_type for key, config in configs.items() if getattr(config, "model_type", "")}


def _own(cls: type[PreTrainedModel], model: PreTrainedModel, apart: list[PreTrainedModel], kind: str) -> set[str]:
    others = set().union(*(getattr(part, kind, None) or () for part in apart))
    mine = set(getattr(cls, kind) or ())
    inside = [m for m in model.modules() if isinstance(m, PreTrainedModel) and m is not model and m not in apart]
    mine |= set().union(*(getattr(type(part), kind, None) or () for part in inside))
    assert set(getattr(model, kind) or ()) <= mine | others, cls
    return mine


def _regexes(patterns: Iterable[str]) -> set[str]:
    """Return regular expressions for what a class names, as `build_glob_alternation` reads it."""
    return {pattern.replace("*", ".*") for pattern in patterns}


def _search(regexes: Iterable[str], name: str) -> bool:
    return any(re.search(regex, name) for regex in regexes)


def _files(model: PreTrainedModel, state: Mapping[str, torch.Tensor], names: Iterable[str]) -> list[str]:
    return list(revert_weight_conversion(model, {name: state[name] for name in names}))


def _as_pattern(name: str) -> str:
    return r"(?:^|\.)" + re.escape(_NUMBER.sub("0", name)).replace(r"\.0", r"\.\d+") + "$"


def _blocks(model: PreTrainedModel, state: Mapping[str, torch.Tensor]) -> Iterator[str]:
    """Yield the modules that are never split over devices, as files name them, with * for their numbers."""
    yield from (_NUMBER.sub("*", block) for block in set(blocks_in_files(model, dict(state)).values()))


def _ties(model: PreTrainedModel) -> bool | None:
    """Return whether transformers makes one tensor of whatever embeddings and heads have one shape; None if of none."""
    tied = model.get_expanded_tied_weights_keys(all_submodels=True)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    by_shape: dict[torch.Size, list[str]] = {}
    for name, parameter in parameters.items():
        if EMBEDDINGS.search(name) or HEADS.search(name):
            by_shape.setdefault(parameter.shape, []).append(name)
    alike = [names for names in by_shape.values() if len(names) > 1 and any(map(EMBEDDINGS.search, names))]
    if not tied or not alike:
        return None
    return all(len({id(parameters[name]) for name in names}) == 1 for names in alike)


def _tied_to_head(model: PreTrainedModel) -> list[str]:
    """Return the weight of the output head and whatever is tied with it, by their names in memory; the head first.

    Biases that are tied by the same flag come last.
    """
    pairs = model.get_expanded_tied_weights_keys(all_submodels=True)
    try:
        head = model.get_output_embeddings().weight
    except Exception:  # a class without one
        return []
    same = [n for n, parameter in model.named_parameters(remove_duplicate=False) if parameter is head]
    targets = [n for n in same if n in pairs]
    module = {id(m): n for n, m in model.named_modules()}.get(id(model.get_output_embeddings()), "")
    name = f"{module}.weight"
    if name not in targets:
        return []
    return [name, *(n for n in same if n != name), *sorted(n for n in pairs if n.endswith(".bias"))]


def _flag_of(model: PreTrainedModel, head: str) -> str:
    """Return whose `tie_word_embeddings` ties the head: the one at the "top", that of a "part", or "both"."""
    configs = {id(part.config): part.config for part in model.modules() if isinstance(part, PreTrainedModel)}
    parts = [config for config in configs.values() if config is not model.config]

    def is_tied(top: bool, part: bool) -> bool:
        model.config.tie_word_embeddings = top
        for config in parts:
            config.tie_word_embeddings = part
        return head in model.get_expanded_tied_weights_keys(all_submodels=True)

    try:
        if is_tied(False, True):
            return "part"
        return "top" if is_tied(True, False) else "both"
    finally:
        is_tied(True, True)


def table() -> dict[str, Any]:
    """Return the table."""
    known: dict[str, Any] = {}
    for name, cls in classes():
        if name != cls.__name__:
            known[name] = cls.__name__
        elif not name.endswith(("PreTrainedModel", "PretrainedModel")):
            known[name] = entry_of(cls, model) if (model := built(cls)) else None
    types = {}
    for model_type in sorted(CONFIG_MAPPING.keys()):
        names = MODEL_MAPPING_NAMES.get(model_type, "")
        base = names if isinstance(names, str) else names[0]
        types[model_type] = {"class": base, "ties": _flags(model_type)}
    return {"transformers": transformers.__version__, "types": types, "classes": known}


def _flags(model_type: str) -> str:
    """Return the `tie_word_embeddings` of a configuration that does not state it, says true, and says false.

    "y" is true, "n" is false, "?" is an error. If the configuration has a `text_config`, four such words follow each
    other: without a `text_config`, with an empty one, with one that says true, and with one that says false.
    """
    cls = CONFIG_MAPPING[model_type]
    says: tuple[dict[str, Any], ...] = ({}, {"tie_word_embeddings": True}, {"tie_word_embeddings": False})
    texts: list[dict[str, Any]] = [{}]
    if "text_config" in cls.sub_configs:
        texts += [{"text_config": text} for text in says]
    return " ".join("".join(_flag(cls, {**deepcopy(text), **top}) for top in says) for text in texts)


def _flag(cls: Any, options: dict[str, Any]) -> str:
    for more in _WITH:
        if not more.keys() & options.keys():
            try:
                return "y" if getattr(cls.from_dict({**options, **more}), "tie_word_embeddings", False) else "n"
            except Exception:  # it has no defaults, or refuses this
                continue
    return "?"


def text_of(document: Mapping[str, Any]) -> str:
    """Return the table as the file holds it: a line for each class."""

    def lines(entries: Mapping[str, Any]) -> str:
        return ",\n".join(f"{json.dumps(name)}: {json.dumps(entry, sort_keys=True)}" for name, entry in entries.items())

    return (
        f'{{"transformers": {json.dumps(document["transformers"])},\n"types": {{\n{lines(document["types"])}\n}},\n'
        f'"classes": {{\n{lines(document["classes"])}\n}}}}\n'
    )


def quietly() -> None:
    """Have the library say nothing of its defaults."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)


def diffusers_table() -> dict[str, Any]:
    """Return the table of diffusers: the name of each class of a model, and the parts of names that it keeps in fp32."""
    import diffusers
    from diffusers.models.modeling_utils import ModelMixin

    known: dict[str, list[str]] = {}
    for place in pkgutil.walk_packages(diffusers.__path__, "diffusers."):
        if ".models." in place.name or ".pipelines." in place.name:
            try:
                module = importlib.import_module(place.name)
            except Exception:  # what needs a library that is not there
                continue
            for name, cls in vars(module).items():
                if isinstance(cls, type) and issubclass(cls, ModelMixin) and cls is not ModelMixin:
                    known[name] = sorted(cls._keep_in_fp32_modules or ())
    return {"diffusers": diffusers.__version__, "classes": dict(sorted(known.items()))}


def text_of_diffusers(document: Mapping[str, Any]) -> str:
    """Return the table of diffusers as the file holds it: a line for each class."""
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(parts)}" for name, parts in document["classes"].items())
    return f'{{"diffusers": {json.dumps(document["diffusers"])},\n"classes": {{\n{lines}\n}}}}\n'


if __name__ == "__main__":
    quietly()
    TABLE.write_text(text_of(table()))
    OF_DIFFUSERS.write_text(text_of_diffusers(diffusers_table()))
