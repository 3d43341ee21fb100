"""Stages are as balanced as they can be, in the order of a forward pass. No files."""

from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from sharding import job
from sharding.core.errors import UsageError
from sharding.core.options import Options
from sharding.core.values import TensorEntry
from sharding.planning.blocks import blocks_around
from sharding.planning.order import natural_key
from sharding.planning.pipeline import in_pipeline_order, unit_that_uses
from sharding.planning.plan import plan_shards
from sharding.planning.stages import cut_stages
from sharding.report.schema import Report
from tests import models
from tests.planning.tensors import STRATEGIES, TENSORS, planned, tensor


@given(tensors=TENSORS, limit=st.integers(1, 300), strategy=STRATEGIES)
def test_every_tensor_is_in_one_shard_none_is_empty_and_the_limit_holds(
    tensors: list[TensorEntry], limit: int, strategy: str
) -> None:
    plan = planned(tensors, limit, strategy)
    if plan is None:
        return
    placed = sorted(entry.name for shard in plan.shards for entry in shard.tensors)
    assert placed == sorted(entry.name for entry in tensors)
    assert all(shard.tensors for shard in plan.shards)
    assert all(len(shard.tensors) == 1 for shard in plan.shards if shard.bytes > limit)


@given(sizes=st.lists(st.integers(0, 50), min_size=1, max_size=9), data=st.data())
def test_no_cut_into_stages_has_a_smaller_largest_stage(sizes: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(sizes)))
    runs = cut_stages(sizes, count)
    assert [index for run in runs for index in run] == list(range(len(sizes)))
    assert len(runs) == count and all(runs)
    best = min(
        max(sum(sizes[a:b]) for a, b in zip((0, *cuts), (*cuts, len(sizes)), strict=True))
        for cuts in combinations(range(1, len(sizes)), count - 1)
    )
    assert max(sum(sizes[index] for index in run) for run in runs) == best


@given(tensors=TENSORS, limit=st.integers(1, 300), count=st.integers(1, 6))
def test_stages_hold_everything_once_each_in_files_of_its_own(
    tensors: list[TensorEntry], limit: int, count: int
) -> None:
    plan = planned(tensors, limit, f"stages:{count}")
    if plan is None:
        return
    assert len(plan.stages) == count
    assert [file for stage in plan.stages for file in stage.files] == [shard.file for shard in plan.shards]
    size = {shard.file: shard.bytes for shard in plan.shards}
    assert all(stage.bytes == sum(size[file] for file in stage.files) for stage in plan.stages)
    blocks = [block for stage in plan.stages for block in stage.blocks]
    assert len(blocks) == len(set(blocks))
    for stage in plan.stages:
        held = {entry.name for shard in plan.shards if shard.file in stage.files for entry in shard.tensors}
        assert {(blocks_around(name, {}) or [name])[0] for name in held} == {*stage.blocks, *stage.others}


def pipeline(*names: str) -> list[str]:
    units = in_pipeline_order(sorted((tensor(name, 1) for name in names), key=lambda t: natural_key(t.name)), {})
    return [unit.block or ",".join(entry.name for entry in unit.tensors) for unit in units]


@pytest.mark.parametrize(
    "order",
    [
        ["model.embed_tokens.weight", "model.layers.0", "model.layers.10", "model.norm.weight,lm_head.weight"],
        ["transformer.wpe.weight,transformer.wte.weight", "transformer.h.0", "transformer.ln_f.weight"],
        ["gpt_neox.embed_in.weight", "gpt_neox.layers.0", "gpt_neox.final_layer_norm.bias,embed_out.weight"],
        ["embeddings.LayerNorm.weight,embeddings.word_embeddings.weight", "encoder.layer.0", "pooler.dense.weight"],
        ["shared.weight", "encoder.block.0", "encoder.final_layer_norm.weight", "decoder.block.0",
         "decoder.final_layer_norm.weight,lm_head.weight"],
        ["vision_tower.embeddings.patch_embedding.weight", "vision_tower.encoder.layers.0",
         "vision_tower.post_layernorm.weight", "language_model.model.embed_tokens.weight,multi_modal_projector.linear_1.weight",
         "language_model.model.layers.0", "language_model.lm_head.weight,language_model.model.norm.weight"],
        ["cls_token,pos_embed", "blocks.0", "blocks.1", "head.weight,norm.weight"],
        ["backbone.embeddings.weight", "backbone.layers.0", "backbone.norm_f.weight,lm_head.weight"],
    ],
    ids=lambda order: order[1],
)  # fmt: skip
def test_embeddings_come_before_the_blocks_of_a_pipeline_and_heads_after(order: list[str]) -> None:
    names = [name if name.endswith(("weight", "bias", "token", "embed")) else f"{name}.w" for unit in order for name in unit.split(",")]  # fmt: skip
    found = pipeline(*names)
    assert [set(unit.split(",")) for unit in found] == [set(unit.split(",")) for unit in order]


def test_towers_stand_in_the_order_in_which_a_model_runs_them() -> None:
    names = ["decoder.blocks.0", "layers.0", "qformer.layers.0", "vision.blocks.0"]
    assert pipeline(*(f"{name}.w" for name in names)) == [names[3], names[2], names[1], names[0]]


def test_a_weight_in_no_file_is_used_where_others_of_its_kind_are() -> None:
    names = ["wte.weight", "h.0.w", "h.1.w", "ln_f.weight"]
    units = in_pipeline_order([tensor(name, 1) for name in names], {})
    assert [unit.block for unit in units] == ["", "h.0", "h.1", ""]
    found = {name: unit_that_uses(name, units) for name in ("wpe.weight", "h.1.bias", "lm_head.weight")}
    assert found == {"wpe.weight": 0, "h.1.bias": 2, "lm_head.weight": 3}


def test_more_stages_than_blocks_are_refused() -> None:
    layers = [tensor(f"layers.{number}.w", 3) for number in range(3)]
    assert len(plan_shards(layers, Options(100, strategy="stages:3")).stages) == 3
    with pytest.raises(UsageError, match="4 stages need as many blocks, and the names of the tensors show 3"):
        plan_shards(layers, Options(100, strategy="stages:4"))


@pytest.mark.parametrize("strategy", ["stages", "stages:0", "stages:-1", "stages:x", "layers", "stages:99999"])
def test_an_unknown_strategy_is_refused(strategy: str) -> None:
    with pytest.raises(UsageError, match="strategy"):
        plan_shards([tensor("layers.0.w", 3)], Options(100, strategy=strategy))


def test_a_machine_of_a_pipeline_needs_the_files_of_its_stage_only(tmp_path: Path) -> None:
    source = models.save("llama", tmp_path / "source")
    *_, report = job.shard(str(source), str(tmp_path / "out"), Options("40kB", strategy="stages:3"))
    assert isinstance(report, Report)
    stages = report.plan.stages
    assert [len(stage.files) > 1 for stage in stages] == [True] * 3
    (tmp_path / "machine").mkdir()
    for file in stages[1].files:  # all that this machine downloads
        (tmp_path / "machine" / file).write_bytes((tmp_path / "out" / file).read_bytes())
    held = {key: value for path in (tmp_path / "machine").iterdir() for key, value in load_file(path).items()}
    model = models.build("llama")
    layers = [int(block.rpartition(".")[2]) for block in stages[1].blocks]
    for layer in layers:
        prefix = f"model.layers.{layer}."
        model.model.layers[layer].load_state_dict({key.removeprefix(prefix): held.pop(key) for key in list(held) if key.startswith(prefix)})  # fmt: skip
    assert layers and not held
    text = (tmp_path / "out/README.md").read_text()
    assert "## Pipeline stages" in text and f"`{stages[1].files[0]}`" in text
