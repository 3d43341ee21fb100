"""A block stays whole, whether names show it or transformers knows it, and each rank of a pipeline has its own."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharding import job
from sharding.core.hints import ModelHints, SavedTensor
from sharding.core.options import Options
from sharding.core.origin import Place
from sharding.core.values import Component, Content, Tensor
from sharding.model_class.architecture import hints_for
from sharding.planning.order import blocks_around, natural_key
from sharding.planning.plan import plan_shards
from tests import models
from tests.planning.tensors import STRATEGIES, TENSORS, in_ranks, planned, tensor
from tests.tensors import plan_of, stored_tensor


@given(tensors=TENSORS, limit=st.integers(1, 300), strategy=STRATEGIES)
def test_every_tensor_is_in_one_shard_and_only_what_alone_exceeds_the_limit_is_cut_or_exceeds_it(
    tensors: list[Tensor], limit: int, strategy: str
) -> None:
    plan = planned(tensors, limit, strategy)
    placed = sorted(entry.name for shard in plan.shards for entry in shard.tensors)
    assert placed == sorted(entry.name for entry in tensors)
    assert all(shard.tensors for shard in plan.shards)
    assert all(len(shard.tensors) == 1 for shard in plan.shards if shard.bytes > limit)
    inside: dict[str, list[Tensor]] = {}
    for entry in tensors if strategy != "size" else ():
        for block in blocks_around(entry.name, {}):
            inside.setdefault(block, []).append(entry)
    for block, entries in inside.items():
        if sum(entry.bytes for entry in entries) <= limit:
            assert len({plan.weight_map[entry.name] for entry in entries}) == 1, block


@given(tensors=TENSORS, limit=st.integers(1, 300), count=st.integers(2, 6))
def test_stages_hold_everything_once_each_in_files_of_its_own(tensors: list[Tensor], limit: int, count: int) -> None:
    plan = planned(tensors, limit, f"pp:{count}")
    assert len(plan.stages) == count
    assert [file for stage in plan.stages for file in stage.files] == [shard.file for shard in plan.shards]
    size = {shard.file: shard.bytes for shard in plan.shards}
    assert all(stage.bytes == sum(size[file] for file in stage.files) for stage in plan.stages)
    blocks = [block for stage in plan.stages for block in stage.blocks]
    assert len(blocks) == len(set(blocks))
    loads = in_ranks([entry.name for entry in tensors], count).loads
    of_all = {entry.name for entry in tensors}.difference(*loads)
    for rank, stage in enumerate(plan.stages):
        held = {entry.name for shard in plan.shards if shard.file in stage.files for entry in shard.tensors}
        assert {(blocks_around(name, {}) or [name])[0] for name in held} == {*stage.blocks, *stage.others}
        # What all ranks load is stored with the first, and every other one is told in which file.
        assert held == (loads[rank] if rank else loads[rank] | of_all)
        needed = {tied.tensor: (tied.file, tied.used_as) for tied in stage.also_needs}
        assert needed == ({name: (plan.weight_map[name], (name,)) for name in of_all} if rank else {})


@given(tensors=TENSORS, limit=st.integers(1, 300))
def test_blocks_follow_the_natural_order(tensors: list[Tensor], limit: int) -> None:
    plan = plan_shards(tensors, Options(limit, strategy="blocks"))
    position = {shard.file: number for number, shard in enumerate(plan.shards)}
    fitting = [shard for shard in plan.shards if shard.bytes < limit]
    names = sorted((entry.name for shard in fitting for entry in shard.tensors), key=natural_key)
    whole = {name: (blocks_around(name, {}) or [name])[0] for name in names}
    order = [position[plan.weight_map[name]] for name in names if whole[name] == name]
    assert order == sorted(order)


def test_what_transformers_never_splits_is_a_block_even_without_a_number() -> None:
    tensors = [tensor("patches.a", 5), tensor("patches.b", 5), tensor("layers.0.w", 5)]
    hints = ModelHints(
        "M", (SavedTensor("patches.a", "U8", 0, "patches"), SavedTensor("patches.b", "U8", 1, "patches"))
    )
    plan = plan_shards(tensors, Options(12, strategy="blocks"), hints={"": hints})
    assert plan.weight_map["patches.a"] == plan.weight_map["patches.b"] != plan.weight_map["layers.0.w"]


def test_a_scale_is_in_the_block_of_its_weight() -> None:
    stored = [
        stored_tensor("model.patches.a.weight", "F8_E4M3", (5,), "f", 0, 5),
        stored_tensor("model.patches.a.weight_scale_inv", "F32", (1,), "f", 5, 9),
        stored_tensor("model.patches.b.weight", "BF16", (5,), "f", 9, 19),
    ]
    names = [tensor.name for tensor in stored if "scale" not in tensor.name]
    hints = ModelHints("M", tuple(SavedTensor(name, "BF16", n, "model.patches") for n, name in enumerate(names)))
    checkpoint = Content(Place("folder", "model", "1"), tuple(stored), (Component(),), (), (), ())
    (shard,) = plan_of(checkpoint, Options(19, strategy="blocks"), {"": hints}).shards
    assert len(shard.tensors) == 3
    # With its scale the block is larger than this limit, so it is cut.
    file_of = plan_of(checkpoint, Options(18, strategy="blocks"), {"": hints}).weight_map
    assert file_of[names[0]] == file_of[f"{names[0]}_scale_inv"] != file_of[names[1]]


@pytest.mark.parametrize("name", ["llama", "mixtral", "t5", "vit", "dinov2", "gpt2", "gpt-neox", "bert"])
def test_blocks_that_transformers_knows_are_those_that_names_show(name: str, tmp_path: Path) -> None:
    source = models.save(name, tmp_path / "source")
    checkpoint, options = job.inspect(str(source)), Options("60kB", strategy="blocks")
    known = {saved.name: saved.block for saved in hints_for(checkpoint, options)[""].saved if saved.block}
    numbered = {name: block for name, block in known.items() if block.rpartition(".")[2].isdecimal()}
    by_name = {tensor.name: blocks_around(tensor.name, {})[:1] for tensor in checkpoint.tensors}
    assert {name: [block] for name, block in numbered.items()} == {n: blocks for n, blocks in by_name.items() if blocks}
    assert len(set(numbered.values())) >= 12
