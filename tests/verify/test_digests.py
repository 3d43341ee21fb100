"""A written file is opened once more, with safetensors."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sharding import job
from sharding.checkpoint.read import read_checkpoint
from sharding.core.values import Shard
from sharding.report.schema import Report
from sharding.storage.folder_source import open_folder
from sharding.verify.digests import check_structure
from tests.conftest import random_tensors, write_checkpoint

METADATA = {"format": "pt"}


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, Shard]:
    folder = write_checkpoint(tmp_path / "unet", {"model.safetensors": random_tensors(3)}, index=False)
    tensors = read_checkpoint(open_folder(str(folder))).tensors
    return folder / "model.safetensors", Shard("model.safetensors", tensors, sum(tensor.bytes for tensor in tensors))


@pytest.mark.parametrize(
    "damage",
    [
        *(lambda data: data[:-1], lambda data: data + b"\0", lambda data: data[:7]),
        *(lambda data: b"\xff" * 8 + data[8:], lambda data: b""),
    ],
    ids=["short", "long", "no header", "false length", "gone"],
)
def test_a_damaged_file_cannot_be_opened(written: tuple[Path, Shard], damage: Callable[[bytes], bytes]) -> None:
    path, shard = written
    damaged = damage(path.read_bytes())
    path.write_bytes(damaged)
    if not damaged:
        path.unlink()
    (found,) = check_structure(path, shard, METADATA)
    assert found.tensor == "model.safetensors"
    assert found.problem.startswith("safetensors cannot open model.safetensors: ")


def test_a_file_must_hold_what_was_planned_and_what_is_another_is_named(written: tuple[Path, Shard]) -> None:
    path, shard = written
    assert check_structure(path, shard, METADATA) == ()
    first, second, *others = shard.tensors
    tensors = (first._replace(name="other"), second._replace(dtype="BOOL"), *others)
    found = check_structure(path, replace(shard, tensors=tensors), {"format": "np"})
    assert [mismatch.tensor for mismatch in found] == ["other", second.name, first.name, "model.safetensors"]


def test_the_report_says_with_what_the_structure_was_checked(checkpoint: Path, tmp_path: Path) -> None:
    *_, report = job.shard(str(checkpoint), str(tmp_path / "out"), "60kB")
    assert isinstance(report, Report)
    assert "structure checked by safetensors;" in report.verification.method
    assert "the Hub states" not in report.verification.method, "a folder states nothing"
