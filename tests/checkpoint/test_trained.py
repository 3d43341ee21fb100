"""What of a training run is weights, what they are called, and what a base says of them."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.numpy import save_file

from sharding.checkpoint.trained import short_names
from sharding.core.errors import SourceError
from sharding.formats.names import is_training_state, trained_folder
from sharding.job import inspect
from tests.conftest import write_checkpoint
from tests.folders import said

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["module.model.norm.weight", "module.lm_head.weight"], ["model.norm.weight", "lm_head.weight"]),
        (["state_dict.a", "state_dict.b.c"], ["a", "b.c"]),
        (["model.model.norm.weight", "model.model.embed_tokens.weight"], ["model.norm.weight", "model.embed_tokens.weight"]),
        (["model.norm.weight", "model.embed_tokens.weight"], ["model.norm.weight", "model.embed_tokens.weight"]),
        (["_orig_mod.model.a", "_orig_mod.lm_head.b"], ["model.a", "lm_head.b"]),
        (["model.language_model.a", "model.visual.b"], ["model.language_model.a", "model.visual.b"]),
        (["module.a", "b"], ["module.a", "b"]),
    ],
)  # fmt: skip
def test_what_wrappers_put_into_names_is_taken_off(names: list[str], short: list[str]) -> None:
    assert list(short_names(names).values()) == short


@pytest.mark.parametrize(
    ("state", "names"),
    [
        ({"model": {"w": 1.0}, "optimizer": {"w": 1.0}}, {"w"}),
        ({"app": {"model": {"model.w": 1.0}, "optim": {"state": {"w": 1.0}}}}, {"model.w"}),
        ({"model.layers.0.w": 1.0, "lm_head.w": 1.0}, {"model.layers.0.w", "lm_head.w"}),
        ({"model": {"model.w": 1.0, "model.v": 1.0}, "lr_scheduler": {"x": 1.0}}, {"model.w", "model.v"}),
        ({"state_dict": {"module.w": 1.0}}, {"w"}),
        ({"tok.weight": 1.0, "optimizer.state.tok.weight.step": 1.0}, {"tok.weight"}),
    ],
)
def test_weights_are_told_from_the_state_of_the_training(
    state: dict[str, object], names: set[str], tmp_path: Path
) -> None:
    def filled(value: object) -> object:
        return {k: filled(v) for k, v in value.items()} if isinstance(value, dict) else torch.full((3,), value)

    dcp.save(filled(state), storage_writer=dcp.FileSystemWriter(tmp_path), no_dist=True)
    assert {tensor.name for tensor in inspect(str(tmp_path)).tensors} == names


def test_a_folder_of_ranks_is_found_where_trainers_put_it() -> None:
    accelerate = ["pytorch_model_fsdp_0/.metadata", "pytorch_model_fsdp_0/__0_0.distcp", "optimizer_0/.metadata"]
    assert trained_folder([*accelerate, "random_states_0.pkl", "config.json"]) == "pytorch_model_fsdp_0/"
    assert trained_folder([".metadata", "__0_0.distcp"]) == ""
    assert trained_folder(["sharded/shard-00001-model-00001-of-00001.safetensors"]) == "sharded/"
    assert trained_folder(["model.safetensors", "sharded/shard-00001-model-00001-of-00001.safetensors"]) is None
    assert trained_folder(["a/.metadata", "b/.metadata"]) is None
    assert trained_folder(["model-00001-of-00002.safetensors", "config.json"]) is None


def test_files_that_only_training_needs_are_known_by_name() -> None:
    state = ["optimizer_0/__0_0.distcp", "random_states_3.pkl", "scheduler.bin", "rng_state_1.pth", "optimizer.pt"]
    assert all(map(is_training_state, [*state, "trainer_state.json", "training_args.bin"]))
    assert not any(map(is_training_state, ["config.json", "model.safetensors", "tokenizer.json", "optimizer.py"]))


def rank_file(folder: Path, rank: int, tensors: dict[str, np.ndarray], info: str | None) -> None:
    metadata = {"DCP_VERSION": "1.0", **({} if info is None else {"DCP_SHARDING_INFO": info})}
    save_file(tensors, folder / f"shard-{rank:05d}-model-00001-of-00001.safetensors", metadata=metadata)


@pytest.mark.parametrize(
    ("info", "problem"),
    [
        (None, "does not say which pieces it holds"),
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "nothing of tensors"),
        ('{"w": 3}', "where its piece of w begins"),
        ('{"w": {"saved_offsets": [-1]}}', "where its piece of w begins"),
        ('{"w": {"saved_offsets": [1.5]}}', "where its piece of w begins"),
        ('{"w": {"saved_offsets": [true]}}', "where its piece of w begins"),
        ('{"w": {"saved_offsets": [0, 0]}}', "different numbers of dimensions"),
        ('{"w": {"saved_offsets": [9223372036854775807]}}', "are missing|overflows"),
    ],
)
def test_what_a_header_says_of_its_pieces_must_make_sense(info: str | None, problem: str, tmp_path: Path) -> None:
    rank_file(tmp_path, 1, {"w": np.ones(4, "f4")}, info)
    with pytest.raises(SourceError, match=problem):
        inspect(str(tmp_path))


def test_pieces_of_two_dtypes_are_refused(tmp_path: Path) -> None:
    rank_file(tmp_path, 1, {"w": np.ones(4, "f4")}, '{"w": {"saved_offsets": [0]}}')
    rank_file(tmp_path, 2, {"w": np.ones(4, "f2")}, '{"w": {"saved_offsets": [4]}}')
    with pytest.raises(SourceError, match="w is F32 in one file and F16 in another"):
        inspect(str(tmp_path))


def test_a_rank_that_held_nothing_of_a_number_is_told(tmp_path: Path) -> None:
    rank_file(tmp_path, 1, {"w": np.ones(4, "f4")}, '{"w": {"saved_offsets": [0]}}')
    rank_file(tmp_path, 3, {"w": np.ones(4, "f4")}, '{"w": {"saved_offsets": [4]}}')
    assert "shard-00002-model-00001-of-00001" in said(tmp_path)["ranks-uneven"]
    assert inspect(str(tmp_path)).tensors[0].shape == (8,)


def test_an_ordinary_checkpoint_beside_files_of_ranks_is_the_one_taken(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {"model.safetensors": {"w": np.zeros(3, "f4")}}, index=False)
    rank_file(tmp_path, 1, {"w": np.ones(4, "f4")}, '{"w": {"saved_offsets": [0]}}')
    checkpoint = inspect(str(tmp_path))
    assert [file.path for file in checkpoint.weight_files] == ["model.safetensors"] and not checkpoint.of_ranks
