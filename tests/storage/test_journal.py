"""A journal says at every moment which shards are finished."""

import fcntl
import io
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sharding.core.options import Options
from sharding.core.values import BytesRead, RepoRef, ShardRecord, StagedJob
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


def test_a_kept_shard_is_in_the_journal_as_it_is_now_and_is_not_noted_twice(tmp_path: Path) -> None:
    gone_on_with(tmp_path, RECORDS.values()).close()
    before = (tmp_path / JOURNAL_NAME).read_bytes()
    gone_on_with(tmp_path, RECORDS.values()).close()
    assert (tmp_path / JOURNAL_NAME).read_bytes() == before
    # Of other machines: one has written a shard anew, with other reads, and one a shard that was not there.
    reads = (BytesRead("in.safetensors", 0, 9, "cc"),)
    anew = replace(RECORDS["1.safetensors"], tensor_blake3={"w": "dd"}, reads=reads)
    more = ShardRecord("3.safetensors", 3, "ee", {})
    now = RECORDS | {anew.file: anew, more.file: more}
    gone_on_with(tmp_path, now.values()).close()
    assert Journal(tmp_path).read("plan") == now
    after = (tmp_path / JOURNAL_NAME).read_bytes()
    assert after.startswith(before) and len(after.splitlines()) == len(before.splitlines()) + 2


@pytest.mark.parametrize("cut", [1, 20])
def test_a_line_cut_short_is_lost_alone(tmp_path: Path, cut: int) -> None:
    gone_on_with(tmp_path, RECORDS.values()).close()
    path = tmp_path / JOURNAL_NAME
    path.write_bytes(path.read_bytes()[:-cut])
    first, second, third = RECORDS.values()
    left = {record.file: record for record in (first, second)} | ({third.file: third} if cut == 1 else {})
    assert Journal(tmp_path).read("plan") == left
    journal = gone_on_with(tmp_path, [first, second])
    journal.note(third)
    journal.close()
    assert Journal(tmp_path).read("plan") == RECORDS and Journal(tmp_path).job() == JOB


def test_the_journal_of_another_plan_or_of_nothing_kept_is_begun_anew(tmp_path: Path) -> None:
    gone_on_with(tmp_path, RECORDS.values()).close()
    assert Journal(tmp_path).read("another") == {}
    another = replace(JOB, plan_id="another")
    first = RECORDS["0.safetensors"]
    gone_on_with(tmp_path, [first], another).close()
    assert (Journal(tmp_path).job(), Journal(tmp_path).read("another")) == (another, {first.file: first})
    assert Journal(tmp_path).read("plan") == {}
    gone_on_with(tmp_path, [], another).close()
    assert (Journal(tmp_path).job(), Journal(tmp_path).read("another")) == (another, {})


@pytest.mark.parametrize("is_there_anew", [False, True])
def test_a_journal_that_its_job_removes_just_then_is_not_taken_for_the_one_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there_anew: bool
) -> None:
    first, second = gone_on_with(tmp_path, RECORDS.values()), Journal(tmp_path)
    lock = fcntl.flock

    def after_the_first_has_ended(*given: int) -> None:
        first.remove()
        if is_there_anew:
            (tmp_path / JOURNAL_NAME).write_bytes(b"of a third job")
        lock(*given)

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", after_the_first_has_ended)
        with pytest.raises(BlockingIOError):
            second.lock()
    assert not second.is_ours
    assert (tmp_path / JOURNAL_NAME).exists() == is_there_anew
    second.lock()
    assert second.is_ours
    with pytest.raises(BlockingIOError):
        Journal(tmp_path).lock()
    second.close()
    third = Journal(tmp_path)
    third.lock()
    assert third.is_ours
    third.close()


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


def test_what_is_written_to_a_journal_is_counted_and_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_size))
    journal = gone_on_with(tmp_path, [])
    sizes = [journal.path.stat().st_size]
    for record in RECORDS.values():
        journal.note(record)
        sizes.append(journal.path.stat().st_size)
    assert synced == sizes and journal.bytes_written == sizes[-1]
    journal.remove()
    assert not (tmp_path / JOURNAL_NAME).exists() and not journal.is_ours
