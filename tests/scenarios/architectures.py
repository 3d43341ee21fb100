"""Tiny models of many architectures, with random weights: what `AutoConfig` makes of a few small numbers."""

from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

# fmt: off
TEXT = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 96,
    "max_position_embeddings": 64,
}
GROUPED = {**TEXT, "num_key_value_heads": 2}
HEADS = {**GROUPED, "head_dim": 8}
IMAGE = {**TEXT, "image_size": 16, "patch_size": 4}
D_MODEL = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 96, "max_position_embeddings": 64,
    "decoder_start_token_id": 1,
}
T5 = {"d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 2, "num_heads": 4, "vocab_size": 96}
SOUND = {
    "conv_dim": (16, 16), "conv_kernel": (10, 8), "conv_stride": (5, 4), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
}
TOWERS = {
    "text_config": {**TEXT, "max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
    "vision_config": IMAGE, "projection_dim": 16,
}
STAGES = {"hidden_sizes": [8, 16], "depths": [1, 2], "num_stages": 2}
EXPERTS = {**HEADS, "moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}
GPT = {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 96, "n_positions": 64}
MAMBA = {"hidden_size": 32, "num_hidden_layers": 3, "vocab_size": 96, "state_size": 4}
FALCON_H1 = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_chunk_size": 8}
DEEPSEEK = {
    "moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
    "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8,
    "first_k_dense_replace": 1,
}
JAMBA = {
    "num_experts": 2, "num_experts_per_tok": 1, "mamba_d_state": 4, "mamba_dt_rank": 4, "attn_layer_period": 2,
    "attn_layer_offset": 1, "use_mamba_kernels": False,
}
SEGFORMER = {
    "hidden_sizes": [8, 16], "depths": [1, 1], "num_encoder_blocks": 2, "sr_ratios": [2, 1],
    "num_attention_heads": [1, 2], "patch_sizes": [7, 3], "strides": [4, 2], "mlp_ratios": [2, 2],
    "decoder_hidden_size": 16,
}
SWIN = {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}
SPECTROGRAM = {"patch_size": 4, "frequency_stride": 4, "time_stride": 4, "max_length": 16, "num_mel_bins": 16}
LLAVA = {
    "text_config": {"model_type": "llama", **GROUPED},
    "vision_config": {"model_type": "clip_vision_model", **IMAGE, "projection_dim": 16},
    "image_token_index": 90, "vision_feature_layer": -1,
}


@dataclass(frozen=True)
class Architecture:
    """A class of transformers, the kind of model that it is, and the numbers of a small one."""

    kind: str
    cls: str
    numbers: dict[str, Any]


_MODELS: list[tuple[str, str, dict[str, dict[str, Any]]]] = [
    ("text", "AutoModelForCausalLM", {
        "llama": GROUPED, "mistral": GROUPED, "qwen2": GROUPED, "qwen3": HEADS, "gemma2": HEADS, "gemma3_text": HEADS,
        "phi3": GROUPED, "olmo2": GROUPED, "cohere": GROUPED, "granite": GROUPED, "starcoder2": GROUPED,
        "stablelm": GROUPED, "gpt2": GPT, "gptj": {**GPT, "rotary_dim": 4}, "gpt_neox": TEXT,
        "bloom": {"hidden_size": 32, "n_layer": 3, "n_head": 4, "vocab_size": 96},
        "opt": {**TEXT, "ffn_dim": 48, "word_embed_proj_dim": 32}, "falcon": TEXT,
        "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 3, "vocab_size": 96, "max_seq_len": 64},
    }),
    ("text", "AutoModelForMaskedLM", {
        "bert": TEXT, "roberta": TEXT,
        "distilbert": {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48, "vocab_size": 96},
        "deberta-v2": {**TEXT, "relative_attention": True}, "electra": {**TEXT, "embedding_size": 16},
        "modernbert": TEXT,
    }),
    ("text", "AutoModelForSeq2SeqLM", {"t5": T5, "bart": D_MODEL, "marian": D_MODEL, "pegasus": D_MODEL}),
    ("MoE", "AutoModelForCausalLM", {
        "mixtral": {**GROUPED, "num_local_experts": 4},
        "qwen2_moe": {**EXPERTS, "shared_expert_intermediate_size": 24}, "qwen3_moe": EXPERTS, "olmoe": EXPERTS,
        "deepseek_v3": {**TEXT, **DEEPSEEK},
    }),
    ("state space", "AutoModelForCausalLM", {
        "mamba": MAMBA, "mamba2": {**MAMBA, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8},
    }),
    ("hybrid", "AutoModelForCausalLM", {"falcon_h1": {**HEADS, **FALCON_H1}, "jamba": {**GROUPED, **JAMBA}}),
    ("vision", "AutoModelForImageClassification", {"vit": IMAGE, "beit": IMAGE}),
    ("vision", "AutoModel", {"dinov2": IMAGE}),
    ("vision", "AutoModelForImageClassification", {
        "convnext": {**STAGES, "image_size": 32},
        "resnet": {**STAGES, "embedding_size": 8, "layer_type": "basic"}, "swin": SWIN,
    }),
    ("vision", "AutoModelForSemanticSegmentation", {"segformer": SEGFORMER}),
    ("vision", "AutoModelForObjectDetection", {
        "yolos": {**IMAGE, "image_size": [16, 16], "num_detection_tokens": 4},
    }),
    ("speech", "AutoModelForSpeechSeq2Seq", {
        "whisper": {**D_MODEL, "num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 32},
    }),
    ("speech", "AutoModelForCTC", {"wav2vec2": {**TEXT, **SOUND}, "hubert": {**TEXT, **SOUND}}),
    ("speech", "AutoModelForAudioClassification", {"audio-spectrogram-transformer": {**TEXT, **SPECTROGRAM}}),
    ("multimodal", "AutoModel", {"clip": TOWERS, "siglip": TOWERS}),
    ("multimodal", "BlipForImageTextRetrieval", {"blip": {**TOWERS, "image_text_hidden_size": 16}}),
    ("multimodal", "AutoModelForImageTextToText", {"llava": LLAVA}),
]
# fmt: on
ARCHITECTURES = {
    name: Architecture(kind, cls, numbers) for kind, cls, models in _MODELS for name, numbers in models.items()
}
"""By model type."""


TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def build(name: str, dtype: torch.dtype = torch.bfloat16, of: Architecture | None = None) -> PreTrainedModel:
    torch.manual_seed(0)
    of = of or ARCHITECTURES[name]
    numbers, tokens = of.numbers, {} if "text_config" in of.numbers else TOKENS
    cls = getattr(transformers, of.cls)
    config = AutoConfig.for_model(name, **tokens, **numbers)
    make = cls.from_config if cls.__name__.startswith("Auto") else cls._from_config
    model: PreTrainedModel = make(config, dtype=dtype)
    return model.eval()


def inputs(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    config, needed = model.config, model.main_input_name
    tokens = torch.arange(3, 15).view(1, 12)
    if hasattr(config, "vision_config"):
        patches = (config.vision_config.image_size // config.vision_config.patch_size) ** 2
        if getattr(config, "image_token_index", None) is not None:
            tokens = torch.cat([torch.full((1, patches), config.image_token_index), tokens], 1)
        return {"input_ids": tokens, "pixel_values": _picture(config.vision_config, model.dtype)}
    match needed:
        case "pixel_values":
            return {needed: _picture(config, model.dtype)}
        case "input_features":
            shape = (1, config.num_mel_bins, 2 * config.max_source_positions)
            sound = torch.linspace(-1, 1, shape[1] * shape[2]).view(shape).to(model.dtype)
            return {needed: sound, "decoder_input_ids": tokens[:, :4]}
        case "input_values" if hasattr(config, "num_mel_bins"):
            shape = (1, config.max_length, config.num_mel_bins)
            return {needed: torch.linspace(-1, 1, shape[1] * shape[2]).view(shape).to(model.dtype)}
        case "input_values":
            return {needed: torch.linspace(-1, 1, 800).view(1, 800).to(model.dtype)}
    return {"input_ids": tokens, **({"decoder_input_ids": tokens[:, :4]} if config.is_encoder_decoder else {})}


def outputs(model: PreTrainedModel) -> list[torch.Tensor]:
    """Return every tensor that one forward pass on the fixed input gives: logits, hidden states, caches apart."""
    with torch.no_grad():
        found = model(**inputs(model), use_cache=False) if _has_cache(model) else model(**inputs(model))
    return [tensor for tensor in found.to_tuple() if isinstance(tensor, torch.Tensor)]


def _has_cache(model: PreTrainedModel) -> bool:
    return bool(getattr(model.config, "use_cache", False))


def _picture(config: PretrainedConfig, dtype: torch.dtype) -> torch.Tensor:
    size = getattr(config, "image_size", 32)
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return torch.linspace(-1, 1, 3 * height * width).view(1, 3, height, width).to(dtype)
