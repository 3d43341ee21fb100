"""An index: totals and a sorted weight map; what is none is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sharding.core.errors import SourceError
from sharding.core.options import Options
from sharding.core.values import TensorEntry
from sharding.formats.index import build_indexes
from sharding.job import inspect
from sharding.planning.plan import plan_shards


def tensor(name: str, size: int) -> TensorEntry:
    return TensorEntry(name, "U8", (size,), "f", 0, size)


def test_the_index_holds_totals_and_a_sorted_weight_map() -> None:
    plan = plan_shards([tensor("b", 3), tensor("a", 3)], Options(4))
    ((path, text),) = build_indexes(plan).items()
    assert path == "model.safetensors.index.json"
    assert text.endswith(b"}\n")
    assert json.loads(text) == {
        "metadata": {"total_parameters": 6, "total_size": 6},
        "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"},
    }


ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


INDEX = "model.safetensors.index.json"


def codes(folder: Path) -> list[str]:
    return [finding.code for finding in inspect(str(folder)).findings]


def edit_index(folder: Path, change: Callable[[dict[str, str]], object]) -> None:
    path = folder / INDEX
    document = json.loads(path.read_text())
    change(document["weight_map"])
    path.write_text(json.dumps(document))


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
