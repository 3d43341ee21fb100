"""Blocks stay whole, stages are as balanced as they can be, and every tensor has its place. No files."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from sharding import job
from sharding.core.errors import UsageError
from sharding.core.options import Options
from sharding.core.values import ModelHints, Plan, SavedTensor, TensorEntry
from sharding.planning.blocks import blocks_around
from sharding.planning.order import natural_key
from sharding.planning.pipeline import cut_stages, in_pipeline_order
from sharding.planning.plan import plan_shards
from sharding.report.schema import Report
from tests import models


def tensor(name: str, size: int) -> TensorEntry:
    return TensorEntry(name, "U8", (size,), "f", 0, size)


NAMES = st.one_of(
    st.sampled_from(["embed_tokens.weight", "norm.weight", "lm_head.weight", "projector.weight"]),
    st.tuples(
        st.sampled_from(["layers", "encoder.block", "vision.blocks"]),
        st.integers(0, 12),
        st.sampled_from(["attn.w", "mlp.w", "mlp.experts.0.w", "mlp.experts.11.w"]),
    ).map(lambda parts: f"{parts[0]}.{parts[1]}.{parts[2]}"),
)
TENSORS = st.dictionaries(NAMES, st.integers(0, 100), min_size=1, max_size=40).map(
    lambda sizes: [tensor(name, size) for name, size in sizes.items()]
)
STRATEGIES = st.sampled_from(["size", "blocks", "stages:1", "stages:2", "stages:5"])


def planned(tensors: list[TensorEntry], limit: int, strategy: str) -> Plan | None:
    """The plan, or None where there are fewer blocks than stages."""
    try:
        return plan_shards(tensors, Options(limit, strategy=strategy))
    except UsageError:
        blocks = {blocks_around(entry.name, {})[0] for entry in tensors if blocks_around(entry.name, {})}
        assert int(strategy.partition(":")[2]) > len(blocks)
        return None


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


@given(tensors=TENSORS, limit=st.integers(1, 300), strategy=STRATEGIES.filter(lambda strategy: strategy != "size"))
def test_a_block_is_cut_only_if_it_alone_exceeds_the_limit(
    tensors: list[TensorEntry], limit: int, strategy: str
) -> None:
    plan = planned(tensors, limit, strategy)
    if plan is None:
        return
    inside: dict[str, list[TensorEntry]] = {}
    for entry in tensors:
        for block in blocks_around(entry.name, {}):
            inside.setdefault(block, []).append(entry)
    for block, entries in inside.items():
        if sum(entry.bytes for entry in entries) <= limit:
            assert len({plan.weight_map[entry.name] for entry in entries}) == 1, block


@given(tensors=TENSORS, limit=st.integers(1, 300))
def test_blocks_follow_the_natural_order(tensors: list[TensorEntry], limit: int) -> None:
    plan = plan_shards(tensors, Options(limit, strategy="blocks"))
    position = {shard.file: number for number, shard in enumerate(plan.shards)}
    fitting = [shard for shard in plan.shards if shard.bytes < limit]
    names = sorted((entry.name for shard in fitting for entry in shard.tensors), key=natural_key)
    whole = {name: (blocks_around(name, {}) or [name])[0] for name in names}
    order = [position[plan.weight_map[name]] for name in names if whole[name] == name]
    assert order == sorted(order)


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


def test_more_stages_than_blocks_are_refused() -> None:
    layers = [tensor(f"layers.{number}.w", 3) for number in range(3)]
    assert len(plan_shards(layers, Options(100, strategy="stages:3")).stages) == 3
    with pytest.raises(UsageError, match="4 stages need as many blocks, and the names of the tensors show 3"):
        plan_shards(layers, Options(100, strategy="stages:4"))


@pytest.mark.parametrize("strategy", ["stages", "stages:0", "stages:-1", "stages:x", "layers", "stages:99999"])
def test_an_unknown_strategy_is_refused(strategy: str) -> None:
    with pytest.raises(UsageError, match="strategy"):
        plan_shards([tensor("layers.0.w", 3)], Options(100, strategy=strategy))


def test_what_transformers_never_splits_is_a_block_even_without_a_number() -> None:
    tensors = [tensor("patches.a", 5), tensor("patches.b", 5), tensor("layers.0.w", 5)]
    hints = ModelHints(
        "M", (SavedTensor("patches.a", "U8", 0, "patches"), SavedTensor("patches.b", "U8", 1, "patches"))
    )
    plan = plan_shards(tensors, Options(12, strategy="blocks"), hints=hints)
    assert plan.weight_map["patches.a"] == plan.weight_map["patches.b"] != plan.weight_map["layers.0.w"]


@pytest.mark.usefixtures("answers_here")
@pytest.mark.parametrize("name", ["llama", "mixtral", "t5", "vit", "dinov2", "gpt2", "gpt-neox", "bert"])
def test_blocks_that_transformers_knows_are_those_that_names_show(name: str, tmp_path: Path) -> None:
    source = models.save(name, tmp_path / "source")
    by_name = job.plan_checkpoint(job.inspect(str(source)), Options("60kB", strategy="stages:4"))
    known = job.plan(str(source), Options("60kB", strategy="stages:4"))[1]
    assert tuple(replace(stage, also_needs=()) for stage in known.stages) == by_name.stages
    assert sum(len(stage.blocks) for stage in known.stages) >= 12


@pytest.mark.usefixtures("answers_here")
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
