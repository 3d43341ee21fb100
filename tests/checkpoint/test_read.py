"""What a folder holds: which files are the weights, and what is said about the rest."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from sharding.checkpoint.read import read_checkpoint
from sharding.core.errors import HeaderError, SourceError
from sharding.job import inspect
from sharding.recipes.stored import place_of
from sharding.storage.folder_source import open_folder as open_inputs
from tests.conftest import random_tensors, write_checkpoint

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


def codes(folder: Path) -> list[str]:
    return [finding.code for finding in inspect(str(folder)).findings]


def test_a_sharded_checkpoint_is_read_from_its_headers(checkpoint: Path) -> None:
    tensors, source = random_tensors(), open_inputs(str(checkpoint))
    found = read_checkpoint(source)
    assert {tensor.name: tensor.shape for tensor in found.tensors} == {
        name: array.shape for name, array in tensors.items()
    }
    for tensor in found.tensors:
        assert b"".join(source.read(*place_of(tensor)[1:])) == tensors[tensor.name].tobytes()
    assert found.total_bytes == sum(array.nbytes for array in tensors.values())
    assert found.architecture == "LlamaForCausalLM"
    assert [file.path for file in found.weight_files] == [ONE, TWO]
    assert [file.path for file in found.side_files] == ["config.json"]
    assert found.findings == ()


@pytest.mark.parametrize("name", ["model.safetensors", "weights.safetensors"])
def test_a_single_file_of_any_name_needs_no_index(name: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "one", {name: random_tensors()}, index=False)
    assert [file.path for file in inspect(str(folder)).weight_files] == [name] and codes(folder) == []


def test_a_single_file_wins_over_an_index_and_that_is_said(checkpoint: Path) -> None:
    save_file({"only": np.zeros(3, np.float32)}, checkpoint / "model.safetensors")
    found = inspect(str(checkpoint))
    assert [tensor.name for tensor in found.tensors] == ["only"]
    assert [finding.code for finding in found.findings] == ["several-checkpoints", "left-out", "left-out"]


def test_a_missing_shard_is_refused(checkpoint: Path) -> None:
    (checkpoint / TWO).unlink()
    with pytest.raises(SourceError, match=f"1 of the 2 files .* missing: {TWO}"):
        inspect(str(checkpoint))


def test_shards_without_an_index_are_taken_when_they_are_complete(checkpoint: Path) -> None:
    (checkpoint / INDEX).unlink()
    assert codes(checkpoint) == ["no-index"]
    (checkpoint / ONE).unlink()
    missing = r"1 of the 2 shards are missing, and there is no index: model-0000\d-of-00002\.safetensors\."
    with pytest.raises(SourceError, match=missing):
        inspect(str(checkpoint))


def test_shards_of_two_checkpoints_without_an_index_are_refused(checkpoint: Path) -> None:
    (checkpoint / INDEX).unlink()
    save_file({"a": np.zeros(3)}, checkpoint / "model-00001-of-00003.safetensors")
    with pytest.raises(SourceError, match="several checkpoints"):
        inspect(str(checkpoint))


def test_a_stale_shard_is_left_out_and_that_is_said(checkpoint: Path) -> None:
    save_file({"old": np.zeros(3)}, checkpoint / "model-00003-of-00003.safetensors")
    found = inspect(str(checkpoint))
    assert "old" not in {tensor.name for tensor in found.tensors}
    (finding,) = found.findings
    assert "model-00003-of-00003.safetensors" in finding.message


def test_a_tensor_in_two_files_is_refused(checkpoint: Path) -> None:
    save_file({"layers.0.weight": np.zeros(3)}, checkpoint / TWO)
    for reason in ("libraries load the one in", "No index says which"):
        with pytest.raises(SourceError, match=f"layers.0.weight is in two files: .* and .*{reason}"):
            inspect(str(checkpoint))
        (checkpoint / INDEX).unlink(missing_ok=True)


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_a_truncated_file_is_refused(checkpoint: Path, kept: int) -> None:
    path = checkpoint / ONE
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(HeaderError, match=ONE):
        inspect(str(checkpoint))


def test_metadata_of_all_files_are_kept_and_a_conflict_is_reported(checkpoint: Path) -> None:
    save_file({"a": np.zeros(3)}, checkpoint / ONE, metadata={"format": "pt", "torchao": "1", "who": "one"})
    save_file({"b": np.zeros(3)}, checkpoint / TWO, metadata={"format": "pt", "who": "two"})
    (checkpoint / INDEX).unlink()
    found = inspect(str(checkpoint))
    assert found.components[0].metadata == {"format": "pt", "torchao": "1", "who": "one"}
    assert [finding.code for finding in found.findings] == ["no-index", "metadata-conflict"]
