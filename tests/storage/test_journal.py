"""A journal says at every moment which shards are finished."""

import io
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sharding.core.options import Options
from sharding.core.values import RepoRef, ShardRecord, StagedJob
from sharding.storage.journal import JOURNAL_NAME, Journal
from sharding.storage.lease import LEASE_NAME

JOB = StagedJob("plan", RepoRef("folder", "in", ""), Options())
RECORDS = {f"{n}.safetensors": ShardRecord(f"{n}.safetensors", n, "aa", {"w": "bb"}) for n in range(3)}


def gone_on_with(folder: Path, kept: Iterable[ShardRecord], job: StagedJob = JOB) -> Journal:
    """The journal of `folder`, held by a job that keeps shards."""
    journal = Journal(folder)
    journal.lock()
    journal.begin(job, list(kept))
    return journal


def test_a_journal_that_is_gone_on_with_keeps_what_it_says_at_every_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, records = JOB, list(RECORDS.values())
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


def test_a_journal_whose_folder_was_taken_over_is_not_begun_anew(tmp_path: Path) -> None:
    journal = Journal(tmp_path, is_shared=True)
    journal.lock()
    journal.begin(JOB, list(RECORDS.values()))
    (tmp_path / LEASE_NAME).write_text("elsewhere 17 1.0 abc")
    before = (tmp_path / JOURNAL_NAME).read_bytes()
    for deed in (
        lambda: journal.begin(replace(JOB, plan_id="another"), []),
        lambda: journal.begin(JOB, list(RECORDS.values())),
        lambda: journal.note(RECORDS["0.safetensors"]),
        journal.refuse_lost,
    ):
        with pytest.raises(OSError, match="taken it over"):
            deed()
    assert not journal.is_ours
    journal.close()
    assert (tmp_path / JOURNAL_NAME).read_bytes() == before
    assert (tmp_path / LEASE_NAME).exists()
