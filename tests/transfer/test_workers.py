"""Digests and files are made of bytes in their order, however slow whoever takes them is."""

import hashlib
import time
from collections import defaultdict
from pathlib import Path
from threading import Lock
from types import SimpleNamespace

import pytest

from sharding import job
from sharding.report.schema import Report
from sharding.storage.folder_writing import FolderShardWriter


class SlowHash:
    """A hash that takes one piece at a time."""

    overlapped = False

    def __init__(self) -> None:
        self._hash, self._lock = hashlib.sha256(), Lock()

    def update(self, data: bytes) -> None:
        if not self._lock.acquire(blocking=False):
            SlowHash.overlapped = True
            return
        time.sleep(0.002)
        self._hash.update(data)
        self._lock.release()

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def test_every_file_takes_one_piece_after_another(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, overlapped = FolderShardWriter.write, []
    writing: dict[FolderShardWriter, Lock] = defaultdict(Lock)

    def slow_write(self: FolderShardWriter, data: bytes) -> None:
        overlapped.append(not writing[self].acquire(blocking=False))
        time.sleep(0.002)
        write(self, data)
        if not overlapped[-1]:
            writing[self].release()

    monkeypatch.setattr("sharding.storage.folder_source.BATCH_BYTES", 4096)
    monkeypatch.setattr("sharding.transfer.stream.BATCH_BYTES", 4096)
    monkeypatch.setattr(FolderShardWriter, "write", slow_write)
    monkeypatch.setattr("sharding.storage.folder_writing.hashlib", SimpleNamespace(sha256=SlowHash))
    *_, report = job.shard(str(checkpoint), str(tmp_path / "out"), "100kB")
    assert isinstance(report, Report) and report.verification.identical
    assert len(overlapped) > 50 and not any(overlapped) and not SlowHash.overlapped
    for shard in report.shards:
        assert shard.sha256 == hashlib.sha256((tmp_path / "out" / shard.file).read_bytes()).hexdigest()
