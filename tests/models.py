"""Small models of many classes, with random weights, saved as the Hub has them."""

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel

from sharding.core.errors import SourceError
from sharding.model_class.meta_model import describe, load_and_save

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "vocab_size": 96,
}
CLASSES: dict[str, tuple[type, str, dict[str, Any]]] = {
    "llama": (AutoModelForCausalLM, "llama", SMALL),
    "llama-tied": (AutoModelForCausalLM, "llama", {**SMALL, "tie_word_embeddings": True}),
    "gpt2": (
        AutoModelForCausalLM,
        "gpt2",
        {"n_embd": 32, "n_layer": 12, "n_head": 4, "vocab_size": 96, "n_positions": 64},
    ),
    "bert": (AutoModel, "bert", SMALL),
    "t5": (
        AutoModelForSeq2SeqLM,
        "t5",
        {"d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 11, "num_heads": 4, "vocab_size": 96},
    ),
    "vit": (AutoModel, "vit", {**SMALL, "image_size": 16, "patch_size": 4}),
    "mixtral": (AutoModelForCausalLM, "mixtral", {**SMALL, "num_key_value_heads": 2, "num_local_experts": 4}),
    "qwen2-moe": (
        AutoModelForCausalLM,
        "qwen2_moe",
        {
            **SMALL,
            "num_key_value_heads": 2,
            "num_experts": 4,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 24,
        },
    ),
    "gpt-neox": (AutoModelForCausalLM, "gpt_neox", SMALL),
    "dinov2": (
        AutoModel,
        "dinov2",
        {"hidden_size": 32, "num_hidden_layers": 12, "num_attention_heads": 4, "image_size": 16, "patch_size": 4},
    ),
}
FUSED_OR_RENAMED = ("mixtral", "qwen2-moe", "gpt-neox", "vit", "dinov2")
"""Weights that transformers keeps under other names, or fused, in memory: only the cuts differ then."""


USUAL = ("llama-tied", "gpt2", "t5", "mixtral")
"""One class of every kind."""
USUALLY = [name if name in USUAL else pytest.param(name, marks=pytest.mark.thorough) for name in CLASSES]
"""These, and the others for `make thorough`."""


LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
"""How configurations call the number of their layers."""


DTYPE = torch.bfloat16
"""What models have unless something else is asked for."""


def build(name: str, dtype: torch.dtype = DTYPE, layers: int | None = None) -> PreTrainedModel:
    """Return a model of class `name` with random weights; of so many `layers`, or of enough that 10 comes after 2."""
    torch.manual_seed(0)
    auto, model_type, options = CLASSES[name]
    if layers is not None:
        options = {key: layers if key in LAYERS else given for key, given in options.items()}
    config = AutoConfig.for_model(model_type, pad_token_id=0, bos_token_id=1, eos_token_id=2, **options)
    if name in ("bert", "vit", "dinov2"):
        del config.pad_token_id
    model: PreTrainedModel = auto.from_config(config, dtype=dtype)
    return model.eval()


@cache
def class_of(name: str) -> Any:
    """Return transformers' class of the models of class `name`."""
    return type(build(name))


@cache
def _saved(name: str, max_shard_size: str, layers: int | None) -> dict[str, bytes]:
    with TemporaryDirectory() as folder:
        build(name, layers=layers).save_pretrained(folder, max_shard_size=max_shard_size)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def save(name: str, folder: Path, max_shard_size: str = "100kB", layers: int | None = None) -> Path:
    """Save a model of class `name` in `folder` and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, data in _saved(name, max_shard_size, layers).items():
        (folder / file).write_bytes(data)
    return folder


def save_variants(folder: Path) -> Path:
    """Save a Llama with plain weights in float32 and a variant in float16 in `folder` and return it."""
    build("llama", torch.float32).save_pretrained(folder)
    build("llama", torch.float16).save_pretrained(folder, variant="fp16")
    return folder


def answer(question: dict[str, Any], limit_seconds: float = 0.0) -> Any:
    """Answer what `sharding.model_class.architecture` asks of a child process, here: a process of its own takes seconds."""
    try:
        asked = json.loads(json.dumps(question))
        return json.loads(json.dumps((load_and_save if "tensors" in asked else describe)(asked)))
    except Exception as error:  # whatever would end the child
        raise SourceError(str(error)) from error


def inputs(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return a fixed input for one forward pass."""
    if model.main_input_name == "pixel_values":
        size = model.config.image_size
        return {"pixel_values": torch.linspace(-1, 1, 3 * size * size).view(1, 3, size, size).to(model.dtype)}
    tokens = torch.arange(3, 15).view(1, 12)
    extra = {"decoder_input_ids": tokens[:, :4]} if model.config.is_encoder_decoder else {}
    return {"input_ids": tokens, **extra}


def logits(model: PreTrainedModel) -> torch.Tensor:
    """Return the first output of one forward pass on the fixed input."""
    with torch.no_grad():
        output: torch.Tensor = model(**inputs(model))[0]
    return output


def loaded_logits(folder: Path, *may: str) -> torch.Tensor:
    """Return the logits of a model that loads from `folder` without any trouble but what it `may` have."""
    model, told = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", output_loading_info=True)
    assert [kind for kind, names in told.items() if names and kind not in may] == []
    found = logits(model.eval())
    assert found.isfinite().all()
    return found
