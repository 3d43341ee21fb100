"""A journal says at every moment which shards are finished."""

import io
from pathlib import Path
from typing import Any

import pytest

from sharding.core.options import Options
from sharding.core.values import RepoRef, ShardRecord, StagedJob
from sharding.storage.journal import Journal


def test_a_journal_that_is_gone_on_with_keeps_what_it_says_at_every_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = StagedJob("plan", RepoRef("folder", "in", ""), Options())
    records = [ShardRecord(f"{n}.safetensors", n, "aa", {"w": "bb"}) for n in range(3)]
    first = Journal(tmp_path)
    first.lock()
    first.begin(job, [])
    for record in records:
        first.note(record)
    first.close()
    with open(first.path, "ab") as stream:
        stream.write(b'{"file": "cut sh')
    said: list[dict[str, ShardRecord]] = []

    class Watched(io.FileIO):
        def write(self, data: Any) -> int:
            said.append(again.read("plan"))
            return super().write(data)

    monkeypatch.setattr(
        "sharding.storage.journal.open", lambda path, mode, buffering: Watched(path, mode), raising=False
    )
    again = Journal(tmp_path)
    again.lock()
    again.begin(job, records)
    again.note(ShardRecord("3.safetensors", 3, "aa", {}))
    again.close()
    assert [len(state) for state in said] == [3]
    assert len(again.read("plan")) == 4
