"""What an adapter_config.json targets, and with which rank and scale, is what PEFT makes of it."""

import re
from dataclasses import fields
from math import sqrt
from typing import Any

import peft
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from peft.tuners.tuners_utils import check_target_module_exists
from peft.utils.other import get_pattern_key

from sharding.core.errors import SourceError
from sharding.core.limits import MAX_PATTERN_CHARACTERS
from sharding.formats.peft_config import parse_config

LORA = {"peft_type": "LORA"}
PARTS = ["self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj", "mlp.experts.1.up_proj"]
MODULES = [
    *(f"model.layers.{layer}.{part}" for layer in (0, 1, 11) for part in PARTS),
    *("model.embed_tokens", "lm_head", "score", "layers.1.q_proj", "model.h.1.proj", "h.qXproj", "h.0.a-b"),
]
NAMES = st.lists(
    st.sampled_from(["q_proj", "proj", "up_proj", "v_proj", "lm_head", "self_attn.v_proj", "layers.1.q_proj", "1"]),
    max_size=3,
)
FORMS = [r".*\.(q|v)_proj", r"model\.layers\.1\..*", r".*layers\.\d\..*", "lm_head", r"^(?!.*v_proj).*proj$"]
PATTERNS = st.sampled_from(
    ["q_proj", "proj", ".*up_proj", r"layers\.1\..*", "^model.*v_proj", "self_attn.q_proj", "q.proj", "h.q.proj", "a-b"]
)


def match(pattern: str, text: str) -> tuple[str | None] | None:
    found = re.fullmatch(pattern, text)
    return found and (found.groupdict().get("idx"),)


@settings(max_examples=100)
@given(
    target=NAMES | st.sampled_from(FORMS),
    exclude=NAMES | st.sampled_from(FORMS) | st.none(),
    saved=st.lists(st.sampled_from(["lm_head", "score", "self_attn", "embed_tokens", "q.proj", "v.*j"]), max_size=2),
    layers=st.none() | st.integers(0, 2) | st.lists(st.sampled_from([0, 1, 11]), max_size=2),
    pattern=st.sampled_from([None, "layers", ["h", "layers"], [], "self_attn", "(layers|h)"]),
)
def test_the_targets_are_those_of_peft(target: Any, exclude: Any, saved: list[str], layers: Any, pattern: Any) -> None:
    chosen = {"layers_to_transform": layers, "layers_pattern": pattern if layers is not None else None}
    if isinstance(target, str):  # PEFT takes layers with a list of names only
        chosen = {}
    values = {"target_modules": target, "exclude_modules": exclude, "modules_to_save": saved or None, **chosen}
    theirs = peft.LoraConfig(**values)
    ours = parse_config({**LORA, **values})
    for module in MODULES:
        found = check_target_module_exists(theirs, module)
        assert ours.targets(module, match) == (bool(found) and "Excluded" not in type(found).__name__)


@given(
    ranks=st.dictionaries(PATTERNS, st.integers(1, 64), max_size=5),
    alphas=st.dictionaries(PATTERNS, st.integers(1, 64), max_size=3),
    rslora=st.booleans(),
)
def test_rank_and_scale_are_those_of_peft(ranks: dict[str, int], alphas: dict[str, int], rslora: bool) -> None:
    values = {"r": 8, "lora_alpha": 12, "rank_pattern": ranks, "alpha_pattern": alphas, "use_rslora": rslora}
    config = parse_config({**LORA, **values})
    for module in MODULES:
        rank = ranks.get(get_pattern_key(list(ranks), module), 8)
        alpha = alphas.get(get_pattern_key(list(alphas), module), 12)
        assert config.rank_of(module, match) == rank
        assert config.scale_of(module, rank, match) == alpha / (sqrt(rank) if rslora else rank)


def test_every_linear_layer_but_the_head_may_be_meant() -> None:
    config = parse_config({**LORA, "target_modules": "all-linear"})
    assert config.targets("model.layers.0.mlp.up_proj", match) and not config.targets("lm_head", match)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        *(("peft_type", "IA3", "peft_type IA3"), ("peft_type", None, "peft_type"), ("use_qalora", True, "QALoRA")),
        *(("alora_invocation_tokens", [1], "alora_invocation_tokens"), ("arrow_config", {"top_k": 1}, "arrow_config")),
        *(("kasa_config", {}, "kasa_config"), ("use_bdlora", {"nblocks": 2}, "use_bdlora")),
        *(("layer_replication", [[0, 2]], "layer_replication"), ("megatron_config", {"a": 1}, "megatron_config")),
        *(("init_lora_weights", name, name) for name in ("pissa_niter_4", "OLoRA", "loftq", "corda")),
        ("init_lora_weights", "brand-new", "does not know"),
        *(("r", 0, "r: "), ("r", "eight", "r: .*eight"), ("use_rslora", "false", "use_rslora")),
        *(("lora_alpha", "many", "lora_alpha"), ("lora_alpha", float("nan"), "lora_alpha")),
        ("target_modules", "x" * (MAX_PATTERN_CHARACTERS + 1), "target_modules"),
    ],
)
def test_what_is_no_plain_sum_or_not_valid_is_refused_by_name(key: str, value: Any, words: str) -> None:
    with pytest.raises(SourceError, match=words):
        parse_config({**LORA, key: value})


@pytest.mark.parametrize(
    "marks",
    [
        {"lora_B_layout": "mixed"},
        {
            "lora_B_layout": "mixed",
            "unsloth_fused_expert_lora": {"parameters": {"down_proj": {"lora_B_layout": "rank_major"}}},
        },
        {"lora_B_layout": "column_major"},
        {"lora_B_layout": "rank_major", "auto_mapping": {"lora_B_layout": "grouped_by_expert"}},
        {"auto_mapping": {"unsloth_fixed": True}},
    ],
)
def test_experts_in_an_order_that_is_unknown_are_refused(marks: dict[str, Any]) -> None:
    with pytest.raises(SourceError, match="order of the columns of lora_B") as refused:
        parse_config({**LORA, **marks}).groups_by_expert("down_proj")
    assert "lora_B_layout" in refused.value.hint


@pytest.mark.parametrize("value", [True, False, "gaussian", "eva", "orthogonal", "lora_ga", "mica", "True", None])
def test_a_start_that_leaves_the_base_as_it_is_is_fine(value: Any) -> None:
    assert parse_config({**LORA, "init_lora_weights": value}).rounds_twice == (value == "mica")


def test_the_rows_to_replace_are_those_of_the_module() -> None:
    tokens = {"embed_tokens": [3, 1], "lm_head": [2], "model.embed_tokens": [9]}  # the first that fits counts
    both = parse_config({**LORA, "trainable_token_indices": tokens})
    assert both.tokens_of("model.embed_tokens") == (3, 1) and both.tokens_of("lm_head") == (2,)
    assert both.tokens_of("model.other_embed_tokens") is None
    assert parse_config({**LORA, "trainable_token_indices": [5]}).tokens_of("any") == (5,)
    assert parse_config(LORA).tokens_of("any") is None


def test_every_regular_expression_in_it_is_known_with_its_key() -> None:
    """All but plain names, which need no checking."""
    values = {"target_modules": "a+", "exclude_modules": ["b+"], "rank_pattern": {"c+": 1, "h.0.c": 2}}
    more = {"layers_pattern": "d+", "alpha_pattern": {"e+": 1}, "modules_to_save": ["f+", "model.norm"]}
    assert set(parse_config({**LORA, **values, **more}).patterns) == {
        *(("target_modules", "a+"), ("rank_pattern", "c+"), ("layers_pattern", "d+")),
        *(("alpha_pattern", "e+"), ("modules_to_save", "f+")),
    }


def test_an_empty_pattern_matches_no_module() -> None:
    """As in PEFT, which then says that it was ignored."""
    config = parse_config({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "alpha_pattern": {"": 100}})
    assert config.scale_of("model.layers.0.q_proj", 4, re.fullmatch) == 2


@pytest.mark.parametrize("setting", [field.name for field in fields(peft.LoraConfig) if field.name != "peft_type"])
def test_every_setting_of_peft_is_read_or_refused_or_known_to_be_harmless(setting: str) -> None:
    try:
        config = parse_config({**LORA, setting: ["a"]})
    except SourceError as error:
        assert setting in error.message
    else:
        assert config.unknown == ()
