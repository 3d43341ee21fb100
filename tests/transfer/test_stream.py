"""A transfer holds as many batches as it says, whichever side is slow."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharding import job
from sharding.core.limits import THREADS
from sharding.storage.folder_source import FolderSource
from sharding.storage.folder_writing import FolderShardWriter
from sharding.transfer.making import BATCHES_AHEAD
from tests.conftest import random_tensors, write_checkpoint
from tests.promises import promise

BATCH = 4096


@promise("README.md#what-you-can-rely-on")
@pytest.mark.parametrize("slow", ["reading", "writing", "neither"])
def test_what_is_read_and_not_yet_written_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    folder = write_checkpoint(tmp_path / "in", {"model.safetensors": random_tensors()}, index=False)
    monkeypatch.setattr("sharding.storage.folder_source.BATCH_BYTES", BATCH)
    monkeypatch.setattr("sharding.transfer.stream.BATCH_BYTES", BATCH)
    read_bytes, written_bytes, most = 0, 0, 0
    read, write = FolderSource.read, FolderShardWriter.write

    def counted_read(self: FolderSource, file: str, start: int, end: int) -> Iterator[bytes]:
        nonlocal read_bytes, most
        for chunk in read(self, file, start, end):
            if is_moving:
                time.sleep(0.003 * (slow == "reading"))
                read_bytes += len(chunk)
                most = max(most, read_bytes - written_bytes)
            yield chunk

    def counted_write(self: FolderShardWriter, data: bytes) -> None:
        nonlocal written_bytes
        time.sleep(0.003 * (slow == "writing"))
        write(self, data)
        written_bytes += len(data)

    is_moving = False
    monkeypatch.setattr(FolderSource, "read", counted_read)
    monkeypatch.setattr(FolderShardWriter, "write", counted_write)
    for event in job.shard(str(folder), str(tmp_path / "out"), "1GB"):
        is_moving = (
            type(event).__name__ in ("Planned", "Progress") and getattr(event, "stage", "transfer") == "transfer"
        )
    assert read_bytes > 50 * BATCH
    # Those ahead, the one in work, and the one that takes its place; some ranges are read with their gaps.
    assert most <= THREADS * (BATCHES_AHEAD + 2) * 2 * BATCH
