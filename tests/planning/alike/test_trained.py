"""What a training run has saved gets the names and the form of its base."""

from pathlib import Path

import pytest
import torch.distributed.checkpoint as dcp

from sharding.core.errors import SourceError
from tests.planning.alike.models import MODELS, assert_loads, build, published, shapes, shard, words
from tests.promises import promise

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def test_what_the_base_does_not_have_is_kept(tmp_path: Path) -> None:
    state = dict(build("qwen3_moe", 1).state_dict())  # its experts get another form
    state["value_head.weight"] = state["model.norm.weight"] * 2
    dcp.save({"model": state}, storage_writer=dcp.FileSystemWriter(tmp_path / "run"), no_dist=True)
    shard(tmp_path / "run", tmp_path / "out", base=published(build("qwen3_moe"), tmp_path / "base"))
    assert [name for name in shapes(tmp_path / "out") if "value_head" in name]


def test_names_are_not_guessed_where_two_fit_one_of_the_base(tmp_path: Path) -> None:
    state = {f"module.{name}": tensor for name, tensor in build("llama", 1).state_dict().items()}
    state["model.norm.weight"] = state["module.model.norm.weight"] * 2
    dcp.save({"model": state}, storage_writer=dcp.FileSystemWriter(tmp_path / "run"), no_dist=True)
    with pytest.raises(SourceError, match="no class would load them"):
        shard(tmp_path / "run", tmp_path / "out", base=published(build("llama"), tmp_path / "base"))


@promise("docs/formats.md#the-layout-of-an-original")
@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral", "mistral3", "qwen3_vl_moe"])
def test_names_in_memory_become_those_of_the_base(name: str, tmp_path: Path) -> None:
    base, model = published(build(name), tmp_path / "base"), build(name, 1)
    dcp.save({"model": dict(model.state_dict())}, storage_writer=dcp.FileSystemWriter(tmp_path / "run"), no_dist=True)
    report = shard(tmp_path / "run", tmp_path / "out", base=base)
    assert_loads(tmp_path / "out", base, model, MODELS[name][0])
    assert "Names and form are those of" in words(report)
