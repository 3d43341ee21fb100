"""What a folder holds: which files are the weights, and what is said about the rest."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from sharding.checkpoint.read import read_checkpoint
from sharding.core.errors import HeaderError, SourceError
from sharding.job import inspect
from sharding.storage.folder_source import open_folder as open_source
from tests.conftest import random_tensors, write_checkpoint

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


def codes(folder: Path) -> list[str]:
    return [finding.code for finding in inspect(str(folder)).findings]


def edit_index(folder: Path, change: Callable[[dict[str, str]], object]) -> None:
    path = folder / INDEX
    document = json.loads(path.read_text())
    change(document["weight_map"])
    path.write_text(json.dumps(document))


def test_a_sharded_checkpoint_is_read_from_its_headers(checkpoint: Path) -> None:
    found = inspect(str(checkpoint))
    tensors = random_tensors()
    assert {tensor.name: tensor.shape for tensor in found.tensors} == {
        name: array.shape for name, array in tensors.items()
    }
    assert found.total_bytes == sum(array.nbytes for array in tensors.values())
    assert found.architecture == "LlamaForCausalLM"
    assert [file.path for file in found.weight_files] == [ONE, TWO]
    assert [file.path for file in found.side_files] == ["config.json"]
    assert found.findings == ()


def test_the_bytes_of_a_tensor_are_where_its_entry_says(checkpoint: Path) -> None:
    source = open_source(str(checkpoint))
    tensors = random_tensors()
    for tensor in read_checkpoint(source).tensors:
        data = b"".join(source.read(tensor.file, tensor.start_byte, tensor.end_byte))
        assert data == tensors[tensor.name].tobytes()


def test_a_single_file_needs_no_index(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "one", {"model.safetensors": random_tensors()}, index=False)
    assert codes(folder) == []


def test_a_single_file_of_another_name_is_taken(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "one", {"weights.safetensors": random_tensors()}, index=False)
    assert [file.path for file in inspect(str(folder)).weight_files] == ["weights.safetensors"]


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
    with pytest.raises(SourceError, match="1 of the 2 shards are missing"):
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


def test_an_entry_for_the_wrong_file_is_reported_and_the_header_is_right(checkpoint: Path) -> None:
    edit_index(checkpoint, lambda weights: weights.update({"layers.0.weight": TWO}))
    found = inspect(str(checkpoint))
    assert [finding.code for finding in found.findings] == ["index-wrong-file"]
    assert {tensor.name: tensor.file for tensor in found.tensors}["layers.0.weight"] == ONE


def test_a_tensor_that_the_index_does_not_list_is_kept_and_reported(checkpoint: Path) -> None:
    edit_index(checkpoint, lambda weights: weights.pop("layers.0.weight"))
    found = inspect(str(checkpoint))
    assert [finding.code for finding in found.findings] == ["index-unlisted-tensor"]
    assert "layers.0.weight" in {tensor.name for tensor in found.tensors}


def test_a_tensor_that_no_file_holds_is_reported(checkpoint: Path) -> None:
    edit_index(checkpoint, lambda weights: weights.update({"ghost": TWO}))
    assert codes(checkpoint) == ["index-absent-tensor"]


def test_a_tensor_in_two_files_is_refused(checkpoint: Path) -> None:
    save_file({"layers.0.weight": np.zeros(3)}, checkpoint / TWO)
    with pytest.raises(SourceError, match="layers.0.weight is in .* and again in"):
        inspect(str(checkpoint))


@pytest.mark.parametrize(
    "file", ["../secret.safetensors", "/etc/x.safetensors", "a\\b.safetensors", "passwd", "sub/x.safetensors"]
)
def test_an_index_that_leads_out_of_the_folder_is_refused(checkpoint: Path, file: str) -> None:
    edit_index(checkpoint, lambda weights: weights.update({"layers.0.weight": file}))
    with pytest.raises(SourceError, match="not a safetensors file beside it"):
        inspect(str(checkpoint))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"weight_map": {}}', '{"weight_map": {"a": 1}}', "[" * 100_000, "\x00"]
)
def test_an_index_that_is_none_is_refused(checkpoint: Path, text: str) -> None:
    (checkpoint / INDEX).write_text(text)
    with pytest.raises(SourceError, match="index.json") as refusal:
        inspect(str(checkpoint))
    assert refusal.value.hint


def test_what_is_not_copied_is_named_with_its_reason(checkpoint: Path) -> None:
    for path in (
        "consolidated.00.pth",
        "original/model.bin",
        "model.gguf",
        "tf_model.h5",
        ".gitattributes",
        "unfinished/model.safetensors",
    ):
        (checkpoint / path).parent.mkdir(exist_ok=True)
        (checkpoint / path).write_bytes(b"x")
    for path in ("tokenizer.json", "LICENSE", "modeling_custom.py", "sub/config.json"):
        (checkpoint / path).parent.mkdir(exist_ok=True)
        (checkpoint / path).write_bytes(b"x")
    found = inspect(str(checkpoint))
    said = " ".join(finding.message for finding in found.findings if finding.code == "left-out")
    assert [file.path for file in found.side_files] == [
        "LICENSE",
        "config.json",
        "modeling_custom.py",
        "sub/config.json",
        "tokenizer.json",
    ]
    for path in (
        "consolidated.00.pth",
        "original/model.bin",
        "model.gguf",
        "tf_model.h5",
        ".gitattributes",
        "unfinished/model.safetensors",
    ):
        assert path in said


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("model.gguf", "gguf-split"),
        ("tf_model.h5", "from_tf"),
        ("flax_model.msgpack", "from_flax"),
        ("onnx/model.onnx", "exported from"),
        ("weights.npz", "mlx_lm"),
        ("v1-5.ckpt", "diffusers"),
        ("model.nemo", "NeMo"),
    ],
)
def test_weights_in_another_format_are_refused_with_what_helps(tmp_path: Path, name: str, hint: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(SourceError, match=name) as refusal:
        inspect(str(tmp_path))
    assert hint in refusal.value.hint


def test_two_unrelated_files_are_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(
        tmp_path / "two", {"a.safetensors": {"a": np.zeros(2)}, "b.safetensors": {"b": np.zeros(2)}}, index=False
    )
    with pytest.raises(SourceError, match="no index to say"):
        inspect(str(folder))


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_a_truncated_file_is_refused(checkpoint: Path, kept: int) -> None:
    path = checkpoint / ONE
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(HeaderError, match=ONE):
        inspect(str(checkpoint))


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is not there"):
        open_source(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("text", ["", " ", "x" * 5000, "~nobody-of-this-name/x"])
def test_a_path_that_can_be_none_is_refused(text: str) -> None:
    with pytest.raises(SourceError):
        open_source(text)


def test_a_file_in_place_of_a_folder_is_refused(checkpoint: Path) -> None:
    with pytest.raises(SourceError, match="is a file"):
        open_source(str(checkpoint / ONE))


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no weights"):
        inspect(str(tmp_path))


def test_a_file_that_changes_while_it_is_read_is_noticed(checkpoint: Path) -> None:
    source = open_source(str(checkpoint))
    read_checkpoint(source)
    os.utime(checkpoint / ONE, (1, 1))
    with pytest.raises(SourceError, match="changed while"):
        list(source.read(ONE, 0, 8))


def test_the_links_of_the_hub_cache_are_followed(checkpoint: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for path in checkpoint.iterdir():
        (snapshot / path.name).symlink_to(path)
    assert inspect(str(snapshot)).total_bytes == inspect(str(checkpoint)).total_bytes


def test_a_pipe_is_no_side_file(checkpoint: Path) -> None:
    os.mkfifo(checkpoint / "pipe.json")
    assert "pipe.json" not in {file.path for file in inspect(str(checkpoint)).side_files}


def test_metadata_of_all_files_are_kept_and_a_conflict_is_reported(checkpoint: Path) -> None:
    save_file({"a": np.zeros(3)}, checkpoint / ONE, metadata={"format": "pt", "torchao": "1", "who": "one"})
    save_file({"b": np.zeros(3)}, checkpoint / TWO, metadata={"format": "pt", "who": "two"})
    (checkpoint / INDEX).unlink()
    found = inspect(str(checkpoint))
    assert found.components[0].metadata == {"format": "pt", "torchao": "1", "who": "one"}
    assert [finding.code for finding in found.findings] == ["no-index", "metadata-conflict"]


def test_a_configuration_that_is_none_does_not_hurt(checkpoint: Path) -> None:
    for text in ("", "[]", '{"architectures": []}', '{"architectures": [3]}', "[" * 100_000):
        (checkpoint / "config.json").write_text(text)
        assert inspect(str(checkpoint)).architecture is None
