"""An index: totals and a sorted weight map; what is none is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sharding.core.errors import SourceError
from sharding.core.hints import ModelHints, PipelineCut, SavedTensor
from sharding.core.options import Options
from sharding.core.origin import Place
from sharding.core.values import Component, Content
from sharding.formats.index import build_indexes
from sharding.job import inspect
from sharding.planning.plan import plan_shards
from tests.folders import reshard
from tests.tensors import plan_of, stored_tensor


def test_the_index_holds_totals_and_a_sorted_weight_map() -> None:
    plan = plan_shards([stored_tensor(name, "U8", (3,), "f", 0, 3) for name in "ba"], Options(4))
    ((path, text),) = build_indexes(plan).items()
    assert path == "model.safetensors.index.json"
    assert text.endswith(b"}\n")
    assert json.loads(text) == {
        "metadata": {"total_parameters": 6, "total_size": 6},
        "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"},
    }


ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


def edit_index(folder: Path, change: Callable[[dict[str, str]], object]) -> None:
    path = folder / INDEX
    document = json.loads(path.read_text())
    change(document["weight_map"])
    path.write_text(json.dumps(document))


WRONG: dict[str, Callable[[dict[str, str]], object]] = {
    "index-wrong-file": lambda weights: weights.update({"layers.0.weight": TWO}),
    "index-unlisted-tensor": lambda weights: weights.pop("layers.0.weight"),
    "index-absent-tensor": lambda weights: weights.update({"ghost": TWO}),
}


@pytest.mark.parametrize("code", WRONG)
def test_what_an_index_has_wrong_is_reported_and_the_headers_are_right(code: str, checkpoint: Path) -> None:
    edit_index(checkpoint, WRONG[code])
    found = inspect(str(checkpoint))
    assert [finding.code for finding in found.findings] == [code]
    files = {tensor.name: tensor.file for tensor in found.tensors}
    assert files["layers.0.weight"] == ONE and "ghost" not in files


LEADS_OUT = ["../secret.safetensors", "/etc/x.safetensors", "a\\b.safetensors", "passwd", "sub/x.safetensors"]
NONE = ["", "[]", "{}", '{"weight_map": {}}', '{"weight_map": {"a": 1}}', "[" * 100_000, "\x00"]


def test_an_index_that_is_none_or_leads_out_of_the_folder_is_refused(checkpoint: Path) -> None:
    for file in LEADS_OUT:
        edit_index(checkpoint, lambda weights, file=file: weights.update({"layers.0.weight": file}))
        with pytest.raises(SourceError, match="not a safetensors file beside it"):
            inspect(str(checkpoint))
    for text in NONE:
        (checkpoint / INDEX).write_text(text)
        with pytest.raises(SourceError, match="index.json") as refusal:
            inspect(str(checkpoint))
        assert refusal.value.hint


@pytest.mark.parametrize(("changed", "counted"), [(False, 7), (True, 60_034)])
def test_a_count_of_parameters_is_believed_where_the_index_is_right_and_counted_where_it_is_not(
    checkpoint: Path, tmp_path: Path, changed: bool, counted: int
) -> None:
    document = json.loads((checkpoint / INDEX).read_text())
    document["metadata"]["total_parameters"] = 7
    document["weight_map"] |= {"layers.0.weight": TWO} if changed else {}
    (checkpoint / INDEX).write_text(json.dumps(document))
    report = reshard(checkpoint, tmp_path / "out")
    written = json.loads((tmp_path / "out" / INDEX).read_text())
    assert written["metadata"] == {"total_parameters": counted, "total_size": 240_110}
    assert report.plan.total_parameters == counted


def test_the_index_of_a_rank_lists_and_counts_what_that_rank_loads() -> None:
    """Also what it shares with another rank, and not what the whole index says of all."""
    names = ["embed", "h.0", "h.1", "h.2", "head"]
    entries = tuple(stored_tensor(name, "F32", (n + 1,), "f", 0, 4 * (n + 1)) for n, name in enumerate(names))
    loads = (frozenset(names[:3]), frozenset(["embed", *names[3:]]))
    stored = tuple(SavedTensor(name, "F32", number) for number, name in enumerate(names))
    hints = ModelHints("M", stored, pipeline=PipelineCut("5.23.0", ((0, 2), (2, 3))), loads=loads)
    checkpoint = Content(Place("folder", "m", ""), entries, (Component(total_parameters=99),), (), (), ())
    plan = plan_of(checkpoint, Options(8, strategy="pp:2"), {"": hints})
    whole, *of_ranks = (json.loads(text) for text in build_indexes(plan).values())
    assert whole["metadata"] == {"total_parameters": 99, "total_size": 60}
    assert [index["weight_map"].keys() for index in of_ranks] == list(loads)
    assert [index["metadata"] for index in of_ranks] == [
        {"total_parameters": 6, "total_size": 24},
        {"total_parameters": 10, "total_size": 40},
    ]
    assert all(index["weight_map"].items() <= whole["weight_map"].items() for index in of_ranks)
