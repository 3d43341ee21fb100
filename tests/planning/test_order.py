"""The natural order is that of transformers, any names have one, and scales follow their weights in that of a class."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from sharding import job
from sharding.core.options import Options
from sharding.core.values import Plan
from sharding.planning.order import natural_key
from tests import quantized


@given(st.lists(st.text("ab.0123456789é", max_size=10)))
def test_natural_order_is_that_of_transformers(names: list[str]) -> None:
    from transformers.core_model_loading import dot_natural_key

    assert sorted(names, key=natural_key) == sorted(names, key=dot_natural_key)


@given(st.lists(st.text("aé.9²٣१½\0\n\U0001d7d8\ud800", max_size=10)))
def test_any_names_have_an_order(names: list[str]) -> None:
    """A number of five thousand digits is ordered as a word."""
    assert sorted(map(natural_key, names)) == [natural_key(name) for name in sorted(names, key=natural_key)]
    assert sorted(["b", "9" * 5000, "8"], key=natural_key) == ["8", "9" * 5000, "b"]


def in_order_of_class(source: Path) -> Plan:
    """The plan that has a shard for each tensor, in the order of transformers."""
    return job.plan(str(source), Options("1B", order="transformers"))[1]


def names_of(plan: Plan) -> list[str]:
    assert all(len(shard.tensors) == 1 for shard in plan.shards)
    return [shard.tensors[0].name for shard in plan.shards]


@pytest.mark.parametrize("intermediate_size", [384, 392])
def test_a_scale_comes_right_after_its_weight(intermediate_size: int, tmp_path: Path) -> None:
    source = quantized.save_fp8("qwen3", tmp_path / "source", intermediate_size=intermediate_size)
    quantized.build("qwen3", tmp_path / "ordinary", intermediate_size=intermediate_size)
    plan = in_order_of_class(source)
    stored = {tensor.name for tensor in job.inspect(str(source)).tensors}
    pairs = ([name, f"{name}_scale_inv"] for name in names_of(in_order_of_class(tmp_path / "ordinary")))
    assert names_of(plan) == [name for pair in pairs for name in pair if name in stored]
    assert len(stored) == 39
    assert {finding.code for finding in plan.findings} == {"oversized-tensor"}


@pytest.mark.parametrize("method", quantized.BESIDE)
def test_what_stands_for_a_weight_is_where_the_weight_would_be(method: str, tmp_path: Path) -> None:
    source = quantized.save_beside(method, "qwen3", tmp_path / "source")
    ordinary = quantized.build("qwen3", tmp_path / "ordinary")[1]
    plan = in_order_of_class(source)
    stored = {tensor.name for tensor in job.inspect(str(source)).tensors}
    wanted = []
    for name in names_of(in_order_of_class(tmp_path / "ordinary")):
        module = name.removesuffix("weight")
        beside = {f"{module}{last}" for last in quantized.BESIDE[method]} - {name}
        wanted += [*({name} & stored), *sorted(beside & stored, key=natural_key)]
    assert names_of(plan) == wanted and len(wanted) > len(ordinary)
    assert {finding.code for finding in plan.findings} == {"oversized-tensor"}


@pytest.mark.parametrize("model_type", ["qwen3_moe", "deepseek_v3", "gpt_oss"])
def test_scales_of_experts_are_no_strangers_to_the_class(model_type: str, tmp_path: Path) -> None:
    save = quantized.save_mxfp4 if model_type == "gpt_oss" else lambda folder: quantized.save_fp8(model_type, folder)
    assert job.plan(str(save(tmp_path / "source")), Options("1GB", order="transformers"))[1].findings == ()


def test_what_only_looks_like_a_scale_comes_last(tmp_path: Path) -> None:
    """Nothing beside it is quantized, or the class has no weight of that name."""
    source = quantized.save_fp8("qwen3", tmp_path / "source")
    others = ["extra.weight_scale_inv", "model.layers.0.input_layernorm.scale", "model.norm.weight_scale"]
    tensors = load_file(source / "model.safetensors") | {name: torch.ones(1) for name in others}
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    plan = in_order_of_class(source)
    (finding,) = (finding for finding in plan.findings if finding.code != "oversized-tensor")
    assert (finding.code, "2 tensors" in finding.message) == ("not-saved-by-class", True)
    assert names_of(plan)[-2:] == others[:2]
