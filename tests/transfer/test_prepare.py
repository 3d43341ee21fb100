"""A job that lacks a library ends before it says what it would do, and before it writes anything."""

from pathlib import Path

import pytest
import torch

from sharding import job
from sharding.core.errors import Refused
from sharding.core.options import Options
from tests.casts import save_mixed
from tests.quantized import write


def save_transposed(folder: Path) -> None:
    torch.save({"w": torch.rand(3, 5).t()}, folder / "pytorch_model.bin")


def save_fp8(folder: Path) -> None:
    packed = torch.zeros((3, 2), dtype=torch.uint8).view(torch.float8_e4m3fn)
    tensors = {"a.weight": packed, "a.weight_scale_inv": torch.ones(1)}
    write(folder, tensors, {"quant_method": "fp8", "weight_block_size": [128, 128]})


JOBS = {
    "a transpose": (save_transposed, Options("1kB"), "numpy"),
    "a cast": (save_mixed, Options("1kB", dtype="bf16"), "torch"),
    "quantized weights": (save_fp8, Options("1kB", dequantize=True), "torch"),
}


@pytest.mark.parametrize("name", JOBS)
def test_a_job_that_lacks_a_library_is_refused_before_its_plan_is_told_and_leaves_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, options, missing = JOBS[name]
    (tmp_path / "in").mkdir()
    save(tmp_path / "in")
    monkeypatch.setattr("sharding.core.extras.find_spec", lambda module: None if module == missing else object())
    with pytest.raises(Refused, match=f"needs what a plain install does not bring: {missing}"):
        next(job.shard(str(tmp_path / "in"), str(tmp_path / "out"), options))
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
