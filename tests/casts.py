"""Checkpoints to cast, and the cast."""

from pathlib import Path

import torch
from safetensors.torch import save_file

from sharding import job
from sharding.report.schema import Report
from tests.conftest import options_of
from tests.folders import finish

MIXED = {
    "a": torch.linspace(-3, 3, 33, dtype=torch.float32),
    "b": torch.arange(7, dtype=torch.int64),
    "c": torch.linspace(-3, 3, 10, dtype=torch.float64).view(2, 5),
    "d": torch.tensor([True, False, True]),
    "e": torch.linspace(-3, 3, 9, dtype=torch.bfloat16),
    "f": torch.tensor(1.5, dtype=torch.float16),
    "g": torch.zeros(0, 4),
    "h": torch.linspace(-3, 3, 5).to(torch.float8_e4m3fn),
    "i": torch.full((203,), 0x7C01, dtype=torch.int16).view(torch.float16),  # NaNs
}


def save_mixed(folder: Path) -> Path:
    """Write a checkpoint of `MIXED`."""
    save_file(MIXED, folder / "model.safetensors", {"format": "pt"})
    return folder


def cast(source: Path, out: Path, dtype: str = "fp16", size: str = "60kB", **choices: object) -> Report:
    options, more = options_of(size, {**choices, "dtype": dtype})
    return finish(job.shard(str(source), str(out), options, **more))
