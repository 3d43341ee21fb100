"""Every way in which PEFT saves a LoRA adapter, each with the smallest model that has it."""

from collections.abc import Iterator, Mapping
from itertools import combinations_with_replacement
from typing import Any

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from tests.lora import EVERY, Case, configured, edited, for_each_expert, fused, in_turn, pickled, pickled_base, renamed

Q, BOTH = ["q_proj"], ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
EMBED, HEAD = [*Q, "embed_tokens"], [*Q, "lm_head"]
CONV1D = ["c_attn", "c_proj", "c_fc"]
MODEL = "model.safetensors"
UNSLOTH = (
    r"(?:.*?(?:language|text).*?(?:self_attn|attention|attn|mlp|feed_forward|ffn|dense).*?(?:qkv|proj).*?)"
    r"|(?:\bmodel\.layers\.[\d]{1,}\.(?:self_attn|attention|attn|mlp|feed_forward|ffn|dense)"
    r"\.(?:(?:q_proj|v_proj|down_proj)))"
)
QWEN = {"gate_proj": (24, 32), "up_proj": (24, 32), "down_proj": (32, 24)}
OLMOE = {"gate_proj": (48, 32), "up_proj": (48, 32), "down_proj": (32, 48)}
MIXTRAL = {"w1": (48, 32), "w3": (48, 32), "w2": (32, 48)}
REPLACED = edited(
    lambda tensors: {
        name: torch.randn(tensor.shape, generator=torch.Generator().manual_seed(len(name))).to(tensor.dtype)
        if "base_layer" in name
        else tensor
        for name, tensor in tensors.items()
    }
)
"""Another base than the one whose adapter it is: a layer that was targeted brings its own."""
FP32_BIASES = edited(
    lambda tensors: {name: each.float() if "correction_bias" in name else each for name, each in tensors.items()}, MODEL
)
HEAD_TOO = edited(lambda tensors: {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]}, MODEL)


def _experts(model: str, **lora: Any) -> Case:
    return Case(model, {"target_modules": Q, "target_parameters": BOTH, **lora})


def _by_hand(model: str, parts: dict[str, tuple[int, int]], place: str = "mlp.experts", **case: Any) -> Case:
    return Case(model, {"target_modules": Q}, adapter=for_each_expert(parts, place), **case)


LINEAR = {
    **{dtype: Case(dtype=dtype) for dtype in ("bf16", "fp16", "fp32")},
    **{f"rank {rank}": Case(lora={"r": rank}) for rank in (1, 3, 8, 17, 64, 256)},
    **{f"rank {rank}, fp32": Case(lora={"r": rank}, dtype="fp32") for rank in (3, 64)},
    **{f"{rows} rows": Case(lora={"r": 8}, changes={"intermediate_size": rows}) for rows in (1, 9, 17)},
    **{
        f"{rows} rows, fp32": Case(lora={"r": 17}, dtype="fp32", changes={"intermediate_size": rows}) for rows in (1, 9)
    },
    "large": Case("large", {"r": 17}),
    "large, fp32": Case("large", {"r": 64}, dtype="fp32"),
    "several shards": Case(shards="20kB"),
    "use_rslora": Case(lora={"r": 3, "use_rslora": True}),
    "alpha is a fraction": Case(lora={"r": 3, "lora_alpha": 0.7}),
    "rank_pattern": Case(lora={"rank_pattern": {"layers.1.self_attn.q_proj": 7, r".*k_proj": 2, "^model.*up_proj": 5}}),
    "alpha_pattern": Case(
        lora={"alpha_pattern": {"proj": 99, "v_proj": 5, r"layers\.0\..*": 7, "layers.0.mlp.up_proj": 8}}
    ),
    "patterns and use_rslora": Case(
        lora={"rank_pattern": {"q_proj": 3}, "alpha_pattern": {"q_proj": 7, "down_proj": 1}, "use_rslora": True}
    ),
    "a regular expression": Case(lora={"target_modules": r".*\.1\..*(q|v|up)_proj"}),
    "all-linear": Case(lora={"target_modules": "all-linear"}),
    "all-linear in the file": Case(
        lora={"target_modules": "all-linear"}, adapter=configured(target_modules="all-linear")
    ),
    "a regular expression of Unsloth": Case(lora={"target_modules": UNSLOTH}),
    "a base in the older form": Case(edit=pickled_base),
    "all-linear but": Case(
        lora={"target_modules": "all-linear", "exclude_modules": ["o_proj", "layers.0.mlp.up_proj"]}
    ),
    "exclude_modules, a regular expression": Case(lora={"exclude_modules": r".*layers\.0.*"}),
    "whole names": Case(lora={"target_modules": ["model.layers.0.self_attn.q_proj", "layers.1.mlp.down_proj"]}),
    "layers_to_transform": Case(lora={"layers_to_transform": [1]}),
    "layers_to_transform, layers_pattern": Case(lora={"layers_to_transform": 0, "layers_pattern": "layers"}),
    "bf16 adapter": Case(adapter=edited(lambda tensors: {name: each.bfloat16() for name, each in tensors.items()})),
    "fp16 adapter": Case(
        dtype="fp32", adapter=edited(lambda tensors: {name: each.half() for name, each in tensors.items()})
    ),
    "fp64 adapter": Case(adapter=edited(lambda tensors: {name: each.double() * 1.1 for name, each in tensors.items()})),
    "fp8 adapter": Case(
        adapter=edited(lambda tensors: {name: each.to(torch.float8_e4m3fn) for name, each in tensors.items()})
    ),
    "the adapter's name in keys": Case(adapter=renamed(r"(lora_[AB])\.", r"\1.default.")),
    "pickled": Case(adapter=pickled),
    "fan_in_fan_out is wrong": Case(adapter=configured(fan_in_fan_out=True)),
    "without a task": Case(adapter=configured(task_type=None)),
    "with a task": Case(lora={"task_type": "CAUSAL_LM"}),
    "one parameter by its name": Case(lora={"target_modules": Q, "target_parameters": ["self_attn.k_proj.weight"]}),
    **{
        f"init_lora_weights {init}": Case(adapter=configured(init_lora_weights=init))
        for init in (False, "gaussian", "orthogonal", "eva", "lora_ga")
    },
    "init_lora_weights mica": Case(lora={"init_lora_weights": "mica"}),
    "bert": Case("bert", {"target_modules": ["query", "dense"]}, dtype="fp32"),
    "t5": Case("t5", {"target_modules": ["q", "v", "wi", "wo"]}),
    "lm_head, untied": Case(lora={"target_modules": HEAD}),
}

BIASES = {
    "lora_bias": Case(lora={"target_modules": ["q_proj", "o_proj"], "lora_bias": True}),
    "lora_bias, fp32": Case(lora={"target_modules": ["q_proj", "o_proj"], "lora_bias": True}, dtype="fp32"),
    "bias all": Case(lora={"target_modules": Q, "bias": "all"}),
    "bias all, bert": Case("bert", {"target_modules": ["query", "dense"], "bias": "all"}),
    "bias lora_only": Case(lora={"target_modules": Q, "bias": "lora_only"}),
}

CONV1Ds = {
    "gpt2": Case("gpt2", {"target_modules": CONV1D}),
    "gpt2, fp32": Case("gpt2", {"target_modules": CONV1D, "r": 17}, dtype="fp32"),
    "gpt2, fan_in_fan_out": Case("gpt2", {"target_modules": CONV1D, "fan_in_fan_out": True}),
    "gpt2, fan_in_fan_out is wrong": Case("gpt2", {"target_modules": CONV1D}, adapter=configured(fan_in_fan_out=False)),
    "gpt2, all-linear": Case("gpt2", {"target_modules": "all-linear"}),
    "gpt2, layers_to_transform": Case(
        "gpt2", {"target_modules": CONV1D, "layers_to_transform": [1], "layers_pattern": "h"}
    ),
    "gpt2, embeddings": Case("gpt2", {"target_modules": ["wte", "wpe", "c_attn"]}),
    "gpt2, lm_head": Case("gpt2", {"target_modules": ["lm_head", "c_attn"]}),
    "gpt2 below vit": Case("vit-gpt2", {"target_modules": CONV1D}),
    "gpt2 below vit, DoRA": Case("vit-gpt2", {"target_modules": [*CONV1D, "q_attn"], "use_dora": True}),
    "gpt2 alone": Case("gpt2 alone", {"target_modules": CONV1D}),
    "gpt2 alone, adapter of the whole": Case(
        "gpt2 alone", {"target_modules": CONV1D}, auto=AutoModelForCausalLM, prefix=("transformer.", "")
    ),
    "gpt2 as on the Hub": Case(
        "gpt2", {"target_modules": CONV1D}, edit=renamed(r"^transformer\.", "", MODEL), prefix=("transformer.", "")
    ),
    "gpt2, adapter of a part": Case("gpt2", {"target_modules": CONV1D}, auto=AutoModel, prefix=("", "transformer.")),
}

EMBEDDINGS = {
    "embedding": Case(lora={"target_modules": EMBED}),
    "embedding, fp32": Case(lora={"target_modules": EMBED, "r": 17}, dtype="fp32"),
    "embedding, fp16": Case(lora={"target_modules": EMBED, "r": 3}, dtype="fp16"),
    "embedding, large": Case("large", {"target_modules": ["embed_tokens"], "r": 17}),
    "embedding, mica": Case(lora={"target_modules": EMBED, "init_lora_weights": "mica"}),
    "embedding, the adapter's name in keys": Case(
        lora={"target_modules": EMBED}, adapter=renamed(r"(lora_(?:embedding_)?[AB])", r"\1.default")
    ),
    "embedding without its base": Case(
        lora={"target_modules": EMBED},
        adapter=edited(lambda tensors: {name: each for name, each in tensors.items() if "base_layer" not in name}),
    ),
    "embedding and head with bases of their own": Case(lora={"target_modules": [*EMBED, "lm_head"]}, adapter=REPLACED),
    "tied, embedding": Case("tied", {"target_modules": EMBED}),
    "tied, embedding with a base of its own": Case("tied", {"target_modules": EMBED}, adapter=REPLACED),
    "tied, head": Case("tied", {"target_modules": HEAD}),
    "tied, head with a base of its own": Case("tied", {"target_modules": HEAD}, adapter=REPLACED),
    "tied, embedding and head": Case("tied", {"target_modules": [*EMBED, "lm_head"]}),
    "tied, embedding and head with bases of their own": Case(
        "tied", {"target_modules": [*EMBED, "lm_head"]}, adapter=REPLACED
    ),
    "tied, both stored, embedding": Case("tied", {"target_modules": EMBED}, edit=HEAD_TOO),
    "tied, both stored": Case("tied", edit=HEAD_TOO),
    "t5, shared": Case("t5", {"target_modules": ["q", "shared"]}),
}

WHOLE = {
    "modules_to_save, head": Case(lora={"modules_to_save": ["lm_head"]}),
    "modules_to_save, embedding": Case(lora={"modules_to_save": ["embed_tokens"]}),
    "modules_to_save, both": Case(lora={"modules_to_save": ["embed_tokens", "lm_head"]}),
    "modules_to_save, norms": Case(lora={"modules_to_save": ["norm", "input_layernorm"]}),
    "modules_to_save, fp32 in the file": Case(
        lora={"modules_to_save": ["lm_head"]},
        adapter=edited(lambda tensors: {name: each.float() * 1.01 for name, each in tensors.items()}),
    ),
    "modules_to_save, pooler": Case("bert", {"target_modules": ["query"], "modules_to_save": ["pooler"]}),
    "modules_to_save, none of this model": Case(lora={"modules_to_save": ["classifier", "score"]}),
    "modules_to_save, a target": Case(lora={"modules_to_save": ["q_proj"]}),
    "a norm that the configuration does not name": Case(
        adapter=edited(lambda tensors: {**tensors, "base_model.model.model.norm.weight": torch.linspace(-1, 1, 32)})
    ),
    **{
        f"tied, modules_to_save {' and '.join(names)}{', ensure_weight_tying' if ensure else ''}": Case(
            "tied", {"target_modules": Q, "modules_to_save": list(names), "ensure_weight_tying": ensure}
        )
        for names in (("embed_tokens",), ("lm_head",), ("embed_tokens", "lm_head"))
        for ensure in (False, True)
    },
    "tied, both stored, modules_to_save, head": Case("tied", {"modules_to_save": ["lm_head"]}, edit=HEAD_TOO),
    "scores": Case("scores", {"target_modules": Q, "task_type": "SEQ_CLS"}),
    "scores of a causal model": Case(
        lora={"target_modules": Q, "task_type": "SEQ_CLS"}, auto=AutoModelForSequenceClassification
    ),
    "tokens of a causal model": Case(
        lora={"target_modules": Q, "task_type": "TOKEN_CLS"}, auto=AutoModelForTokenClassification
    ),
    "a classifier of bert": Case(
        "bert", {"target_modules": ["query"], "task_type": "SEQ_CLS"}, auto=AutoModelForSequenceClassification
    ),
    "a classifier of roberta": Case(
        "roberta", {"target_modules": ["query"], "task_type": "SEQ_CLS"}, auto=AutoModelForSequenceClassification
    ),
    "tokens of roberta": Case(
        "roberta", {"target_modules": ["query"], "task_type": "TOKEN_CLS"}, auto=AutoModelForTokenClassification
    ),
    "questions of distilbert": Case(
        "distilbert", {"target_modules": ["q_lin"], "task_type": "QUESTION_ANS"}, auto=AutoModelForQuestionAnswering
    ),
    "a classifier of vit": Case(
        "vit",
        {"target_modules": ["q_proj", "query"], "modules_to_save": ["classifier"]},
        auto=AutoModelForImageClassification,
    ),
}

TOKENS = {
    "trainable_token_indices": Case(lora={"trainable_token_indices": [90, 1, 5]}),
    "trainable_token_indices by module": Case(
        lora={"trainable_token_indices": {"embed_tokens": [1, 5], "lm_head": [2]}}
    ),
    "tied, trainable_token_indices": Case("tied", {"trainable_token_indices": [90, 1, 5]}),
    "tied, trainable_token_indices by module": Case(
        "tied", {"trainable_token_indices": {"embed_tokens": [1, 5], "lm_head": [1, 5]}}
    ),
    "tied, trainable_token_indices that differ": Case(
        "tied", {"trainable_token_indices": {"embed_tokens": [1, 5], "lm_head": [1, 7]}}
    ),
    "more tokens": Case(rows=101),
    "tied, more tokens": Case("tied", rows=101),
    "fewer tokens": Case(rows=90),
    "more tokens, modules_to_save": Case(lora={"modules_to_save": ["embed_tokens", "lm_head"]}, rows=101),
    "tied, more tokens, modules_to_save": Case("tied", {"modules_to_save": ["embed_tokens", "lm_head"]}, rows=101),
    "tied, more tokens, modules_to_save embedding": Case("tied", {"modules_to_save": ["embed_tokens"]}, rows=101),
    "more tokens, embedding and head": Case(lora={"target_modules": [*EMBED, "lm_head"]}, rows=101),
    "tied, more tokens, embedding": Case("tied", {"target_modules": EMBED}, rows=101),
    "more tokens, trainable_token_indices": Case(lora={"trainable_token_indices": list(range(96, 101))}, rows=101),
    "tied, more tokens, trainable_token_indices": Case(
        "tied", {"trainable_token_indices": list(range(96, 101))}, rows=101
    ),
}

CONVOLUTIONS = {
    "resnet": Case("resnet", {"target_modules": ["convolution"]}),
    "resnet, fp32": Case("resnet", {"target_modules": ["convolution"], "r": 8}, dtype="fp32"),
    "resnet, fp32, rank 4": Case("resnet", {"target_modules": ["convolution"]}, dtype="fp32"),
    "DoRA": Case("resnet", {"use_dora": True, "target_modules": ["convolution"]}),
    "DoRA, fp32": Case("resnet", {"use_dora": True, "target_modules": ["convolution"]}, dtype="fp32"),
    "qwen2_5_vl, visual": Case("qwen2_5_vl", {"target_modules": ["proj", "q_proj"]}, dtype="fp32"),
    "convnext": Case("convnext", {"target_modules": ["pwconv1", "patch_embeddings", "downsampling_layer.1"]}),
    "vit": Case("vit", {"target_modules": ["projection"], "r": 8}),
    "vit, fp16": Case("vit", {"target_modules": ["projection"], "r": 3}, dtype="fp16"),
    "wav2vec2": Case("wav2vec2", {"target_modules": r".*conv_layers.*\.conv|.*q_proj"}),
}

DORA = {
    **{f"DoRA, {dtype}": Case(lora={"use_dora": True}, dtype=dtype) for dtype in ("bf16", "fp16", "fp32")},
    "DoRA, large": Case("large", {"use_dora": True, "r": 17}),
    "DoRA, large, fp32": Case("large", {"use_dora": True, "r": 64}, dtype="fp32"),
    "DoRA, use_rslora": Case(lora={"use_dora": True, "use_rslora": True, "r": 3}),
    "DoRA, head": Case(lora={"use_dora": True, "target_modules": HEAD}),
    "DoRA, tied, head": Case("tied", {"use_dora": True, "target_modules": HEAD}),
    "DoRA, tied, embedding and head": Case("tied", {"use_dora": True, "target_modules": [*EMBED, "lm_head"]}),
    "DoRA, embedding with a base of its own": Case(lora={"use_dora": True, "target_modules": EMBED}, adapter=REPLACED),
    "DoRA, gpt2": Case("gpt2", {"use_dora": True, "target_modules": CONV1D}),
    "DoRA, gpt2, fp32": Case("gpt2", {"use_dora": True, "target_modules": CONV1D, "r": 17}, dtype="fp32"),
    "DoRA, gpt2, large": Case(
        "gpt2", {"use_dora": True, "target_modules": CONV1D}, dtype="fp32", changes={"n_embd": 300, "n_layer": 1}
    ),
    "DoRA, embedding": Case(lora={"use_dora": True, "target_modules": EMBED}),
    "DoRA, embedding, fp32": Case(lora={"use_dora": True, "target_modules": EMBED}, dtype="fp32"),
    "DoRA, embedding, large": Case("large", {"use_dora": True, "target_modules": ["embed_tokens"]}),
    "DoRA, the adapter's name in keys": Case(
        lora={"use_dora": True},
        adapter=in_turn(
            renamed(r"(lora_[AB])", r"\1.default"), renamed("(lora_magnitude_vector)", r"\1.default.weight")
        ),
    ),
    "DoRA, bf16 adapter": Case(
        lora={"use_dora": True},
        adapter=edited(lambda tensors: {name: each.bfloat16() for name, each in tensors.items()}),
    ),
}

EXPERTS = {
    **{model: _experts(model) for model in ("mixtral", "qwen3_moe", "olmoe", "gpt_oss")},
    **{
        f"{model}, fused": Case(model, {"target_modules": Q, "target_parameters": BOTH}, edit=fused)
        for model in ("mixtral", "qwen3_moe")
    },
    "qwen3_moe, by its modules": Case("qwen3_moe", {"target_modules": EVERY}),
    "qwen3_moe, by its modules, use_rslora": Case("qwen3_moe", {"target_modules": EVERY, "use_rslora": True, "r": 3}),
    "qwen3_moe, all-linear": Case("qwen3_moe", {"target_modules": "all-linear"}),
    "qwen3_moe, by its modules, fused": Case("qwen3_moe", {"target_modules": EVERY}, edit=fused),
    "mixtral, by its modules": Case("mixtral", {"target_modules": [*Q, *MIXTRAL]}),
    "olmoe, by its modules": Case("olmoe", {"target_modules": EVERY}),
    "deepseek_v3": Case(
        "deepseek_v3", {"target_modules": ["q_b_proj", "o_proj"], "target_parameters": BOTH}, edit=FP32_BIASES
    ),
    "deepseek_v3, all-linear": Case("deepseek_v3", {"target_modules": "all-linear"}, edit=FP32_BIASES),
    "qwen2_moe": _experts("qwen2_moe", target_modules=["q_proj", "shared_expert.up_proj", "shared_expert_gate"]),
    "experts, fp32": Case("qwen3_moe", {"target_modules": Q, "target_parameters": BOTH, "r": 17}, dtype="fp32"),
    "experts, fp32, fused": Case(
        "qwen3_moe", {"target_modules": Q, "target_parameters": BOTH, "r": 17}, dtype="fp32", edit=fused
    ),
    "experts, the other order": _experts("qwen3_moe", target_parameters=BOTH[::-1]),
    "experts, gate and up": _experts("qwen3_moe", target_parameters=BOTH[:1]),
    "experts, down": _experts("qwen3_moe", target_parameters=BOTH[1:]),
    "experts, use_rslora": _experts("qwen3_moe", use_rslora=True, r=3),
    "experts, more than ten": Case(
        "qwen3_moe", {"target_modules": Q, "target_parameters": BOTH}, changes={"num_experts": 12}
    ),
    "experts, fused, more than ten": Case(
        "qwen3_moe", {"target_modules": Q, "target_parameters": BOTH}, changes={"num_experts": 12}, edit=fused
    ),
    **{
        f"{model}, inputs and outputs alike": Case(
            model, {"target_modules": Q, "target_parameters": BOTH}, changes={of_experts: 32}
        )
        for model, of_experts in (("gpt_oss", "intermediate_size"), ("qwen3_moe", "moe_intermediate_size"))
    },
    "llama4": Case(
        "llama4",
        {
            "target_modules": Q,
            "target_parameters": ["feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"],
        },
    ),
    "granitemoe": Case(
        "granitemoe", {"target_modules": Q, "target_parameters": ["input_linear.weight", "output_linear.weight"]}
    ),
    "phimoe": _experts("phimoe"),
    "experts, odd sizes": Case(
        "qwen3_moe", {"target_modules": Q, "target_parameters": BOTH, "r": 8}, changes={"moe_intermediate_size": 9}
    ),
    "experts and router": _experts("qwen3_moe", target_parameters=[*BOTH, "mlp.gate.weight"]),
    "mixtral, experts and router": _experts("mixtral", target_parameters=[*BOTH, "mlp.gate.weight"]),
    "gpt_oss, fp32": Case("gpt_oss", {"target_modules": Q, "target_parameters": BOTH, "r": 17}, dtype="fp32"),
    "gpt_oss, down": _experts("gpt_oss", target_parameters=BOTH[1:]),
    "each expert, qwen3_moe": _by_hand("qwen3_moe", QWEN),
    "each expert, olmoe": _by_hand("olmoe", OLMOE),
    "each expert, mixtral": _by_hand("mixtral", MIXTRAL, "block_sparse_moe.experts"),
    "each expert, fp32": _by_hand("qwen3_moe", QWEN, dtype="fp32"),
    "each expert, fused": _by_hand("qwen3_moe", QWEN, edit=fused),
    "each expert, mixtral, fused": _by_hand("mixtral", MIXTRAL, "block_sparse_moe.experts", edit=fused),
    "each expert, down": _by_hand("qwen3_moe", {"down_proj": (32, 24)}),
    "each expert, the adapter's name in keys": Case(
        "qwen3_moe",
        {"target_modules": Q},
        adapter=in_turn(for_each_expert(QWEN), renamed(r"(lora_[AB])\.", r"\1.default.")),
    ),
}

NAMES = {
    **{
        name: Case(name, {"target_modules": ["q_proj", "o_proj", "up_proj"]})
        for name in ("gemma3", "llava", "qwen2_5_vl")
    },
    "gemma3, text alone": Case("gemma3", {"target_modules": r".*language_model.*\.(q|down)_proj"}),
    "gemma3, embedding": Case("gemma3", {"target_modules": EMBED}),
    "gemma3, names of transformers 4": Case(
        "gemma3",
        {"target_modules": r".*language_model.*\.(q|down)_proj"},
        adapter=renamed(r"model\.language_model\.", "language_model.model."),
    ),
    "qwen2_5_vl, visual": Case("qwen2_5_vl", {"target_modules": ["qkv", "q_proj"]}),
    "gpt_neox, head": Case("gpt_neox", {"target_modules": ["embed_in", "lm_head"]}),
    "gpt_neox, modules_to_save": Case("gpt_neox", {"target_modules": ["dense"], "modules_to_save": ["lm_head"]}),
    "t5, modules_to_save": Case("t5", {"target_modules": ["q"], "modules_to_save": ["lm_head"]}),
    "t5, more tokens": Case("t5", {"target_modules": ["q"]}, rows=101),
    "t5, trainable_token_indices": Case("t5", {"target_modules": ["q"], "trainable_token_indices": {"shared": [1, 2]}}),
    "gemma3, modules_to_save": Case("gemma3", {"target_modules": Q, "modules_to_save": ["lm_head"]}),
    "gemma3, head": Case("gemma3", {"target_modules": HEAD}),
    "llava, modules_to_save": Case(
        "llava", {"target_modules": ["linear_1"], "modules_to_save": ["lm_head", "linear_2"]}
    ),
    "vit, attention": Case("vit", {"target_modules": ["q_proj", "v_proj"]}),
}

CASES = NAMES | LINEAR | BIASES | CONV1Ds | EMBEDDINGS | WHOLE | TOKENS | DORA | EXPERTS

_REAL = {"hidden_size": 1024, "intermediate_size": 2817, "vocab_size": 32001, "num_hidden_layers": 1}
REAL = {
    **{
        f"{dtype}, rank {rank}": Case("llama", {"r": rank, "target_modules": [*EVERY, "lm_head"]}, dtype, _REAL)
        for dtype in ("bf16", "fp32")
        for rank in (8, 64)
    },
    "embedding": Case("tied", {"target_modules": EMBED, "r": 16}, changes=_REAL),
    "DoRA": Case("llama", {"use_dora": True, "r": 16}, changes=_REAL),
    "DoRA, embedding": Case("llama", {"use_dora": True, "r": 16, "target_modules": EMBED}, changes=_REAL),
    "DoRA, gpt2": Case(
        "gpt2", {"use_dora": True, "target_modules": CONV1D}, "fp32", {"n_embd": 1024, "n_layer": 1, "vocab_size": 9999}
    ),
    "experts": Case(
        "qwen3_moe",
        {"target_modules": Q, "target_parameters": BOTH, "r": 16},
        changes={"num_experts": 64, "moe_intermediate_size": 384, "hidden_size": 512, "num_hidden_layers": 1},
    ),
    "experts, fused": Case(
        "qwen3_moe",
        {"target_modules": Q, "target_parameters": BOTH, "r": 16},
        changes={"num_experts": 64, "moe_intermediate_size": 384, "hidden_size": 512, "num_hidden_layers": 1},
        edit=fused,
    ),
}
"""Of sizes that are read and computed in many pieces."""


def sampled(cases: Mapping[str, Case]) -> list[Any]:
    """Return the names of `cases`. All but one for each pair of features are for `make thorough`."""
    pairs = {name: {*combinations_with_replacement(sorted(_features(name, cases[name])), 2)} for name in cases}
    left, taken = set().union(*pairs.values()), set[str]()
    while left:
        taken.add(most := max(cases, key=lambda name: len(pairs[name] & left)))
        left -= pairs[most]
    return [pytest.param(name, marks=() if name in taken else pytest.mark.thorough) for name in cases]


def _features(name: str, case: Case) -> Iterator[str]:
    """Yield what a case has that the plainest has not. A change of the files counts by the case's name."""
    targets = case.lora.get("target_modules", "")
    yield from (
        "plain",
        case.model.replace("llama", "plain"),
        "plain" if case.dtype == "bf16" else "wide",
        *case.changes,
    )
    yield from (f"{key} {value if key in _VALUES else type(value)}" for key, value in case.lora.items() if key != "r")
    yield from {"embed_tokens", "lm_head", "shared", "wte"}.intersection(targets)
    yield from (targets.partition("-")[0],) if isinstance(targets, str) else map(str, {"." in name for name in targets})
    yield from {name if edit is not fused else "fused" for edit in (case.edit, case.adapter) if edit}
    yield from filter(None, (case.auto and "auto", case.rows and "rows", case.lora.get("r", 4) > 32 and "high rank"))


_VALUES = ("modules_to_save", "target_parameters", "bias", "init_lora_weights")
