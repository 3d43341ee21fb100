"""Numbers that a cast makes infinite end the job, or are counted by tensor: each once, wherever it lies."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from sharding import job
from sharding.core.errors import OverflowRefused
from sharding.core.events import ShardFinished
from sharding.core.options import Options
from sharding.report.schema import parse_report
from sharding.storage.folder_source import FolderSource
from tests.casts import cast
from tests.conftest import write_checkpoint
from tests.folders import arrays, finish, staged, until_shard
from tests.promises import promise

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


@promise("docs/formats.md#the-bits")
@pytest.mark.parametrize("length", [9, 9000])
def test_they_are_counted_by_tensor_however_many_reads_one_takes(
    length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.storage.folder_source.BATCH_BYTES", 4096)
    counted = save(tmp_path / "in", length)
    report = cast(tmp_path / "in", tmp_path / "out", allow_overflow=True, size="20B")
    assert report.overflowed == counted
    copy = {key: array for path in (tmp_path / "out").glob("*.safetensors") for key, array in load_file(path).items()}
    assert np.isinf(copy["one"]).sum() == 5 and np.isnan(copy["one"]).sum() == 1
    assert (copy["three"][0], np.isinf(copy["two"]).all()) == (65504, True)
    with pytest.raises(OverflowRefused, match=r"^(one has 3|two has 7) finite numbers too large for float16") as no:
        cast(tmp_path / "in", tmp_path / "refused", size="20B")
    assert "bf16" in no.value.hint
    assert not (tmp_path / "refused").exists()
    assert cast(tmp_path / "in", tmp_path / "wide", "bf16", allow_overflow=True).overflowed == {"one": 1}


def test_what_an_earlier_run_has_made_infinite_is_counted_once_and_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    length, counted = 1000, {f"layers.{n}.weight": n for n in range(1, 6)}
    tensors = {name: np.full(length, WITHIN, np.float32) for name in counted}
    for name, count in counted.items():
        tensors[name][:count] = BEYOND
    source, out = write_checkpoint(tmp_path / "in", {"model.safetensors": tensors}, index=False), tmp_path / "out"
    (source / "config.json").unlink()
    options = Options("2100B", dtype="fp16", allow_overflow=True)
    until_shard(job.shard(str(source), str(out), options), 2, stop=True)
    for path in staged(out).glob("model-00005-*"):  # others may have finished before it was closed
        path.unlink()
    read, sizes = FolderSource.read, list[int]()

    def noting(self: FolderSource, file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        if self.folder == source:
            sizes.append(end_byte - start_byte)
        return read(self, file, start_byte, end_byte)

    monkeypatch.setattr(FolderSource, "read", noting)
    events = list(job.shard(str(source), str(out), options))
    kept = [event.kept for event in events if isinstance(event, ShardFinished)]
    assert len(kept) == 5 and 2 <= sum(kept) < 5, "some of an earlier run, some of this one"
    # What is kept is read once to be held to the source, what is not to be written: none is read to be counted.
    assert sizes.count(4 * length) == len(kept)
    assert finish(events).overflowed == counted
    assert parse_report((out / "sharding_report.json").read_text()).overflowed == counted
    assert re.search(r"15 numbers were too large", (out / "README.md").read_text())
    assert {name: int(np.isinf(array).sum()) for name, array in arrays(out).items()} == counted
