"""Prefixes are put on, taken off and exchanged, heads tied or untied, and the vocabulary stays as it was trained."""

import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from sharding.core.errors import SourceError
from tests.folders import tensors
from tests.lora import CAUSAL, SMALL
from tests.planning.alike.models import (
    MODELS,
    Tensors,
    assert_loads,
    build,
    configure,
    edit,
    in_memory,
    load,
    logits,
    published,
    rename,
    shapes,
    shard,
    unlike,
    words,
)
from tests.promises import promise
from tests.scenarios.architectures import ARCHITECTURES

WRAPPED = ("_orig_mod.", "module.", "base_model.model.", "module._orig_mod.", "_fsdp_wrapped_module.")
PREFIXES: dict[str, tuple[str, str, str]] = {
    **{prefix: ("qwen3_moe", "^", prefix) for prefix in WRAPPED},
    "base_layer.": ("llama", r"(?<=[qv]_proj)\.", ".base_layer."),
    "four modules at once": ("llama", "^", "base_model.model.model.language_model."),
    "gpt_neox. is missing": ("gpt_neox", r"^gpt_neox\.", ""),
    "model. is missing": ("llama", r"^model\.", ""),
    "language_model. is missing": ("gemma3", r"^language_model\.", ""),
    "language_model. is missing in model.": ("qwen3_5", r"^model\.language_model\.", "model."),
    "one prefix for another": ("gemma3", "^language_model", "text_decoder"),
    "the names of older versions": ("qwen2_5_vl", r"^model\.", "model.language_model."),
    "a wrapper in the middle": ("llama", r"\.mlp\.", "._checkpoint_wrapped_module.mlp."),
    "prefix upon prefix": ("gemma3", r"^(language_model\.)?", "module."),
}
"""A model, and what trainers have made of the names of its tensors."""


@promise("docs/formats.md#the-layout-of-an-original")
@pytest.mark.parametrize("case", PREFIXES)
def test_names_become_those_of_the_original_again(case: str, tmp_path: Path) -> None:
    name, pattern, new = PREFIXES[case]
    original, wanted = published(build(name), tmp_path / "original"), published(build(name, 1), tmp_path / "wanted")
    mine = rename(published(build(name, 1), tmp_path / "mine"), pattern, new)
    assert shapes(mine).keys() != shapes(original).keys()
    report = shard(mine, tmp_path / "out", like=original)
    assert unlike(tensors(tmp_path / "out"), tensors(wanted)) == {}
    assert_loads(tmp_path / "out", original, build(name, 1), MODELS[name][0])
    assert all(part in words(report) for part in re.findall(r"[\w]+\.", new) if part != "model.")
    assert "no library finds them" not in words(report), "the copy has other names"


@pytest.mark.thorough
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_names_in_memory_become_those_in_files_for_every_kind_of_model(name: str, tmp_path: Path) -> None:
    original, wanted = (published(build(name, seed), tmp_path / f"{seed}") for seed in (0, 1))
    shard(in_memory(build(name, 1), tmp_path / "mine"), tmp_path / "out", like=original)
    assert unlike(tensors(tmp_path / "out"), tensors(wanted)) == {}


def test_the_words_of_a_text_model_in_another_may_be_more(tmp_path: Path) -> None:
    """The tower of LLaVA states how many words CLIP has."""
    original, model = published(build("llava"), tmp_path / "original"), deepcopy(build("llava", 1))
    model.resize_token_embeddings(100, mean_resizing=False)
    mine = rename(published(model, tmp_path / "mine"), "^", "module.")
    for folder in (original, mine):
        configure(folder, vision_config__vocab_size=32000)
    shard(mine, tmp_path / "out", like=original)
    assert torch.equal(load(tmp_path / "out", MODELS["llava"][0]).logits, logits(model))


def test_a_thinker_saved_alone_gets_its_names_and_its_talker_back(tmp_path: Path) -> None:
    original, wanted = (published(build("qwen2_5_omni", n), tmp_path / f"{n}") for n in (0, 1))
    build("qwen2_5_omni", 1).save_pretrained(tmp_path / "mine")
    assert not [name for name in shapes(tmp_path / "mine") if name.startswith("thinker.")]
    shard(tmp_path / "mine", tmp_path / "out", like=original)
    assert unlike(tensors(tmp_path / "out"), tensors(wanted)) == {}  # the talker is the same in both
    assert configure(tmp_path / "out")["architectures"] == ["Qwen2_5OmniForConditionalGeneration"]


def other_names(held: Tensors) -> Tensors:
    """What BERT calls its norms, and gate and up as Phi-3 and GLM-4 join them."""
    new = {"weight": "LayerNorm.gamma", "bias": "LayerNorm.beta"}
    names = {name: re.sub("LayerNorm.(weight|bias)", lambda old: new[old[1]], name) for name in held}
    gates = {name: name.replace("gate_proj", "up_proj") for name in held if "gate_proj" in name}
    joined = {gate.replace("gate", "gate_up"): torch.cat([held[gate], held[up]]) for gate, up in gates.items()}
    return {names[name]: held[name] for name in held if name not in {*gates, *gates.values()}} | joined


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_weights_get_the_names_of_the_original_or_are_joined_as_there_and_back(name: str, tmp_path: Path) -> None:
    for there, here in ((other_names, dict), (dict, other_names)):
        original, mine, wanted = (published(build(name, n > 0), tmp_path / there.__name__ / f"{n}") for n in range(3))
        edit(original, there), edit(mine, here), edit(wanted, there)  # type: ignore[arg-type]
        shard(mine, tmp_path / there.__name__ / "out", like=original)
        assert unlike(tensors(tmp_path / there.__name__ / "out"), tensors(wanted)) == {}


@pytest.mark.parametrize("name", ["mixtral", "granitemoe", "vit", "clip"])
def test_a_prefix_and_another_form_at_once(name: str, tmp_path: Path) -> None:
    original, wanted = (published(build(name, seed), tmp_path / f"{seed}") for seed in (0, 1))
    mine = rename(in_memory(build(name, 1), tmp_path / "mine"), "^", "module._orig_mod.")
    shard(mine, tmp_path / "out", like=original)
    assert unlike(tensors(tmp_path / "out"), tensors(wanted)) == {}


def test_a_prefix_that_makes_nothing_agree_is_no_prefix(tmp_path: Path) -> None:
    """A tensor that both have under one name keeps it, even where others lose a prefix."""
    original, mine = (published(build("llama", seed), tmp_path / f"{seed}") for seed in (0, 1))
    edit(original, lambda state: state | {"module.scale": torch.ones(3).bfloat16()})
    edit(mine, lambda state: state | {"module.scale": torch.zeros(3).bfloat16()})
    shard(mine, tmp_path / "out", like=original)
    assert unlike(tensors(tmp_path / "out"), tensors(mine)) == {}


# --- What the original does not have ----------------------------------------------------------------------


@pytest.mark.parametrize("keeps", [False, True])
def test_what_the_original_lacks_is_left_out_and_said_or_kept_if_asked_for(keeps: bool, tmp_path: Path) -> None:
    more = {
        "value_head.weight": torch.randn(1, 32).bfloat16(),
        "model.layers.0.self_attn.sinks": torch.randn(4).bfloat16(),
    }
    original, mine = published(build("llama"), tmp_path / "original"), published(build("llama", 1), tmp_path / "mine")
    plain = tensors(mine)
    edit(mine, lambda state: state | more)
    report = shard(mine, tmp_path / "out", like=original, keep_extra=keeps)
    assert unlike(tensors(tmp_path / "out"), plain | more if keeps else plain) == {}
    details = report.plan.made[0].details
    assert all(name in details["kept" if keeps else "dropped"] for name in more)


def test_two_tensors_never_get_one_name(tmp_path: Path) -> None:
    original, mine = (published(build("llama", seed), tmp_path / f"{seed}") for seed in (0, 1))
    edit(rename(mine, "^", "module."), lambda state: state | {"model.norm.weight": torch.ones(3).bfloat16()})
    with pytest.raises(SourceError, match=r"called model\.norm\.weight"):
        shard(mine, tmp_path / "out", like=original, keep_extra=True)


OLD: dict[str, tuple[str, dict[str, torch.Tensor]]] = {
    "gpt2": ("transformer.h.0.attn.", {"bias": torch.ones(1, 1, 8, 8), "masked_bias": torch.tensor(-1e4)}),
    "gpt_neox": ("gpt_neox.layers.0.attention.", {"bias": torch.ones(1, 1, 8, 8), "masked_bias": torch.tensor(-1e4)}),
    "llama": ("model.layers.0.self_attn.rotary_emb.", {"inv_freq": torch.ones(4)}),
}
"""Constants that older versions of transformers stored."""


@pytest.mark.parametrize("name", OLD)
def test_constants_that_an_old_original_stores_are_no_holes(name: str, tmp_path: Path) -> None:
    original, mine = (published(build(name, seed), tmp_path / f"{seed}") for seed in (0, 1))
    module, constants = OLD[name]
    edit(original, lambda state: state | {f"{module}{key}": constant for key, constant in constants.items()})
    shard(rename(mine, "^", "module."), tmp_path / "out", like=original)
    loaded = load(tmp_path / "out", MODELS[name][0])
    assert loaded.told == {} and torch.equal(loaded.logits, logits(build(name, 1)))


def test_embeddings_that_an_original_stores_three_times_are_stored_three_times(tmp_path: Path) -> None:
    original, mine = (published(build("t5", seed), tmp_path / f"{seed}") for seed in (0, 1))
    names = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    edit(original, lambda state: state | {name: state["shared.weight"].clone() for name in names})
    shard(mine, tmp_path / "out", like=original)
    held = tensors(tmp_path / "out")
    assert held.keys() == shapes(original).keys()
    assert all(torch.equal(held[name], held["shared.weight"]) for name in names)


# --- Heads -------------------------------------------------------------------------------------------------


def _llama(folder: Path, seed: int, tied: bool, **changes: Any) -> Any:
    torch.manual_seed(seed)
    config = AutoConfig.for_model("llama", **{**SMALL, "tie_word_embeddings": tied, **changes})
    model = CAUSAL.from_config(config, dtype=torch.bfloat16).eval()
    model.save_pretrained(folder)
    return model


def _with_head(state: Tensors) -> Tensors:
    return state | {"lm_head.weight": state["model.embed_tokens.weight"].clone()}


@pytest.mark.parametrize("original_is_tied", [True, False])
@pytest.mark.parametrize("has_head", [True, False])
def test_a_tied_head_is_stored_where_the_original_stores_one(
    has_head: bool, original_is_tied: bool, tmp_path: Path
) -> None:
    _llama(tmp_path / "original", 0, original_is_tied)
    model = _llama(tmp_path / "mine", 1, True)
    if has_head:
        edit(tmp_path / "mine", _with_head)
    report = shard(tmp_path / "mine", tmp_path / "out", like=tmp_path / "original")
    assert shapes(tmp_path / "out") == shapes(tmp_path / "original")
    assert not re.search("does not have|tie_word_embeddings", words(report)), "a tied head is not lost"
    loaded = load(tmp_path / "out", CAUSAL)
    assert loaded.told == {} and torch.equal(loaded.logits, logits(model))


@pytest.mark.parametrize(("says_tied", "has_copy"), [(False, False), (True, False), (False, True)])
def test_a_head_of_its_own_is_never_lost_because_the_original_s_is_tied(
    says_tied: bool, has_copy: bool, tmp_path: Path
) -> None:
    """transformers ties a head whose bytes are those of the embeddings, and no other, whatever config.json says.

    vLLM leaves out a head that config.json says is tied, whatever its bytes are, also where the original has a copy.
    """
    _llama(tmp_path / "original", 0, True)
    if has_copy:
        edit(tmp_path / "original", _with_head)
    model = _llama(tmp_path / "mine", 1, False)
    configure(tmp_path / "mine", tie_word_embeddings=says_tied)
    report = shard(tmp_path / "mine", tmp_path / "out", like=tmp_path / "original")
    assert torch.equal(load(tmp_path / "out", CAUSAL).logits, logits(model))
    assert ("tie_word_embeddings false (original true)" in words(report)) is not says_tied
    assert configure(tmp_path / "out")["tie_word_embeddings"] is False


@pytest.mark.parametrize("rows", [100, 90])
@pytest.mark.parametrize("tied", [True, False])
def test_a_vocabulary_that_was_resized_keeps_its_size(tied: bool, rows: int, tmp_path: Path) -> None:
    _llama(tmp_path / "original", 0, tied)
    model = _llama(tmp_path / "mine", 1, tied)
    model.resize_token_embeddings(rows, mean_resizing=False)
    model.save_pretrained(tmp_path / "mine")
    rename(tmp_path / "mine", "^", "module.")
    shard(tmp_path / "mine", tmp_path / "out", like=tmp_path / "original")
    assert shapes(tmp_path / "out").keys() == shapes(tmp_path / "original").keys()
    assert configure(tmp_path / "out")["vocab_size"] == rows
    loaded = load(tmp_path / "out", CAUSAL)
    assert loaded.told == {} and torch.equal(loaded.logits, logits(model))
