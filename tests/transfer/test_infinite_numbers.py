"""Numbers that a cast makes infinite end the job, or are counted by tensor: each once, wherever it lies."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from sharding import job
from sharding.core.errors import OverflowRefused
from sharding.core.events import ShardFinished
from sharding.core.options import Options
from tests.casts import cast
from tests.folders import finish

BEYOND, WITHIN = 65520.0, 65519.99
"""The least number that fp16 makes infinite, and one that it rounds to its largest, 65504."""


def save(folder: Path, length: int) -> dict[str, int]:
    """Write tensors with such numbers at their ends and between, and with some that are infinite or none already."""
    folder.mkdir()
    one = np.full(length, WITHIN, np.float32)
    one[[0, length // 2, -1]] = BEYOND, -BEYOND, np.finfo(np.float32).max
    one[[1, 2, 3]] = np.inf, -np.inf, np.nan
    two = np.full(7, -BEYOND, np.float64)
    three = np.array([WITHIN, np.inf, np.nan], np.float32)
    save_file({"one": one, "two": two, "three": three}, folder / "model.safetensors", metadata={"format": "pt"})
    return {"one": 3, "two": 7}


@pytest.mark.parametrize("length", [9, 3_000_000])
def test_they_are_counted_by_tensor_however_many_reads_one_takes(length: int, tmp_path: Path) -> None:
    counted = save(tmp_path / "in", length)
    report = cast(tmp_path / "in", tmp_path / "out", allow_overflow=True, size="20B")
    assert report.overflowed == counted
    copy = {key: array for path in (tmp_path / "out").glob("*.safetensors") for key, array in load_file(path).items()}
    assert np.isinf(copy["one"]).sum() == 5 and np.isnan(copy["one"]).sum() == 1
    assert (copy["three"][0], np.isinf(copy["two"]).all()) == (65504, True)
    with pytest.raises(OverflowRefused, match=r"^(one has 3|two has 7) finite numbers too large for float16"):
        cast(tmp_path / "in", tmp_path / "refused", size="20B")
    assert not (tmp_path / "refused").exists()
    assert cast(tmp_path / "in", tmp_path / "wide", "bf16", allow_overflow=True).overflowed == {"one": 1}


def test_none_that_was_counted_before_an_interruption_is_lost_or_counted_twice(tmp_path: Path) -> None:
    counted = save(tmp_path / "in", 9)
    options = Options("20B", dtype="fp16", allow_overflow=True)
    for number in (1, 2, 3):
        out = str(tmp_path / str(number))
        events = job.shard(str(tmp_path / "in"), out, options)
        for event in events:
            if isinstance(event, ShardFinished) and event.number == number:
                events.close()
        assert finish(job.shard(str(tmp_path / "in"), out, options)).overflowed == counted
