"""A checkpoint with more tensors than a page can hold is counted and drawn, in a process of its own."""

import json
from pathlib import Path

import pytest

from sharding.core.limits import MAX_PAGE_TENSORS
from tests.page.conftest import Publish
from tests.page.site import Site, answer_in, call, choices
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


USUAL = choices("plan", max_shard_size="1MB")


@promise("docs/security.md#stop-the-page-with-a-million")
@pytest.mark.thorough
def test_what_is_too_large_to_plan_is_counted_and_says_where_it_can_be_planned(home: Site, publish: Publish) -> None:
    giant = publish(lambda folder: write_many(folder, MAX_PAGE_TENSORS + 50_000), "giant")
    summary = answer_in(call(home, "inspect", [giant, *choices("inspect")])[1])
    assert summary["tensors"] == summary["weight_files"][0]["tensors"] == MAX_PAGE_TENSORS + 50_000
    said = call(home, "plan", [giant, *USUAL])[1]
    assert "more than 100,000 tensors" in said and "shard-my-repo" in said


@pytest.mark.thorough
def test_as_many_tensors_as_a_page_takes_are_planned_in_full(home: Site, publish: Publish) -> None:
    source = publish(lambda folder: write_many(folder, MAX_PAGE_TENSORS), "full")
    plan = answer_in(call(home, "plan", [source, *USUAL])[1])
    assert len(plan["weight_map"]) == MAX_PAGE_TENSORS
