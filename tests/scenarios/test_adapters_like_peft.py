"""A base with an adapter merged into it is, bit for bit, what PEFT makes of both."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from sharding import job
from tests.folders import bits, finish, tensors
from tests.lora import DTYPES, Case, Edit, build, by_expert, edited, fused, save_adapter, save_base
from tests.lora_cases import BOTH, CASES, CONVOLUTIONS, REAL

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")


def like_the_base(case: Case, merged: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
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


def merged(base: Path, adapter: Path, out: Path, **choices: Any) -> dict[str, torch.Tensor]:
    """The tensors of a job's result, which it has verified."""
    options = job.Options(**{"max_shard_size": "30kB", **choices}, adapter=str(adapter))
    assert finish(job.shard(str(base), str(out), options)).verification.identical
    return tensors(out)


def differences(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> dict[str, str]:
    """What differs, by the tensor's name."""
    names = dict.fromkeys(ours.keys() - theirs.keys(), "PEFT has none")
    names |= dict.fromkeys(theirs.keys() - ours.keys(), "only PEFT has it")
    pairs = {name: unlike(ours[name], theirs[name]) for name in ours.keys() & theirs.keys()}
    return names | {name: wrong for name, wrong in pairs.items() if wrong}


@pytest.mark.parametrize("name", CASES)
def test_a_merged_model_is_bit_for_bit_what_peft_makes_of_it(name: str, tmp_path: Path) -> None:
    case, out = CASES[name], tmp_path / "out"
    base, adapter, peft = build(case, tmp_path)
    assert differences(merged(base, adapter, out), like_the_base(case, tensors(peft))) == {}
    assert said(out) == said(peft)
    assert not list(out.glob("adapter_*"))
    _, told = case.loader.from_pretrained(out, dtype="auto", output_loading_info=True)
    assert {kind: keys for kind, keys in told.items() if keys} == {}


@pytest.mark.parametrize("name", CONVOLUTIONS)
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


@pytest.mark.parametrize("name", ["large", "large, fp32", "DoRA, large", "DoRA, gpt2, large", "embedding, large"])
def test_how_many_threads_compute_changes_no_bit(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    base, adapter, peft = build(case, tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        ours = merged(base, adapter, tmp_path / "out")
    finally:
        torch.set_num_threads(threads)
    assert differences(ours, like_the_base(case, tensors(peft))) == {}


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("name", ["fp32", "embedding, fp32", "DoRA, fp32", "experts, fp32", "lora_bias, fp32"])
def test_a_cast_comes_after_the_merge(name: str, dtype: str, tmp_path: Path) -> None:
    base, adapter, peft = build(CASES[name], tmp_path)
    theirs = {each: tensor.to(DTYPES[dtype]) for each, tensor in tensors(peft).items()}
    assert differences(merged(base, adapter, tmp_path / "out", dtype=dtype), theirs) == {}
    assert json.loads((tmp_path / "out/config.json").read_text())["dtype"] == str(DTYPES[dtype]).removeprefix("torch.")


def untrained(every: int) -> Edit:
    """Return what sets one `lora_B` in `every` to zero, as before the training."""

    def reset(held: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        updates = [name for name in held if ".lora_B." in name or ".lora_embedding_B" in name]
        return held | {name: torch.zeros_like(held[name]) for name in updates[::every]}

    return edited(reset)


@pytest.mark.parametrize(("every", "dtype"), [(1, "keep"), (2, "keep"), (2, "fp32")])
@pytest.mark.parametrize(
    "name",
    [
        *("bf16", "gpt2", "embedding", "DoRA, gpt2", "experts, gate and up", "qwen3_moe, by its modules, fused"),
        *("trainable_token_indices", "modules_to_save, embedding"),
    ],
)
def test_what_a_merge_changes_is_counted_in_the_result(name: str, every: int, dtype: str, tmp_path: Path) -> None:
    case, out = CASES[name], tmp_path / "out"
    base = save_base(case, tmp_path / "base")
    adapter = save_adapter(case, base, tmp_path / "adapter")
    untrained(every)(adapter)
    options = job.Options("30kB", dtype=dtype, adapter=str(adapter))  # type: ignore[arg-type]
    report = finish(job.shard(str(base), str(out), options))
    before, after = tensors(base), tensors(out)
    really = [each for each in after if not torch.equal(before[each].float(), after[each].float())]
    assert report.plan.merged is not None
    assert report.plan.merged.changed == len(really)
    assert report.verification.identical and report.verification.merged == report.plan.merged
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


@pytest.mark.parametrize("is_fused", [True, False])
@pytest.mark.parametrize("name", UNSLOTH)
def test_experts_of_unsloth_become_what_peft_makes_of_the_same_sum(name: str, is_fused: bool, tmp_path: Path) -> None:
    parameters, marks = UNSLOTH[name]
    case = Case(
        "qwen3_moe", {"target_modules": ["q_proj"], "target_parameters": BOTH}, edit=fused if is_fused else None
    )
    base, adapter, peft = build(case, tmp_path)
    before = merged(base, adapter, tmp_path / "before")
    by_expert(4, *(one.rpartition(".")[2] for one in parameters), **marks)(adapter)
    ours = merged(base, adapter, tmp_path / "out")
    assert differences(ours, before) == {} and differences(ours, tensors(peft)) == {}


def test_where_the_shards_are_cut_changes_no_bit(tmp_path: Path) -> None:
    base, adapter, _ = build(CASES["large"], tmp_path)
    small = merged(base, adapter, tmp_path / "small", max_shard_size="100kB", strategy="blocks")
    assert differences(small, merged(base, adapter, tmp_path / "one", max_shard_size="single-file")) == {}
