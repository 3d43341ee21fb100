"""A block stays whole, whether names show it or transformers knows it. No files."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharding import job
from sharding.core.hints import ModelHints, SavedTensor
from sharding.core.options import Options
from sharding.core.values import Checkpoint, Component, RepoRef, Tensor
from sharding.model_class.architecture import hints_for
from sharding.planning.order import blocks_around, known_blocks, natural_key
from sharding.planning.plan import plan_checkpoint, plan_shards
from tests import models
from tests.planning.tensors import STRATEGIES, TENSORS, planned, tensor
from tests.tensors import stored_tensor


@given(tensors=TENSORS, limit=st.integers(1, 300), strategy=STRATEGIES.filter(lambda strategy: strategy != "size"))
def test_a_block_is_cut_only_if_it_alone_exceeds_the_limit(tensors: list[Tensor], limit: int, strategy: str) -> None:
    plan = planned(tensors, limit, strategy)
    inside: dict[str, list[Tensor]] = {}
    for entry in tensors:
        for block in blocks_around(entry.name, {}):
            inside.setdefault(block, []).append(entry)
    for block, entries in inside.items():
        if sum(entry.bytes for entry in entries) <= limit:
            assert len({plan.weight_map[entry.name] for entry in entries}) == 1, block


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
    plan = plan_shards(tensors, Options(12, strategy="blocks"), hints=hints)
    assert plan.weight_map["patches.a"] == plan.weight_map["patches.b"] != plan.weight_map["layers.0.w"]


def test_a_scale_is_in_the_block_of_its_weight() -> None:
    stored = [
        stored_tensor("model.patches.a.weight", "F8_E4M3", (5,), "f", 0, 5),
        stored_tensor("model.patches.a.weight_scale_inv", "F32", (1,), "f", 5, 9),
        stored_tensor("model.patches.b.weight", "BF16", (5,), "f", 9, 19),
    ]
    names = [tensor.name for tensor in stored if "scale" not in tensor.name]
    hints = ModelHints("M", tuple(SavedTensor(name, "BF16", n, "model.patches") for n, name in enumerate(names)))
    checkpoint = Checkpoint(RepoRef("folder", "model", "1"), tuple(stored), (Component(),), (), (), ())
    (shard,) = plan_checkpoint(checkpoint, Options(19, strategy="blocks"), {"": hints}).shards
    assert len(shard.tensors) == 3
    # With its scale the block is larger than this limit, so it is cut.
    file_of = plan_checkpoint(checkpoint, Options(18, strategy="blocks"), {"": hints}).weight_map
    assert file_of[names[0]] == file_of[f"{names[0]}_scale_inv"] != file_of[names[1]]


@pytest.mark.parametrize("name", ["llama", "mixtral", "t5", "vit", "dinov2", "gpt2", "gpt-neox", "bert"])
def test_blocks_that_transformers_knows_are_those_that_names_show(name: str, tmp_path: Path) -> None:
    source = models.save(name, tmp_path / "source")
    checkpoint, options = job.inspect(str(source)), Options("60kB", strategy="blocks")
    known = known_blocks(hints_for(checkpoint, options)[""])
    numbered = {name: block for name, block in known.items() if block.rpartition(".")[2].isdecimal()}
    by_name = {tensor.name: blocks_around(tensor.name, {})[:1] for tensor in checkpoint.tensors}
    assert {name: [block] for name, block in numbered.items()} == {n: blocks for n, blocks in by_name.items() if blocks}
    assert len(set(numbered.values())) >= 12
