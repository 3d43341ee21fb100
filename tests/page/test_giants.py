"""A checkpoint with as many tensors as a page takes is planned in full."""

import json
from pathlib import Path

import pytest

from sharding.core.limits import MAX_PAGE_TENSORS
from tests.page.conftest import Publish
from tests.page.site import Site, answer_in, call, choices


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


@pytest.mark.thorough
def test_as_many_tensors_as_a_page_takes_are_planned_in_full(home: Site, publish: Publish) -> None:
    source = publish(lambda folder: write_many(folder, MAX_PAGE_TENSORS), "full")
    plan = answer_in(call(home, "plan", [source, *USUAL])[1])
    assert len(plan["weight_map"]) == MAX_PAGE_TENSORS
