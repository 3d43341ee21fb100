"""A folder above checkpoints, or with half of one, is refused with what lies there and which name to give."""

import shutil
from pathlib import Path

import pytest

from sharding import job
from sharding.core.errors import SourceError
from tests.folders import reshard, write_ranks


def refusal(folder: Path) -> SourceError:
    with pytest.raises(SourceError) as refused:
        job.inspect(str(folder))
    return refused.value


def test_a_folder_above_two_checkpoints_names_both_and_how_to_choose(checkpoint: Path, tmp_path: Path) -> None:
    above = tmp_path / "run"
    for step in ("checkpoint-100", "checkpoint-200"):
        shutil.copytree(checkpoint, above / step)
    told = refusal(above)
    assert "checkpoint-100" in told.message and "checkpoint-200" in told.message
    assert "SOURCE/checkpoint-100" in told.hint
    reshard(above / "checkpoint-100", tmp_path / "out")


def test_several_models_of_one_run_are_never_taken_for_the_first(tmp_path: Path) -> None:
    above = tmp_path / "run"
    write_ranks(above / "pytorch_model_fsdp_0")
    assert job.inspect(str(above)).tensors
    write_ranks(above / "pytorch_model_fsdp_1")
    told = refusal(above)
    assert "pytorch_model_fsdp_0" in told.message and "pytorch_model_fsdp_1" in told.message
    assert "SOURCE/pytorch_model_fsdp_0" in told.hint
    assert job.inspect(str(above / "pytorch_model_fsdp_1")).tensors


def test_pieces_without_what_locates_them_are_told(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"__{rank}_0.distcp").write_bytes(b"x")
    told = refusal(tmp_path)
    assert "__0_0.distcp" in told.message and ".metadata" in told.message and "dot" in told.hint
