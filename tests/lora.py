"""Tiny models with an adapter that PEFT saves for them, and what PEFT makes of both."""

import json
import re
import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, PreTrainedModel

SMALL: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 96,
}  # fmt: skip
EXPERTS = {**SMALL, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 8}
MIXED = {**SMALL, "num_local_experts": 4, "num_experts_per_tok": 2}
ALONE, CAUSAL, MASKED = transformers.AutoModel, transformers.AutoModelForCausalLM, transformers.AutoModelForMaskedLM
SEQ2SEQ, SEEING = transformers.AutoModelForSeq2SeqLM, transformers.AutoModelForImageTextToText
LABELS, OF_IMAGES = transformers.AutoModelForSequenceClassification, transformers.AutoModelForImageClassification
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 96}
# What some of them need beside.
LATENT = {
    "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "num_key_value_heads": 4,
    "q_lora_rank": 16, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8,
}  # fmt: skip
WAVES = {
    "conv_dim": [8, 8], "conv_stride": [5, 2], "conv_kernel": [10, 3], "num_feat_extract_layers": 2,
    "num_conv_pos_embedding_groups": 4, "num_conv_pos_embeddings": 8,
}  # fmt: skip
LINEAR = {
    "num_hidden_layers": 4, "head_dim": 8, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8,
}  # fmt: skip
EYES = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip
QWEN_EYES = {"depth": 1, "hidden_size": 16, "num_heads": 2, "out_hidden_size": 32}
CLIP = {"model_type": "clip_vision_model", "projection_dim": 16}
ROPE = {"rope_scaling": {"rope_type": "default", "mrope_section": [1, 1, 2]}}
CHUNKS = {"intermediate_size_mlp": 48, "attention_chunk_size": 8}
PATCHES = {"image_size": 16, "patch_size": 4}
ONE_LAYER = {**SMALL, "num_hidden_layers": 1}
ENCODER = {"model_type": "vit", **ONE_LAYER, **PATCHES}
DECODER = {"model_type": "gpt2", **GPT2, "n_layer": 1, "is_decoder": True, "add_cross_attention": True}


def _two(text: dict[str, Any], vision: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"text_config": text, "vision_config": vision, **more}


MODELS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "llama": (CAUSAL, "llama", {**SMALL, "attention_bias": True}),
    "tied": (CAUSAL, "llama", {**SMALL, "tie_word_embeddings": True}),
    "scores": (LABELS, "llama", {**SMALL, "num_labels": 3}),
    "large": (CAUSAL, "llama", {**SMALL, "hidden_size": 320, "vocab_size": 1001, "intermediate_size": 777}),
    "gpt2": (CAUSAL, "gpt2", GPT2),
    "gpt2 alone": (ALONE, "gpt2", GPT2),
    "bert": (ALONE, "bert", SMALL),
    "bert for words": (MASKED, "bert", SMALL),
    "roberta": (MASKED, "roberta", {**SMALL, "pad_token_id": 1}),
    "distilbert": (ALONE, "distilbert", dict(dim=32, hidden_dim=48, n_layers=2, n_heads=4, vocab_size=96)),
    "t5": (SEQ2SEQ, "t5", dict(d_model=32, d_ff=48, d_kv=8, num_layers=2, num_heads=4, vocab_size=96)),
    "convnext": (OF_IMAGES, "convnext", dict(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, num_labels=3)),
    "resnet": (OF_IMAGES, "resnet", dict(embedding_size=8, hidden_sizes=[16, 32], depths=[1, 1], num_labels=3)),
    "vit": (ALONE, "vit", {**SMALL, **PATCHES}),
    "wav2vec2": (transformers.AutoModelForCTC, "wav2vec2", {**SMALL, **WAVES}),
    "mixtral": (CAUSAL, "mixtral", {**SMALL, "num_local_experts": 4}),
    "qwen3_moe": (CAUSAL, "qwen3_moe", EXPERTS),
    "olmoe": (CAUSAL, "olmoe", EXPERTS),
    "qwen2_moe": (CAUSAL, "qwen2_moe", {**EXPERTS, "shared_expert_intermediate_size": 40}),
    "deepseek_v3": (CAUSAL, "deepseek_v3", {**EXPERTS, **LATENT}),
    "gpt_oss": (CAUSAL, "gpt_oss", {**MIXED, "head_dim": 8}),
    "vit-gpt2": (SEEING, "vision-encoder-decoder", {"encoder": ENCODER, "decoder": DECODER}),
    "gpt_neox": (CAUSAL, "gpt_neox", SMALL),
    "granitemoe": (CAUSAL, "granitemoe", MIXED),
    "phimoe": (CAUSAL, "phimoe", MIXED),
    "llama4": (CAUSAL, "llama4_text", {**SMALL, **CHUNKS, "head_dim": 8, "num_local_experts": 4}),
    "clip": (ALONE, "clip", _two(ONE_LAYER, {**ONE_LAYER, **PATCHES}, projection_dim=32)),
    "gemma3": (SEEING, "gemma3", _two({**SMALL, "head_dim": 8}, EYES, mm_tokens_per_image=4)),
    "llava": (SEEING, "llava", _two({**SMALL, "model_type": "llama"}, {**EYES, **CLIP})),
    "qwen3_5": (SEEING, "qwen3_5", _two({**SMALL, **LINEAR}, QWEN_EYES)),
    "qwen2_5_vl": (
        SEEING,
        "qwen2_5_vl",
        _two({**SMALL, **ROPE}, {**QWEN_EYES, "intermediate_size": 24, "fullatt_block_indexes": [0]}),
    ),
}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
WEIGHTS, CONFIG, MODEL = "adapter_model.safetensors", "adapter_config.json", "model.safetensors"
EVERY = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

Tensors = dict[str, torch.Tensor]
Edit = Callable[[Path], None]


@dataclass(frozen=True, slots=True)
class Case:
    """A model of `MODELS`, with these `changes` of its configuration, and an adapter with this `lora` configuration.

    `edit` changes the base before, `adapter` the adapter after PEFT has saved it. `rows` is the vocabulary of a model
    that was resized before it was trained. `auto` loads the base for PEFT where that is another class than the base's;
    `prefix` is then what its tensors are called first, and what those of the base are.
    """

    model: str = "llama"
    lora: dict[str, Any] = field(default_factory=dict)
    dtype: str = "bf16"
    changes: dict[str, Any] = field(default_factory=dict)
    edit: Edit | None = None
    adapter: Edit | None = None
    rows: int = 0
    auto: Any = None
    prefix: tuple[str, str] = ("", "")
    shards: str = "50GB"

    @property
    def loader(self) -> Any:
        """The class that loads the base for PEFT."""
        return self.auto or MODELS[self.model][0]

    def load(self, base: Path) -> PreTrainedModel:
        """Return the base as PEFT is given it."""
        torch.manual_seed(1)
        labels = {"num_labels": 3} if self.loader is LABELS else {}
        model: PreTrainedModel = self.loader.from_pretrained(base, dtype=DTYPES[self.dtype], **labels)
        if self.rows:
            model.resize_token_embeddings(self.rows, mean_resizing=False)
        return model


def save_base(case: Case, folder: Path) -> Path:
    """Save the model of `case`, with random weights, in `folder` and return it."""
    auto, model_type, options = MODELS[case.model]
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **{**options, **case.changes})
    model = auto.from_config(config, dtype=DTYPES[case.dtype])
    with torch.no_grad():
        for parameter in model.parameters():  # else norms are all ones and biases all zeros
            parameter.add_(torch.randn(parameter.shape).to(parameter.dtype) * 0.02)
    model.save_pretrained(folder, max_shard_size=case.shards)
    if case.edit:
        case.edit(folder)
    return folder


def save_adapter(case: Case, base: Path, folder: Path, loaded: PreTrainedModel | None = None) -> Path:
    """Save an adapter for `base`, which may be `loaded`, with random weights in `folder` and return it."""
    from peft import LoraConfig, PeftModel, get_peft_model

    with warnings.catch_warnings(action="ignore"), patch.object(PeftModel, "create_or_update_model_card"):
        config = LoraConfig(**{"r": 4, "lora_alpha": 10, "target_modules": EVERY, **case.lora})
        model = get_peft_model(loaded or case.load(base), config)
        _train(model)
        model.save_pretrained(folder)
    if case.adapter:
        case.adapter(folder)
    return folder


def _train(model: torch.nn.Module) -> None:
    """Change everything that training would change."""
    torch.manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape)
                parameter.copy_(parameter * (1 + noise * 0.1) if "magnitude" in name else noise * 0.1)


def save_both(case: Case, folder: Path) -> tuple[Path, Path]:
    """Save the base of `case` and its adapter below `folder`; return both."""
    base = save_base(case, folder / "base")
    return base, save_adapter(case, base, folder / "adapter")


def build(case: Case, folder: Path) -> tuple[Path, Path, Path]:
    """Save the base of `case`, its adapter, and what PEFT makes of both below `folder`; return the three."""
    from peft import PeftModel

    base = save_base(case, folder / "base")
    loaded = case.load(base)
    adapter = save_adapter(case, base, folder / "adapter", deepcopy(loaded))
    with warnings.catch_warnings(action="ignore"):
        PeftModel.from_pretrained(loaded, adapter).merge_and_unload().save_pretrained(folder / "peft")
    return base, adapter, folder / "peft"


# --- Changes of a folder that is there ---------------------------------------------------------------------


def edited(change: Callable[[Tensors], Tensors], file: str = WEIGHTS) -> Edit:
    """Return what changes the tensors of a folder's one file."""

    def edit(folder: Path) -> None:
        tensors = change(load_file(folder / file))
        save_file({name: tensor.clone() for name, tensor in tensors.items()}, folder / file, {"format": "pt"})

    return edit


def each_one(change: Callable[[str, torch.Tensor], torch.Tensor], file: str = WEIGHTS) -> Edit:
    """Return what changes every tensor of a folder's one file by its name and itself."""
    return edited(lambda tensors: {name: change(name, tensor) for name, tensor in tensors.items()}, file)


def renamed(pattern: str, new: str, file: str = WEIGHTS) -> Edit:
    """Return what renames tensors: every `pattern`, a regular expression, becomes `new`."""
    return edited(lambda tensors: {re.sub(pattern, new, name): tensor for name, tensor in tensors.items()}, file)


def configured(file: str = CONFIG, **changes: Any) -> Edit:
    """Return what changes a configuration."""

    def edit(folder: Path) -> None:
        path = folder / file
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return edit


def in_turn(*edits: Edit) -> Edit:
    """Return what makes several changes one after another."""

    def edit(folder: Path) -> None:
        for each in edits:
            each(folder)

    return edit


def by_expert(experts: int, *parameters: str, **marks: Any) -> Edit:
    """Return what reorders `lora_B` of fused `parameters` as Unsloth had it, and adds `marks` to the configuration."""

    def reorder(tensors: Tensors) -> Tensors:
        new = dict(tensors)
        for name, b in tensors.items():
            inner = "gate_up_proj" if name.endswith(".experts.base_layer.lora_B.weight") else "down_proj"
            if name.endswith(("experts.base_layer.lora_B.weight", "experts.lora_B.weight")) and inner in parameters:
                # The reverse of what PEFT 0.21 does with it (`ParamWrapper.get_delta_weight`).
                each = b.reshape(len(b), -1, experts).permute(2, 0, 1)
                new[name] = torch.cat(list(each), dim=1)
        return new

    return in_turn(edited(reorder), configured(**marks))


def pickled(folder: Path) -> None:
    """Write the weights of an adapter as older versions of PEFT did."""
    torch.save(load_file(folder / WEIGHTS), folder / "adapter_model.bin")
    (folder / WEIGHTS).unlink()


def pickled_base(folder: Path) -> None:
    """Write the weights of a base as older versions of transformers did."""
    torch.save(load_file(folder / MODEL), folder / "pytorch_model.bin")
    (folder / MODEL).unlink()


def fused(folder: Path) -> None:
    """Write the experts of a base as transformers 5 has them in memory."""
    tensors = load_file(folder / MODEL)
    experts = re.compile(r"(.*)(?:mlp|block_sparse_moe)\.experts\.0\.(gate_proj|w1)\.weight")
    for name in list(tensors):
        if found := experts.fullmatch(name):
            place = name.split("experts.")[0] + "experts"
            gate, up, down = ("w1", "w3", "w2") if found[2] == "w1" else ("gate_proj", "up_proj", "down_proj")
            number = len([other for other in tensors if other.startswith(place) and other.endswith(f"{gate}.weight")])
            each = [
                {part: tensors.pop(f"{place}.{e}.{part}.weight") for part in (gate, up, down)} for e in range(number)
            ]
            new = f"{found[1]}mlp.experts"
            tensors[f"{new}.gate_up_proj"] = torch.stack([torch.cat([one[gate], one[up]]) for one in each])
            tensors[f"{new}.down_proj"] = torch.stack([one[down] for one in each])
    moved = {name.replace("block_sparse_moe.gate", "mlp.gate"): tensor for name, tensor in tensors.items()}
    save_file(moved, folder / MODEL, {"format": "pt"})


def for_each_expert(
    parts: dict[str, tuple[int, int]], place: str = "mlp.experts", rank: int = 4, number: int = 4
) -> Edit:
    """Return what adds the weights that PEFT saved beside transformers 4, where each expert was a module of its own.

    `parts` has the shape of each weight of an expert.
    """

    def edit(folder: Path) -> None:
        config = json.loads((folder / CONFIG).read_text())
        tensors, generator = load_file(folder / WEIGHTS), torch.Generator().manual_seed(3)
        for layer, expert, (part, (rows, columns)) in product(range(2), range(number), parts.items()):
            name = f"base_model.model.model.layers.{layer}.{place}.{expert}.{part}"
            tensors[f"{name}.lora_A.weight"] = torch.randn(rank, columns, generator=generator) * 0.1
            tensors[f"{name}.lora_B.weight"] = torch.randn(rows, rank, generator=generator) * 0.1
        save_file(tensors, folder / WEIGHTS, {"format": "pt"})
        configured(target_modules=[*config["target_modules"], *parts])(folder)

    return edit
