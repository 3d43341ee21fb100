"""A base with an adapter merged into it is, bit for bit, what PEFT makes of both."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from sharding import job
from sharding.formats.peft_config import USUAL_TARGETS
from tests.folders import bits, finish, tensors
from tests.lora import DTYPES, MODELS, Case, Edit, Tensors, build, by_expert, configured, edited, save_both
from tests.lora_cases import BOTH, CASES, CONVOLUTIONS, REAL, sampled
from tests.promises import promise

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")


def like_the_base(case: Case, merged: Tensors) -> Tensors:
    """`merged` by the names that its tensors have in the base."""
    theirs, ours = case.prefix
    return {ours + name.removeprefix(theirs): tensor for name, tensor in merged.items()}


def unlike(ours: torch.Tensor, theirs: torch.Tensor) -> str:
    """What differs between two tensors; "" if they are the same."""
    if bits(ours) == bits(theirs):
        return ""
    if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
        return f"{ours.dtype} {tuple(ours.shape)}, not {theirs.dtype} {tuple(theirs.shape)}"
    apart = (ours.float() - theirs.float()).abs()
    return f"{int((ours != theirs).sum())} of {ours.numel()} numbers, by up to {apart.max():.2g}"


def said(folder: Path) -> dict[str, Any]:
    config = json.loads((folder / "config.json").read_text())
    return {key: config.get(key) for key in ("tie_word_embeddings", "vocab_size")}


def merged(base: Path, adapter: Path, out: Path, **choices: Any) -> Tensors:
    """The tensors of a job's result, which it has verified."""
    options = job.Options(**{"max_shard_size": "30kB", **choices}, adapter=str(adapter))
    assert finish(job.shard(str(base), str(out), options)).verification.identical
    return tensors(out)


def differences(ours: Tensors, theirs: Tensors) -> dict[str, str]:
    """What differs, by the tensor's name."""
    names = dict.fromkeys(ours.keys() - theirs.keys(), "PEFT has none")
    names |= dict.fromkeys(theirs.keys() - ours.keys(), "only PEFT has it")
    pairs = {name: unlike(ours[name], theirs[name]) for name in ours.keys() & theirs.keys()}
    return names | {name: wrong for name, wrong in pairs.items() if wrong}


@promise("README.md#what-to-type", "docs/formats.md#lora-adapters")
@pytest.mark.parametrize("name", sampled(CASES))
def test_a_merged_model_is_bit_for_bit_what_peft_makes_of_it(name: str, tmp_path: Path) -> None:
    case, out = CASES[name], tmp_path / "out"
    base, adapter, peft = build(case, tmp_path)
    assert differences(merged(base, adapter, out), like_the_base(case, tensors(peft))) == {}
    assert said(out) == said(peft)
    assert not list(out.glob("adapter_*"))
    if any(case.prefix):  # else it has what PEFT's has
        _, told = case.loader.from_pretrained(out, dtype="auto", output_loading_info=True)
        assert {kind: keys for kind, keys in told.items() if keys} == {}


@pytest.mark.parametrize("name", sampled(CONVOLUTIONS))
def test_merged_convolutions_are_peft_s_but_for_the_last_bit(name: str, tmp_path: Path) -> None:
    # PEFT multiplies with torch's convolution, which adds up in another order.
    case = CONVOLUTIONS[name]
    base, adapter, peft = build(case, tmp_path)
    ours, theirs = merged(base, adapter, tmp_path / "out"), tensors(peft)
    assert ours.keys() == theirs.keys()
    for each, tensor in theirs.items():
        if "conv" in each or "patch_embed" in each or "downsampling" in each:
            bit = torch.finfo(tensor.dtype).eps
            size = float(tensor.float().abs().max())
            torch.testing.assert_close(ours[each], tensor, rtol=2 * bit, atol=2 * bit * size, msg=each)
        else:
            assert unlike(ours[each], tensor) == "", each


@pytest.mark.thorough
@pytest.mark.parametrize("name", REAL)
def test_a_merged_model_of_real_size_is_bit_for_bit_what_peft_makes_of_it(name: str, tmp_path: Path) -> None:
    case = REAL[name]
    base, adapter, peft = build(case, tmp_path)
    ours = merged(base, adapter, tmp_path / "out", max_shard_size="50MB")
    assert differences(ours, like_the_base(case, tensors(peft))) == {}


@pytest.mark.parametrize("name", ["large, fp32", "DoRA, gpt2, large"])
def test_how_many_threads_compute_changes_no_bit(name: str, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        base, adapter, peft = build(CASES[name], tmp_path)
    finally:
        torch.set_num_threads(threads)
    assert threads == 1 and differences(merged(base, adapter, tmp_path / "out"), tensors(peft)) == {}


@pytest.mark.parametrize(
    ("name", "dtype"), [("embedding, fp32", "bf16"), ("DoRA, fp32", "fp16"), ("experts, fp32", "bf16")]
)
def test_a_cast_comes_after_the_merge(name: str, dtype: str, tmp_path: Path) -> None:
    base, adapter, peft = build(CASES[name], tmp_path)
    theirs = {each: tensor.to(DTYPES[dtype]) for each, tensor in tensors(peft).items()}
    assert differences(merged(base, adapter, tmp_path / "out", dtype=dtype), theirs) == {}
    assert json.loads((tmp_path / "out/config.json").read_text())["dtype"] == str(DTYPES[dtype]).removeprefix("torch.")


@pytest.mark.parametrize(
    ("lora", "tied"),
    [
        ({"target_modules": "all-linear"}, True),
        ({"target_modules": r"model\.layers\.\d+\.self_attn\.(?:q|v)_proj"}, False),
        *(({"modules_to_save": ["embed_tokens", "lm_head"]}, tied) for tied in (True, False)),
        ({"use_dora": True}, False),
    ],
)
def test_an_adapter_of_the_text_part_alone_is_merged_into_the_model_with_its_vision(
    lora: dict[str, Any], tied: bool, tmp_path: Path
) -> None:
    text = {**MODELS["qwen3_5"][2]["text_config"], "tie_word_embeddings": tied}
    changes = {"tie_word_embeddings": tied, "text_config": text}
    base, adapter, peft = build(Case("qwen3_5", lora, changes=changes, auto=AutoModelForCausalLM), tmp_path)
    ours, before = merged(base, adapter, tmp_path / "out"), tensors(base)
    vision = {name: tensor for name, tensor in before.items() if ".visual." in name}
    assert vision and differences(ours, tensors(peft) | vision) == {}
    _, told = AutoModelForImageTextToText.from_pretrained(tmp_path / "out", dtype="auto", output_loading_info=True)
    assert {kind: keys for kind, keys in told.items() if keys} == {}


@pytest.mark.parametrize(
    "says", [{"use_dora": None, "use_rslora": 1}, {"use_dora": 0, "use_rslora": None, "target_modules": None}]
)
def test_null_and_numbers_in_a_configuration_mean_what_they_mean_to_peft(says: dict[str, Any], tmp_path: Path) -> None:
    targets = {} if "target_modules" not in says else {"target_modules": None}
    base, adapter, peft = build(Case(lora=targets, adapter=configured(**says)), tmp_path)
    ours = merged(base, adapter, tmp_path / "out")
    assert differences(ours, tensors(peft)) == {} and differences(ours, tensors(base)) != {}


def test_what_peft_targets_by_default_is_what_its_table_says() -> None:
    table = TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    assert {name: tuple(given) if isinstance(given, list) else given for name, given in table.items()} == USUAL_TARGETS


def test_an_adapter_is_merged_into_weights_that_are_only_said_to_be_quantized(tmp_path: Path) -> None:
    base, adapter, peft = build(Case(), tmp_path)
    configured("config.json", quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})(base)
    assert differences(merged(base, adapter, tmp_path / "out"), tensors(peft)) == {}
    assert "quantization_config" not in json.loads((tmp_path / "out/config.json").read_text())


def untrained(every: int) -> Edit:
    """Return what sets one `lora_B` in `every` to zero, as before the training."""

    def reset(held: Tensors) -> Tensors:
        updates = [name for name in held if ".lora_B." in name or ".lora_embedding_B" in name]
        return held | {name: torch.zeros_like(held[name]) for name in updates[::every]}

    return edited(reset)


@pytest.mark.parametrize(
    ("name", "every", "dtype"),
    [
        *[("bf16", 1, "keep"), ("gpt2", 2, "fp32"), ("embedding", 1, "fp32"), ("DoRA, gpt2", 2, "keep")],
        *[("experts, gate and up", 2, "keep"), ("trainable_token_indices", 1, "keep")],
    ],
)
def test_what_a_merge_changes_is_counted_in_the_result(name: str, every: int, dtype: str, tmp_path: Path) -> None:
    out, (base, adapter) = tmp_path / "out", save_both(CASES[name], tmp_path)
    untrained(every)(adapter)
    options = job.Options("30kB", dtype=dtype, adapter=str(adapter))  # type: ignore[arg-type]
    report = finish(job.shard(str(base), str(out), options))
    before, after = tensors(base), tensors(out)
    really = [each for each in after if not torch.equal(before[each].float(), after[each].float())]
    merge, *cast = report.plan.made
    assert (merge.kind, merge.changed, len(cast)) == ("adapter", len(really), dtype != "keep")
    assert report.verification.identical and report.verification.made == report.plan.made
    told = {finding.code: finding.message for finding in report.plan.findings}
    assert ("no-change" in told) == (not really)


GROUPED = {"lora_B_layout": "grouped_by_expert"}
DETAILS = {"lora_A_layout": "grouped_by_expert", "parameters": {"gate_up_proj": GROUPED, "down_proj": GROUPED}}
UNSLOTH = {
    "at the top": (BOTH, GROUPED),
    "with details": (BOTH, {**GROUPED, "unsloth_fused_expert_lora": DETAILS}),
    "in auto_mapping": (BOTH, {"auto_mapping": {"unsloth_fixed": True, **GROUPED}}),
    "for one parameter": (
        ["mlp.experts.down_proj"],
        {"unsloth_fused_expert_lora": {"parameters": {"down_proj": GROUPED, "gate_up_proj": {}}}},
    ),
    "in PEFT's order": ([], {"lora_B_layout": "rank_major", "auto_mapping": {"unsloth_fixed": True}}),
}
"""Of which parameters the columns are grouped by expert, and the marks that say so."""


@pytest.mark.parametrize(("name", "is_fused"), [*zip(UNSLOTH, (True, False, True, False, True), strict=True)])
def test_experts_of_unsloth_become_what_peft_makes_of_the_same_sum(name: str, is_fused: bool, tmp_path: Path) -> None:
    parameters, marks = UNSLOTH[name]
    base, adapter, peft = build(CASES["qwen3_moe, fused" if is_fused else "qwen3_moe"], tmp_path)
    by_expert(4, *(one.rpartition(".")[2] for one in parameters), **marks)(adapter)
    assert differences(merged(base, adapter, tmp_path / "out"), tensors(peft)) == {}


def test_where_the_shards_are_cut_changes_no_bit(tmp_path: Path) -> None:
    base, adapter, _ = build(CASES["large"], tmp_path)
    small = merged(base, adapter, tmp_path / "small", max_shard_size="100kB", strategy="blocks")
    assert differences(small, merged(base, adapter, tmp_path / "one", max_shard_size="single-file")) == {}
