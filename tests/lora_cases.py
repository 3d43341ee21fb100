"""Every way in which PEFT saves a LoRA adapter, each with the smallest model that has it."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import combinations_with_replacement, product
from typing import Any

import pytest
import torch
import transformers

from tests import lora
from tests.lora import ALONE, CAUSAL, EVERY, LABELS, MODEL, Case, configured, each_one, edited, fused, in_turn, renamed

Q, BOTH = ["q_proj"], ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
EMBED, HEAD, EMBED_AND_HEAD = [*Q, "embed_tokens"], [*Q, "lm_head"], [*Q, "embed_tokens", "lm_head"]
CONV1D = ["c_attn", "c_proj", "c_fc"]
UNSLOTH = (
    r"(?:.*?(?:language|text).*?(?:self_attn|attention|attn|mlp|feed_forward|ffn|dense).*?(?:qkv|proj).*?)"
    r"|(?:\bmodel\.layers\.[\d]{1,}\.(?:self_attn|attention|attn|mlp|feed_forward|ffn|dense)"
    r"\.(?:(?:q_proj|v_proj|down_proj)))"
)
QWEN = {"gate_proj": (24, 32), "up_proj": (24, 32), "down_proj": (32, 24)}
OLMOE = {"gate_proj": (48, 32), "up_proj": (48, 32), "down_proj": (32, 48)}
MIXTRAL = {"w1": (48, 32), "w3": (48, 32), "w2": (32, 48)}


def _other(name: str, tensor: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(name))
    return torch.randn(tensor.shape, generator=generator).to(tensor.dtype) if "base_layer" in name else tensor


REPLACED = each_one(_other)
"""Another base than the one whose adapter it is: a layer that was targeted brings its own."""
FP32_BIASES = each_one(lambda name, tensor: tensor.float() if "correction_bias" in name else tensor, MODEL)
HEAD_TOO = edited(lambda tensors: {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]}, MODEL)
NAMED = in_turn(
    renamed(r"(lora_(?:embedding_)?[AB])", r"\1.default"), renamed("(lora_magnitude_vector)", r"\1.default.weight")
)
"""The adapter's own name stands in its keys."""
IN_BF16 = each_one(lambda name, tensor: tensor.bfloat16())
_OF_CASE = {field.name for field in fields(Case)}


def _of(model: str = "llama", targets: Any = None, **more: Any) -> Case:
    """A case. What it has no field for goes into the configuration of the adapter."""
    settings = {"target_modules": targets} if targets else {}
    settings |= {key: value for key, value in more.items() if key not in _OF_CASE}
    return Case(model, settings, **{key: value for key, value in more.items() if key in _OF_CASE})


def _experts(model: str = "qwen3_moe", targets: Any = Q, **more: Any) -> Case:
    return _of(model, targets, **{"target_parameters": BOTH, **more})


def _by_hand(model: str, parts: dict[str, tuple[int, int]], place: str = "mlp.experts", **case: Any) -> Case:
    return _of(model, Q, adapter=lora.for_each_expert(parts, place), **case)


LINEAR = {
    **{dtype: _of(dtype=dtype) for dtype in ("bf16", "fp16", "fp32")},
    **{f"rank {rank}": _of(r=rank) for rank in (1, 3, 17, 256)},
    **{f"rank {rank}, fp32": _of(r=rank, dtype="fp32") for rank in (3, 64)},
    **{f"{rows} rows": _of(r=8, changes={"intermediate_size": rows}) for rows in (1, 9, 17)},
    **{f"{rows} rows, fp32": _of(r=17, dtype="fp32", changes={"intermediate_size": rows}) for rows in (1, 9)},
    "large": _of("large", r=17),
    "large, fp32": _of("large", r=64, dtype="fp32"),
    "several shards": _of(shards="20kB"),
    "use_rslora": _of(r=3, use_rslora=True),
    "alpha is a fraction, exclude_modules": _of(r=3, lora_alpha=0.7, exclude_modules=r".*layers\.0.*"),
    "rank_pattern": _of(rank_pattern={"layers.1.self_attn.q_proj": 7, r".*k_proj": 2, "^model.*up_proj": 5}),
    "alpha_pattern": _of(alpha_pattern={"proj": 99, "v_proj": 5, r"layers\.0\..*": 7, "layers.0.mlp.up_proj": 8}),
    "patterns and use_rslora": _of(
        rank_pattern={"q_proj": 3}, alpha_pattern={"q_proj": 7, "down_proj": 1}, use_rslora=True
    ),
    "a regular expression": _of(targets=r".*\.1\..*(q|v|up)_proj"),
    "all-linear": _of(targets="all-linear"),
    "all-linear but, in the file": _of(
        targets="all-linear",
        exclude_modules=["o_proj", "layers.0.mlp.up_proj"],
        adapter=configured(target_modules="all-linear"),
    ),
    "a regular expression of Unsloth": _of(targets=UNSLOTH),
    "whole names": _of(targets=["model.layers.0.self_attn.q_proj", "layers.1.mlp.down_proj"]),
    "layers_to_transform, with a task": _of(layers_to_transform=[1], task_type="CAUSAL_LM"),
    "layers_to_transform, layers_pattern": _of(layers_to_transform=0, layers_pattern="layers"),
    "bf16 adapter": _of(adapter=IN_BF16),
    "fp16 adapter": _of(dtype="fp32", adapter=each_one(lambda name, tensor: tensor.half())),
    "fp64 adapter": _of(adapter=each_one(lambda name, tensor: tensor.double() * 1.1)),
    "fp8 adapter, fan_in_fan_out is wrong": _of(
        adapter=in_turn(each_one(lambda name, tensor: tensor.to(torch.float8_e4m3fn)), configured(fan_in_fan_out=True))
    ),
    "the adapter's name in keys": _of(adapter=NAMED),
    "both pickled, without a task": _of(
        edit=lora.pickled_base, adapter=in_turn(lora.pickled, configured(task_type=None))
    ),
    "one parameter by its name": _of(targets=Q, target_parameters=["self_attn.k_proj.weight"]),
    "init_lora_weights mica": _of(init_lora_weights="mica"),
    "bert": _of("bert", ["query", "dense"], dtype="fp32"),
    "t5": _of("t5", ["q", "v", "wi", "wo"]),
    "lm_head, untied": _of(targets=HEAD),
}

BIASES = {
    "lora_bias": _of(targets=["q_proj", "o_proj"], lora_bias=True),
    "lora_bias, fp32": _of(targets=["q_proj", "o_proj"], lora_bias=True, dtype="fp32"),
    "bias all": _of(targets=Q, bias="all"),
    "bias all, bert": _of("bert", ["query", "dense"], bias="all"),
    "bias lora_only": _of(targets=Q, bias="lora_only"),
}

WHOLE_GPT2 = ("transformer.", "")
CONV1Ds = {
    "gpt2": _of("gpt2", CONV1D),
    "gpt2, fp32": _of("gpt2", CONV1D, r=17, dtype="fp32"),
    "gpt2, fan_in_fan_out": _of("gpt2", CONV1D, fan_in_fan_out=True),
    "gpt2, fan_in_fan_out is wrong": _of("gpt2", CONV1D, adapter=configured(fan_in_fan_out=False)),
    "gpt2, all-linear": _of("gpt2", "all-linear"),
    "gpt2, layers_to_transform": _of("gpt2", CONV1D, layers_to_transform=[1], layers_pattern="h"),
    "gpt2, embeddings": _of("gpt2", ["wte", "wpe", "c_attn"]),
    "gpt2, lm_head": _of("gpt2", ["lm_head", "c_attn"]),
    "gpt2 below vit": _of("vit-gpt2", CONV1D),
    "gpt2 below vit, DoRA": _of("vit-gpt2", [*CONV1D, "q_attn"], use_dora=True),
    "gpt2 alone": _of("gpt2 alone", CONV1D),
    "gpt2 alone, adapter of the whole": _of("gpt2 alone", CONV1D, auto=CAUSAL, prefix=WHOLE_GPT2),
    "gpt2 as on the Hub": _of("gpt2", CONV1D, edit=renamed(r"^transformer\.", "", MODEL), prefix=WHOLE_GPT2),
    "gpt2, adapter of a part": _of("gpt2", CONV1D, auto=ALONE, prefix=("", "transformer.")),
}

EMBEDDINGS = {
    "embedding": _of(targets=EMBED),
    "embedding, fp32": _of(targets=EMBED, r=17, dtype="fp32"),
    "embedding, fp16": _of(targets=EMBED, r=3, dtype="fp16"),
    "embedding, large": _of("large", ["embed_tokens"], r=17),
    "embedding, mica": _of(targets=EMBED, init_lora_weights="mica"),
    "embedding, the adapter's name in keys": _of(targets=EMBED, adapter=NAMED),
    "embedding without its base": _of(
        targets=EMBED,
        adapter=edited(lambda tensors: {name: each for name, each in tensors.items() if "base_layer" not in name}),
    ),
    "embedding and head with bases of their own": _of(targets=EMBED_AND_HEAD, adapter=REPLACED),
    "tied, embedding": _of("tied", EMBED),
    "tied, embedding with a base of its own": _of("tied", EMBED, adapter=REPLACED),
    "tied, head": _of("tied", HEAD),
    "tied, head with a base of its own": _of("tied", HEAD, adapter=REPLACED),
    "tied, embedding and head": _of("tied", EMBED_AND_HEAD),
    "tied, embedding and head with bases of their own": _of("tied", EMBED_AND_HEAD, adapter=REPLACED),
    "tied, both stored, embedding": _of("tied", EMBED, edit=HEAD_TOO),
    "tied, both stored": _of("tied", edit=HEAD_TOO),
    "t5, shared": _of("t5", ["q", "shared"]),
}

_LABELLED = dict(task_type="SEQ_CLS", auto=LABELS)
_TOKENS = dict(task_type="TOKEN_CLS", auto=transformers.AutoModelForTokenClassification)
WHOLE = {
    "modules_to_save, head": _of(modules_to_save=["lm_head"]),
    "modules_to_save, embedding": _of(modules_to_save=["embed_tokens"]),
    "modules_to_save, both": _of(modules_to_save=["embed_tokens", "lm_head"]),
    "modules_to_save, norms and none of this model": _of(modules_to_save=["norm", "input_layernorm", "score"]),
    "modules_to_save, fp32 in the file": _of(
        modules_to_save=["lm_head"], adapter=each_one(lambda name, tensor: tensor.float() * 1.01)
    ),
    "modules_to_save, pooler": _of("bert", ["query"], modules_to_save=["pooler"]),
    "modules_to_save, a target": _of(modules_to_save=["q_proj"]),
    "a norm that the configuration does not name": _of(
        adapter=edited(lambda tensors: {**tensors, "base_model.model.model.norm.weight": torch.linspace(-1, 1, 32)})
    ),
    **{
        f"tied, modules_to_save {' and '.join(names)}{', ensure_weight_tying' if ensure else ''}": _of(
            "tied", Q, modules_to_save=names, ensure_weight_tying=ensure
        )
        for names, ensure in product((["embed_tokens"], ["lm_head"], ["embed_tokens", "lm_head"]), (False, True))
    },
    "tied, both stored, modules_to_save, head": _of("tied", modules_to_save=["lm_head"], edit=HEAD_TOO),
    "scores": _of("scores", Q, task_type="SEQ_CLS"),
    "scores of a causal model": _of("llama", Q, **_LABELLED),
    "tokens of a causal model": _of("llama", Q, **_TOKENS),
    "a classifier of bert": _of("bert", ["query"], **_LABELLED),
    "a classifier of roberta": _of("roberta", ["query"], **_LABELLED),
    "tokens of roberta": _of("roberta", ["query"], **_TOKENS),
    "questions of distilbert": _of(
        "distilbert", ["q_lin"], task_type="QUESTION_ANS", auto=transformers.AutoModelForQuestionAnswering
    ),
    "a classifier of vit": _of(
        "vit", ["q_proj", "query"], modules_to_save=["classifier"], auto=transformers.AutoModelForImageClassification
    ),
}

_NEW = list(range(96, 101))
TOKENS = {
    "trainable_token_indices": _of(trainable_token_indices=[90, 1, 5]),
    "trainable_token_indices by module": _of(trainable_token_indices={"embed_tokens": [1, 5], "lm_head": [2]}),
    "tied, trainable_token_indices": _of("tied", trainable_token_indices=[90, 1, 5]),
    "tied, trainable_token_indices by module": _of(
        "tied", trainable_token_indices={"embed_tokens": [1, 5], "lm_head": [1, 5]}
    ),
    "tied, trainable_token_indices that differ": _of(
        "tied", trainable_token_indices={"embed_tokens": [1, 5], "lm_head": [1, 7]}
    ),
    "more tokens": _of(rows=101),
    "tied, more tokens": _of("tied", rows=101),
    "fewer tokens": _of(rows=90),
    "more tokens, modules_to_save": _of(modules_to_save=["embed_tokens", "lm_head"], rows=101),
    "tied, more tokens, modules_to_save": _of("tied", modules_to_save=["embed_tokens", "lm_head"], rows=101),
    "tied, more tokens, modules_to_save embedding": _of("tied", modules_to_save=["embed_tokens"], rows=101),
    "more tokens, embedding and head": _of(targets=EMBED_AND_HEAD, rows=101),
    "tied, more tokens, embedding": _of("tied", EMBED, rows=101),
    "more tokens, trainable_token_indices": _of(trainable_token_indices=_NEW, rows=101),
    "tied, more tokens, trainable_token_indices": _of("tied", trainable_token_indices=_NEW, rows=101),
}

CONVOLUTIONS = {
    "resnet": _of("resnet", ["convolution"]),
    "resnet, fp32": _of("resnet", ["convolution"], r=8, dtype="fp32"),
    "DoRA": _of("resnet", ["convolution"], use_dora=True),
    "DoRA, fp32": _of("resnet", ["convolution"], use_dora=True, dtype="fp32"),
    "qwen2_5_vl, visual": _of("qwen2_5_vl", ["proj", "q_proj"], dtype="fp32"),
    "convnext": _of("convnext", ["pwconv1", "patch_embeddings", "downsampling_layer.1"]),
    "vit": _of("vit", ["projection"], r=8),
    "vit, fp16": _of("vit", ["projection"], r=3, dtype="fp16"),
    "wav2vec2": _of("wav2vec2", r".*conv_layers.*\.conv|.*q_proj"),
}


def _dora(model: str = "llama", targets: Any = None, **more: Any) -> Case:
    return _of(model, targets, use_dora=True, **more)


DORA = {
    **{f"DoRA, {dtype}": _dora(dtype=dtype) for dtype in ("bf16", "fp16", "fp32")},
    "DoRA, large": _dora("large", r=17),
    "DoRA, large, fp32": _dora("large", r=64, dtype="fp32"),
    "DoRA, use_rslora": _dora(use_rslora=True, r=3),
    "DoRA, head": _dora(targets=HEAD),
    "DoRA, tied, head": _dora("tied", HEAD),
    "DoRA, tied, embedding and head": _dora("tied", EMBED_AND_HEAD),
    "DoRA, embedding with a base of its own": _dora(targets=EMBED, adapter=REPLACED),
    "DoRA, gpt2": _dora("gpt2", CONV1D),
    "DoRA, gpt2, fp32": _dora("gpt2", CONV1D, r=17, dtype="fp32"),
    "DoRA, gpt2, large": _dora("gpt2", CONV1D, dtype="fp32", changes={"n_embd": 300, "n_layer": 1}),
    "DoRA, embedding": _dora(targets=EMBED),
    "DoRA, embedding, fp32": _dora(targets=EMBED, dtype="fp32"),
    "DoRA, embedding, large": _dora("large", ["embed_tokens"]),
    "DoRA, the adapter's name in keys": _dora(adapter=NAMED),
    "DoRA, bf16 adapter": _dora(adapter=IN_BF16),
}

_LLAMA4 = ["feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"]
_BLOCK = "block_sparse_moe.experts"
_SHARED = ["q_proj", "shared_expert.up_proj", "shared_expert_gate"]
EXPERTS = {
    **{model: _experts(model) for model in ("mixtral", "qwen3_moe", "olmoe", "gpt_oss", "phimoe")},
    **{f"{model}, fused": _experts(model, edit=fused) for model in ("mixtral", "qwen3_moe")},
    "qwen3_moe, by its modules": _of("qwen3_moe", EVERY),
    "qwen3_moe, by its modules, use_rslora": _of("qwen3_moe", EVERY, use_rslora=True, r=3),
    "qwen3_moe, all-linear": _of("qwen3_moe", "all-linear"),
    "qwen3_moe, by its modules, fused": _of("qwen3_moe", EVERY, edit=fused),
    "mixtral, by its modules": _of("mixtral", [*Q, *MIXTRAL]),
    "olmoe, by its modules": _of("olmoe", EVERY),
    "deepseek_v3": _experts("deepseek_v3", ["q_b_proj", "o_proj"], edit=FP32_BIASES),
    "deepseek_v3, all-linear": _of("deepseek_v3", "all-linear", edit=FP32_BIASES),
    "qwen2_moe": _experts("qwen2_moe", _SHARED),
    "experts, fp32": _experts(r=17, dtype="fp32"),
    "experts, fp32, fused": _experts(r=17, dtype="fp32", edit=fused),
    "experts, the other order": _experts(target_parameters=BOTH[::-1]),
    "experts, gate and up": _experts(target_parameters=BOTH[:1]),
    "experts, down": _experts(target_parameters=BOTH[1:]),
    "experts, use_rslora": _experts(use_rslora=True, r=3),
    "experts, more than ten": _experts(changes={"num_experts": 12}),
    "experts, fused, more than ten": _experts(changes={"num_experts": 12}, edit=fused),
    "gpt_oss, inputs and outputs alike": _experts("gpt_oss", changes={"intermediate_size": 32}),
    "qwen3_moe, inputs and outputs alike": _experts(changes={"moe_intermediate_size": 32}),
    "llama4": _experts("llama4", target_parameters=_LLAMA4),
    "granitemoe": _experts("granitemoe", target_parameters=["input_linear.weight", "output_linear.weight"]),
    "experts, odd sizes": _experts(r=8, changes={"moe_intermediate_size": 9}),
    "experts and router": _experts(target_parameters=[*BOTH, "mlp.gate.weight"]),
    "mixtral, experts and router": _experts("mixtral", target_parameters=[*BOTH, "mlp.gate.weight"]),
    "gpt_oss, fp32": _experts("gpt_oss", r=17, dtype="fp32"),
    "gpt_oss, down": _experts("gpt_oss", target_parameters=BOTH[1:]),
    "each expert, qwen3_moe": _by_hand("qwen3_moe", QWEN),
    "each expert, olmoe": _by_hand("olmoe", OLMOE),
    "each expert, mixtral": _by_hand("mixtral", MIXTRAL, _BLOCK),
    "each expert, fp32": _by_hand("qwen3_moe", QWEN, dtype="fp32"),
    "each expert, fused": _by_hand("qwen3_moe", QWEN, edit=fused),
    "each expert, mixtral, fused": _by_hand("mixtral", MIXTRAL, _BLOCK, edit=fused),
    "each expert, down": _by_hand("qwen3_moe", {"down_proj": (32, 24)}),
    "each expert, the adapter's name in keys": _of("qwen3_moe", Q, adapter=in_turn(lora.for_each_expert(QWEN), NAMED)),
}

_OF_TEXT = r".*language_model.*\.(q|down)_proj"
NAMES = {
    **{name: _of(name, ["q_proj", "o_proj", "up_proj"]) for name in ("gemma3", "llava", "qwen2_5_vl")},
    "gemma3, text alone": _of("gemma3", _OF_TEXT),
    "gemma3, embedding": _of("gemma3", EMBED),
    "gemma3, names of transformers 4": _of(
        "gemma3", _OF_TEXT, adapter=renamed(r"model\.language_model\.", "language_model.model.")
    ),
    "qwen2_5_vl, visual": _of("qwen2_5_vl", ["qkv", "q_proj"]),
    "gpt_neox, head": _of("gpt_neox", ["embed_in", "lm_head"]),
    "gpt_neox, modules_to_save": _of("gpt_neox", ["dense"], modules_to_save=["lm_head"]),
    "t5, modules_to_save": _of("t5", ["q"], modules_to_save=["lm_head"]),
    "t5, more tokens": _of("t5", ["q"], rows=101),
    "t5, trainable_token_indices": _of("t5", ["q"], trainable_token_indices={"shared": [1, 2]}),
    "gemma3, modules_to_save": _of("gemma3", Q, modules_to_save=["lm_head"]),
    "gemma3, head": _of("gemma3", HEAD),
    "llava, modules_to_save": _of("llava", ["linear_1"], modules_to_save=["lm_head", "linear_2"]),
    "vit, attention": _of("vit", ["q_proj", "v_proj"]),
}

CASES = NAMES | LINEAR | BIASES | CONV1Ds | EMBEDDINGS | WHOLE | TOKENS | DORA | EXPERTS

_REAL = {"hidden_size": 1024, "intermediate_size": 2817, "vocab_size": 32001, "num_hidden_layers": 1}
_MANY = {"num_experts": 64, "moe_intermediate_size": 384, "hidden_size": 512, "num_hidden_layers": 1}
_WIDE = {"n_embd": 1024, "n_layer": 1, "vocab_size": 9999}
REAL = {
    **{
        f"{dtype}, rank {rank}": _of(targets=[*EVERY, "lm_head"], r=rank, dtype=dtype, changes=_REAL)
        for dtype, rank in product(("bf16", "fp32"), (8, 64))
    },
    "embedding": _of("tied", EMBED, r=16, changes=_REAL),
    "DoRA": _dora(r=16, changes=_REAL),
    "DoRA, embedding": _dora(targets=EMBED, r=16, changes=_REAL),
    "DoRA, gpt2": _dora("gpt2", CONV1D, dtype="fp32", changes=_WIDE),
    "experts": _experts(r=16, changes=_MANY),
    "experts, fused": _experts(r=16, changes=_MANY, edit=fused),
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
    """Yield what a case has that the plainest has not. A change of files that no other case has counts by its name."""
    targets = case.lora.get("target_modules", "")
    yield from ("plain", case.model.replace("llama", "plain"), "plain" if case.dtype == "bf16" else "wide")
    yield from case.changes
    yield from (f"{key} {value if key in _VALUES else type(value)}" for key, value in case.lora.items() if key != "r")
    yield from {"embed_tokens", "lm_head", "shared", "wte"}.intersection(targets)
    yield from (targets.partition("-")[0],) if isinstance(targets, str) else map(str, {"." in name for name in targets})
    for edit in filter(None, (case.edit, case.adapter)):
        is_by_hand = edit.__qualname__.startswith(lora.for_each_expert.__name__)
        yield str(_SHARED_EDITS.index(edit)) if edit in _SHARED_EDITS else "by hand" if is_by_hand else name
    yield from filter(None, (case.auto and "auto", case.rows and "rows", case.lora.get("r", 4) > 32 and "high rank"))


_VALUES = ("modules_to_save", "target_parameters", "bias", "init_lora_weights")
_SHARED_EDITS = (fused, REPLACED, FP32_BIASES, HEAD_TOO, NAMED, IN_BF16)
