"""Tiny models in the forms in which they are published and saved, and transformers as the judge of a copy."""

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, PreTrainedModel

from sharding import job
from sharding.report.schema import Report
from tests import lora
from tests.conftest import listing, options_of
from tests.folders import bits, finish, tensors
from tests.lora import CAUSAL, CLIP, EXPERTS, EYES, LATENT, LINEAR, MODEL, QWEN_EYES, SEEING, SMALL
from tests.scenarios import architectures

THINKER = transformers.Qwen2_5OmniThinkerForConditionalGeneration
ROUTED = {key: value for key, value in LATENT.items() if not key.endswith(("_rank", "_head_dim"))}
MROPE = {"rope_type": "default", "mrope_section": [1, 1, 2]}
EARS = {
    "d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 24, "num_mel_bins": 8,
    "output_dim": 32,
}  # fmt: skip
LLAMA4_EYES = {
    **EYES, "vision_output_dim": 16, "projector_input_dim": 16, "projector_output_dim": 16, "pixel_shuffle_ratio": 0.5,
    "intermediate_size": 64,
}  # fmt: skip
WINDOWS = {**QWEN_EYES, "intermediate_size": 24, "fullatt_block_indexes": [0]}
TEXTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM", {**SMALL, "head_dim": 8}),
    "mistral3": ("mistral", "MistralForCausalLM", {**SMALL, "head_dim": 8}),
    "qwen2_5_vl": ("qwen2", "Qwen2ForCausalLM", SMALL),
    "qwen3_5": ("qwen3_5_text", "Qwen3_5ForCausalLM", {**SMALL, **LINEAR}),
    "llama4_vl": ("llama4_text", "Llama4ForCausalLM", lora.MODELS["llama4"][2]),
    "qwen2_5_omni": ("qwen2", "Qwen2ForCausalLM", SMALL),
    "llava_next": ("llama", "LlamaForCausalLM", SMALL),
    "smolvlm": ("llama", "LlamaForCausalLM", SMALL),
}
"""By the model that has it: the type and the class of its text model as a model of its own, and its numbers."""
TIED = {"gemma3": True}


def _seeing(name: str, vision: dict[str, Any], **more: Any) -> dict[str, Any]:
    model_type, _, numbers = TEXTS[name]
    own_type = {"qwen2": {"rope_parameters": MROPE}}.get(model_type, {"model_type": model_type})
    tied = {"tie_word_embeddings": TIED.get(name, False)}
    return {"text_config": {**numbers, **own_type, **tied}, "vision_config": vision, **tied, **more}


MODELS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    **lora.MODELS,
    "deepseek_v3": (CAUSAL, "deepseek_v3", {**EXPERTS, **LATENT, "head_dim": LATENT["qk_rope_head_dim"]}),
    "glm4_moe": (CAUSAL, "glm4_moe", {**EXPERTS, **ROUTED, "num_key_value_heads": 2}),
    "many experts": (CAUSAL, "qwen3_moe", {**EXPERTS, "num_experts": 12, "num_hidden_layers": 1}),
    "qwen3_next": (CAUSAL, "qwen3_next", {**EXPERTS, **LINEAR, "shared_expert_intermediate_size": 40}),
    "qwen3_vl_moe": (
        SEEING,
        "qwen3_vl_moe",
        {
            "text_config": {**EXPERTS, "rope_parameters": MROPE, "tie_word_embeddings": False},
            "vision_config": {**QWEN_EYES, "intermediate_size": 24, "deepstack_visual_indexes": [0]},
        },
    ),
    "gemma3": (SEEING, "gemma3", _seeing("gemma3", EYES, mm_tokens_per_image=4)),
    "mistral3": (SEEING, "mistral3", _seeing("mistral3", {**EYES, "model_type": "pixtral"})),
    "qwen2_5_vl": (SEEING, "qwen2_5_vl", _seeing("qwen2_5_vl", WINDOWS)),
    "qwen3_5": (SEEING, "qwen3_5", _seeing("qwen3_5", QWEN_EYES)),
    "llama4_vl": (SEEING, "llama4", _seeing("llama4_vl", LLAMA4_EYES)),
    "llava_next": (SEEING, "llava_next", _seeing("llava_next", {**EYES, **CLIP})),
    "smolvlm": (SEEING, "smolvlm", _seeing("smolvlm", EYES, scale_factor=2)),
    "qwen2_5_omni": (
        THINKER,
        "qwen2_5_omni_thinker",
        _seeing("qwen2_5_omni", {**WINDOWS, "depth": 1}, audio_config=EARS),
    ),
}
Tensors = dict[str, torch.Tensor]
Form = Callable[[PreTrainedModel, Path], Path]


# --- Models and their forms ---------------------------------------------------------------------------------


@cache
def build(name: str, seed: int = 0) -> PreTrainedModel:
    """Return a model of `MODELS` or of `ARCHITECTURES` with random weights; nobody changes it."""
    if name not in MODELS:
        return _perturbed(architectures.build(name), seed)
    auto, model_type, numbers = MODELS[name]
    return _random(auto, AutoConfig.for_model(model_type, **numbers), seed)


@cache
def build_text(name: str, seed: int = 1) -> PreTrainedModel:
    """Return a text model of the kind that the model `name` holds."""
    model_type, cls, numbers = TEXTS[name]
    tied = TIED.get(name, False)
    config = AutoConfig.for_model(model_type, **numbers, tie_word_embeddings=tied)
    return _random(getattr(transformers, cls), config, seed)


def _random(cls: Any, config: Any, seed: int) -> PreTrainedModel:
    torch.manual_seed(seed)
    make = cls.from_config if hasattr(cls, "from_config") else cls._from_config
    return _perturbed(make(config, dtype=torch.bfloat16), seed)


def _perturbed(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    torch.manual_seed(seed)
    with torch.no_grad():
        for tensor in model.state_dict().values():  # else norms are all ones and biases all zeros
            if tensor.is_floating_point():
                tensor.add_((torch.randn(tensor.shape) * 0.02).to(tensor.dtype))
    return model.eval()


def published(model: PreTrainedModel, folder: Path) -> Path:
    """Save `model` in `folder` as the Hub has it."""
    model.save_pretrained(folder)
    if isinstance(model, THINKER):
        _put_into_omni(folder)
    if model.config.model_type == "qwen3_vl_moe":  # transformers turns these when it loads them, but not back
        edit(folder, lambda held: {n: t.transpose(1, 2) if "experts" in n else t for n, t in held.items()})
    return folder


def in_memory(model: PreTrainedModel, folder: Path) -> Path:
    """Save `model` in `folder` under the names and in the form that it has in memory, as many trainers do."""
    model.save_pretrained(folder)
    state: Tensors = {}
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() not in {other.data_ptr() for other in state.values()}:  # else tied
            state[name] = tensor
    return write(folder, state)


FORMS: dict[str, Form] = {"published": published, "in memory": in_memory}


def other(form: str) -> str:
    return next(name for name in FORMS if name != form)


def write(folder: Path, state: Tensors) -> Path:
    """Write the weights of the checkpoint in `folder` anew."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("model*"):
        path.unlink()
    save_file({name: tensor.contiguous().clone() for name, tensor in state.items()}, folder / MODEL, {"format": "pt"})
    return folder


def edit(folder: Path, change: Callable[[Tensors], Tensors]) -> Path:
    return write(folder, change(load_file(folder / MODEL)))


def rename(folder: Path, pattern: str, new: str) -> Path:
    return edit(folder, lambda state: {re.sub(pattern, new, name): tensor for name, tensor in state.items()})


def configure(folder: Path, **changes: Any) -> dict[str, Any]:
    """Change config.json, "a__b" is b in a; return it."""
    path = folder / "config.json"
    config: dict[str, Any] = json.loads(path.read_text())
    for key, value in changes.items():
        *nested, last = key.split("__")
        place = config
        for part in nested:
            place = place[part]
        place[last] = value
    path.write_text(json.dumps(config, indent=2))
    return config


def _put_into_omni(folder: Path) -> None:
    """Put a thinker where the published model has it: beside a talker."""
    generator = torch.Generator().manual_seed(5)
    others = {"talker.model.layers.0.mlp.up_proj.weight": (8, 4), "token2wav.dit_model.blocks.0.norm.weight": (4,)}
    talker = {name: torch.randn(shape, generator=generator).bfloat16() for name, shape in others.items()}
    edit(folder, lambda state: {f"thinker.{name.removeprefix('thinker.')}": state[name] for name in state} | talker)
    thinker = json.loads((folder / "config.json").read_text())
    outer = transformers.Qwen2_5OmniConfig(enable_audio_output=True).to_dict()
    outer |= {"architectures": ["Qwen2_5OmniForConditionalGeneration"], "thinker_config": thinker, "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(outer, indent=2, default=str))


# --- What is in a folder ------------------------------------------------------------------------------------


def shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors(folder).items()}


def unlike(ours: Tensors, theirs: Tensors) -> dict[str, str]:
    """What differs between two checkpoints, by name: {} if names and bits are the same."""
    found = dict.fromkeys(ours.keys() - theirs.keys(), "too many")
    found |= dict.fromkeys(theirs.keys() - ours.keys(), "missing")
    return found | {
        name: "other bits" for name in ours.keys() & theirs.keys() if bits(ours[name]) != bits(theirs[name])
    }


TOKENS = torch.arange(3, 15).view(1, 12)


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(TOKENS).logits
    return found


class Loaded(NamedTuple):
    """What transformers says of a checkpoint that it loads, and what the model computes."""

    told: dict[str, list[str]]
    logits: torch.Tensor


def load(folder: Path, loader: Any) -> Loaded:
    model, told = loader.from_pretrained(folder, dtype="auto", output_loading_info=True)
    return Loaded({kind: sorted(map(str, keys)) for kind, keys in told.items() if keys}, logits(model.eval()))


def assert_loads(copy: Path, original: Path, model: PreTrainedModel, loader: Any) -> None:
    """The copy has the original's names and shapes, is loaded as it is, and computes what `model` does."""
    assert shapes(copy) == shapes(original)
    ours, theirs = load(copy, loader), load(original, loader)
    assert ours.told == theirs.told and "missing_keys" not in ours.told
    assert torch.equal(ours.logits, logits(model))
    assert not torch.equal(ours.logits, theirs.logits)  # else it says nothing


# --- Jobs -----------------------------------------------------------------------------------------------------


def shard(mine: Path, out: Path, size: str = "30kB", **choices: Any) -> Report:
    """Run a job whose result it has verified."""
    options, more = options_of(size, {name: str(v) if isinstance(v, Path) else v for name, v in choices.items()})
    report = finish(job.shard(str(mine), str(out), options, **more))
    assert report.verification.identical
    assert not [path for path in listing(out) if path.endswith(".part")]
    return report


def words(report: Report) -> str:
    """All that a report says of what was done."""
    said = [finding.message for finding in report.plan.findings]
    return " ".join([*said, *(f"{made.done} {made.how} {made.then}" for made in report.plan.made)])
