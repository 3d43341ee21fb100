"""A checkpoint with more tensors than a page can hold is counted and drawn, in a process of its own."""

import json
from pathlib import Path

import pytest

from sharding.core.limits import MAX_PAGE_TENSORS
from tests.localhub.conftest import Server
from tests.page.conftest import Site, call, push
from tests.promises import promise


def write_many(folder: Path, tensors: int) -> Path:
    """Write a checkpoint of so many tensors of one byte."""
    folder.mkdir()
    entries = {
        f"model.layers.{n // 3000}.mlp.experts.{n % 3000}.up.weight": {
            "dtype": "U8", "shape": [1], "data_offsets": [n, n + 1]
        }
        for n in range(tensors)
    }  # fmt: skip
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(tensors))
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def giant(hub: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = write_many(tmp_path_factory.mktemp("in") / "giant", MAX_PAGE_TENSORS + 50_000)
    return push(hub, folder, "bob/giant")


USUAL = ["1MB", "size", "natural", "keep", "", "", False, ""]


@promise("docs/security.md#stop-the-page-with-a-million")
@pytest.mark.thorough
def test_what_is_too_large_to_plan_is_counted_and_says_where_it_can_be_planned(home: Site, giant: str) -> None:
    _, said = call(home, "inspect", [giant, "", ""], {})
    summary = json.loads(said.rpartition("event: complete\ndata: ")[2].partition("\n")[0])[0]
    assert summary["tensors"] == summary["weight_files"][0]["tensors"] == MAX_PAGE_TENSORS + 50_000
    _, said = call(home, "plan", [giant, *USUAL], {})
    assert "more than 100,000 tensors" in said and "shard-my-repo" in said


@pytest.mark.thorough
def test_as_many_tensors_as_a_page_takes_are_planned_in_full(home: Site, hub: Server, tmp_path: Path) -> None:
    source = push(hub, write_many(tmp_path / "full", MAX_PAGE_TENSORS), "bob/full")
    _, said = call(home, "plan", [source, *USUAL], {})
    plan = json.loads(said.rpartition("event: complete\ndata: ")[2].partition("\n")[0])[0]
    assert len(plan["weight_map"]) == MAX_PAGE_TENSORS
