"""The ranks of a pipeline hold every tensor once, each in files of its own. No files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharding.core.errors import UsageError
from sharding.core.options import Options
from sharding.core.values import Tensor
from sharding.planning.order import blocks_around
from tests.planning.tensors import STRATEGIES, TENSORS, in_ranks, planned


@given(tensors=TENSORS, limit=st.integers(1, 300), strategy=STRATEGIES)
def test_every_tensor_is_in_one_shard_none_is_empty_and_the_limit_holds(
    tensors: list[Tensor], limit: int, strategy: str
) -> None:
    plan = planned(tensors, limit, strategy)
    placed = sorted(entry.name for shard in plan.shards for entry in shard.tensors)
    assert placed == sorted(entry.name for entry in tensors)
    assert all(shard.tensors for shard in plan.shards)
    assert all(len(shard.tensors) == 1 for shard in plan.shards if shard.bytes > limit)


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


@pytest.mark.parametrize("strategy", ["pp", "pp:0", "pp:1", "pp:-1", "pp:x", "layers", "pp:99999"])
def test_an_unknown_strategy_is_refused(strategy: str) -> None:
    with pytest.raises(UsageError, match="strategy"):
        Options(100, strategy=strategy)
