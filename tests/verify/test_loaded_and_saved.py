"""What was loaded and saved is compared with the original: only a name whose bytes are kept may be missing."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from sharding.checkpoint.read import read_checkpoint
from sharding.core.options import Options
from sharding.core.protocols import Repo
from sharding.core.values import Verification
from sharding.formats.safetensors_file import shard_header
from sharding.planning.plan import plan_checkpoint
from sharding.storage.folder_source import open_folder
from sharding.verify.digests import ThisMachine
from sharding.verify.staged import compare_with_original
from tests.conftest import Tensors, write_checkpoint
from tests.folders import result_of

WEIGHT, OTHER, HEAD = np.arange(60, dtype=np.float32), np.ones(60, np.float32), np.zeros(9, np.float32)
ORIGINAL = {"embed": WEIGHT, "tied": WEIGHT, "block": OTHER, "head": HEAD}
BEFORE = Verification(4, 756, 1.0, "read again", ())


def compared(original: Path, saved: Path) -> Verification:
    """Compare what lies in `saved`, as a result, with `original`."""
    source = open_folder(str(saved))
    checkpoint = read_checkpoint(source)
    plan = plan_checkpoint(checkpoint, Options("1kB"))
    records = result_of(ThisMachine().digest_shards(plan.shards, partial(shard_header, plan), [source]))
    return result_of(compare_with_original(BEFORE, plan, records, Repo([open_folder(str(original))])))


def without(*names: str) -> Tensors:
    return {name: array for name, array in ORIGINAL.items() if name not in names}


CASES: dict[str, tuple[Tensors, dict[str, str]]] = {
    "nothing": (ORIGINAL, {}),
    "a tied name": (without("tied"), {}),
    "the other tied name": (without("embed"), {}),
    "a name whose bytes are nowhere else": (without("head"), {"head": "it is missing"}),
    "both names of the same bytes": (without("embed", "tied"), {"embed": "it is missing", "tied": "it is missing"}),
    "a tied name and another": (without("tied", "block"), {"block": "it is missing"}),
    "one under another name": (
        {**without("block"), "new": OTHER + 1},
        {"block": "it is missing", "new": "it is not in the original"},
    ),
    "the bytes of one": ({**ORIGINAL, "head": HEAD + 1}, {"head": "its bytes differ"}),
    "the shape of one": ({**ORIGINAL, "head": HEAD.reshape(3, 3)}, {"head": "it is F32 [3, 3] and should be F32 [9]"}),
}


@pytest.mark.parametrize("case", CASES)
def test_what_loading_and_saving_has_changed_is_named(tmp_path: Path, case: str) -> None:
    saved, wrong = CASES[case]
    original = write_checkpoint(tmp_path / "in", {"model.safetensors": ORIGINAL}, index=False)
    found = compared(original, write_checkpoint(tmp_path / "out", {"model.safetensors": saved}, index=False))
    assert {one.tensor: one.problem for one in found.mismatches} == wrong
    assert len(found.mismatches) == len(wrong)
    assert found.identical is (not wrong) and found.method.startswith(
        "read again; every tensor compared with the original's"
    )


def test_an_original_that_is_no_safetensors_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    torch.save({"w": torch.ones(9)}, tmp_path / "in/pytorch_model.bin")
    (tmp_path / "in/config.json").write_text("{}")
    assert compared(tmp_path / "in", write_checkpoint(tmp_path / "out", {"model.safetensors": ORIGINAL})) == BEFORE
