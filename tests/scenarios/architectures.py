"""Tiny models of many architectures, with random weights: what `AutoConfig` makes of a few small numbers."""

from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

TEXT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 96,
    "max_position_embeddings": 64,
}
GROUPED = {**TEXT, "num_key_value_heads": 2}
HEADS = {**GROUPED, "head_dim": 8}
IMAGE = {**TEXT, "image_size": 16, "patch_size": 4}
D_MODEL = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "vocab_size": 96,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 1,
}
T5 = {"d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 2, "num_heads": 4, "vocab_size": 96}
SOUND = {
    "conv_dim": (16, 16),
    "conv_kernel": (10, 8),
    "conv_stride": (5, 4),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}
TOWERS = {
    "text_config": {**TEXT, "max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
    "vision_config": IMAGE,
    "projection_dim": 16,
}
STAGES = {"hidden_sizes": [8, 16], "depths": [1, 2], "num_stages": 2}
EXPERTS = {**HEADS, "moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}


@dataclass(frozen=True)
class Architecture:
    """A class of transformers, the kind of model that it is, and the numbers of a small one."""

    kind: str
    cls: str
    numbers: dict[str, Any] = field(default_factory=dict)


ARCHITECTURES = {
    "llama": Architecture("text", "AutoModelForCausalLM", GROUPED),
    "mistral": Architecture("text", "AutoModelForCausalLM", GROUPED),
    "qwen2": Architecture("text", "AutoModelForCausalLM", GROUPED),
    "qwen3": Architecture("text", "AutoModelForCausalLM", HEADS),
    "gemma2": Architecture("text", "AutoModelForCausalLM", HEADS),
    "gemma3_text": Architecture("text", "AutoModelForCausalLM", HEADS),
    "phi3": Architecture("text", "AutoModelForCausalLM", GROUPED),
    "olmo2": Architecture("text", "AutoModelForCausalLM", GROUPED),
    "cohere": Architecture("text", "AutoModelForCausalLM", GROUPED),
    "granite": Architecture("text", "AutoModelForCausalLM", GROUPED),
    "starcoder2": Architecture("text", "AutoModelForCausalLM", GROUPED),
    "stablelm": Architecture("text", "AutoModelForCausalLM", GROUPED),
    "gpt2": Architecture(
        "text", "AutoModelForCausalLM", {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 96, "n_positions": 64}
    ),
    "gptj": Architecture(
        "text",
        "AutoModelForCausalLM",
        {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 96, "n_positions": 64, "rotary_dim": 4},
    ),
    "gpt_neox": Architecture("text", "AutoModelForCausalLM", TEXT),
    "bloom": Architecture(
        "text", "AutoModelForCausalLM", {"hidden_size": 32, "n_layer": 3, "n_head": 4, "vocab_size": 96}
    ),
    "opt": Architecture("text", "AutoModelForCausalLM", {**TEXT, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    "falcon": Architecture("text", "AutoModelForCausalLM", TEXT),
    "mpt": Architecture(
        "text",
        "AutoModelForCausalLM",
        {"d_model": 32, "n_heads": 4, "n_layers": 3, "vocab_size": 96, "max_seq_len": 64},
    ),
    "bert": Architecture("text", "AutoModelForMaskedLM", TEXT),
    "roberta": Architecture("text", "AutoModelForMaskedLM", TEXT),
    "distilbert": Architecture(
        "text", "AutoModelForMaskedLM", {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48, "vocab_size": 96}
    ),
    "deberta-v2": Architecture("text", "AutoModelForMaskedLM", {**TEXT, "relative_attention": True}),
    "electra": Architecture("text", "AutoModelForMaskedLM", {**TEXT, "embedding_size": 16}),
    "modernbert": Architecture("text", "AutoModelForMaskedLM", TEXT),
    "t5": Architecture("text", "AutoModelForSeq2SeqLM", T5),
    "bart": Architecture("text", "AutoModelForSeq2SeqLM", D_MODEL),
    "marian": Architecture("text", "AutoModelForSeq2SeqLM", D_MODEL),
    "pegasus": Architecture("text", "AutoModelForSeq2SeqLM", D_MODEL),
    "mixtral": Architecture("MoE", "AutoModelForCausalLM", {**GROUPED, "num_local_experts": 4}),
    "qwen2_moe": Architecture("MoE", "AutoModelForCausalLM", {**EXPERTS, "shared_expert_intermediate_size": 24}),
    "qwen3_moe": Architecture("MoE", "AutoModelForCausalLM", EXPERTS),
    "olmoe": Architecture("MoE", "AutoModelForCausalLM", EXPERTS),
    "deepseek_v3": Architecture(
        "MoE",
        "AutoModelForCausalLM",
        {
            **TEXT,
            "moe_intermediate_size": 16,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "kv_lora_rank": 8,
            "q_lora_rank": 8,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 4,
            "v_head_dim": 8,
            "first_k_dense_replace": 1,
        },
    ),
    "mamba": Architecture(
        "state space",
        "AutoModelForCausalLM",
        {"hidden_size": 32, "num_hidden_layers": 3, "vocab_size": 96, "state_size": 4},
    ),
    "mamba2": Architecture(
        "state space",
        "AutoModelForCausalLM",
        {
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "vocab_size": 96,
            "state_size": 4,
            "num_heads": 8,
            "head_dim": 8,
            "n_groups": 2,
            "chunk_size": 8,
        },
    ),
    "falcon_h1": Architecture(
        "hybrid",
        "AutoModelForCausalLM",
        {**HEADS, "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_chunk_size": 8},
    ),
    "jamba": Architecture(
        "hybrid",
        "AutoModelForCausalLM",
        {
            **GROUPED,
            "num_experts": 2,
            "num_experts_per_tok": 1,
            "mamba_d_state": 4,
            "mamba_dt_rank": 4,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "use_mamba_kernels": False,
        },
    ),
    "vit": Architecture("vision", "AutoModelForImageClassification", IMAGE),
    "beit": Architecture("vision", "AutoModelForImageClassification", IMAGE),
    "dinov2": Architecture("vision", "AutoModel", IMAGE),
    "convnext": Architecture("vision", "AutoModelForImageClassification", {**STAGES, "image_size": 32}),
    "resnet": Architecture(
        "vision", "AutoModelForImageClassification", {**STAGES, "embedding_size": 8, "layer_type": "basic"}
    ),
    "swin": Architecture(
        "vision",
        "AutoModelForImageClassification",
        {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4},
    ),
    "segformer": Architecture(
        "vision",
        "AutoModelForSemanticSegmentation",
        {
            "hidden_sizes": [8, 16],
            "depths": [1, 1],
            "num_encoder_blocks": 2,
            "sr_ratios": [2, 1],
            "num_attention_heads": [1, 2],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "mlp_ratios": [2, 2],
            "decoder_hidden_size": 16,
        },
    ),
    "yolos": Architecture(
        "vision", "AutoModelForObjectDetection", {**IMAGE, "image_size": [16, 16], "num_detection_tokens": 4}
    ),
    "whisper": Architecture(
        "speech",
        "AutoModelForSpeechSeq2Seq",
        {**D_MODEL, "num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 32},
    ),
    "wav2vec2": Architecture("speech", "AutoModelForCTC", {**TEXT, **SOUND}),
    "hubert": Architecture("speech", "AutoModelForCTC", {**TEXT, **SOUND}),
    "audio-spectrogram-transformer": Architecture(
        "speech",
        "AutoModelForAudioClassification",
        {**TEXT, "patch_size": 4, "frequency_stride": 4, "time_stride": 4, "max_length": 16, "num_mel_bins": 16},
    ),
    "clip": Architecture("multimodal", "AutoModel", TOWERS),
    "siglip": Architecture("multimodal", "AutoModel", TOWERS),
    "blip": Architecture("multimodal", "BlipForImageTextRetrieval", {**TOWERS, "image_text_hidden_size": 16}),
    "llava": Architecture(
        "multimodal",
        "AutoModelForImageTextToText",
        {
            "text_config": {"model_type": "llama", **GROUPED},
            "vision_config": {"model_type": "clip_vision_model", **IMAGE, "projection_dim": 16},
            "image_token_index": 90,
            "vision_feature_layer": -1,
        },
    ),
}
"""By model type."""


def build(name: str, dtype: torch.dtype = torch.bfloat16) -> PreTrainedModel:
    """Return a model of type `name` with random weights."""
    torch.manual_seed(0)
    numbers = ARCHITECTURES[name].numbers
    tokens = {} if "text_config" in numbers else {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    cls = getattr(transformers, ARCHITECTURES[name].cls)
    config = AutoConfig.for_model(name, **tokens, **numbers)
    make = cls.from_config if cls.__name__.startswith("Auto") else cls._from_config
    model: PreTrainedModel = make(config, dtype=dtype)
    return model.eval()


def inputs(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return a fixed input for one forward pass."""
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
