"""A journal says at every moment whose job a folder is."""

import errno
import fcntl
import os
from dataclasses import replace
from io import FileIO
from pathlib import Path

import pytest

from sharding.core.options import Options
from sharding.core.values import StagedJob
from sharding.storage.journal import JOURNAL_NAME, LEASE_NAME, Journal
from tests.storage.publications import job_of

JOB = job_of()


def held(folder: Path, job: StagedJob = JOB) -> Journal:
    """The journal of `folder`, held by a job."""
    journal = Journal(folder)
    journal.lock()
    journal.begin(job)
    return journal


def test_a_journal_that_is_gone_on_with_keeps_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held(tmp_path).close()
    before = (tmp_path / JOURNAL_NAME).read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lambda file: pytest.fail("nothing is written"))
        again = Journal(tmp_path)
        again.lock()
        assert again.begin(JOB) == 0
        again.close()
    assert (tmp_path / JOURNAL_NAME).read_bytes() == before and again.job() == JOB


def test_the_journal_of_another_job_is_begun_anew(tmp_path: Path) -> None:
    held(tmp_path).close()
    for another in (replace(JOB, plan_id="another"), replace(JOB, options=Options("1GB"))):
        held(tmp_path, another).close()
        assert Journal(tmp_path).job() == another


@pytest.mark.parametrize("cut", [1, 20, 10**6])
def test_a_journal_that_a_kill_cut_short_is_that_of_no_job_until_it_is_begun_again(tmp_path: Path, cut: int) -> None:
    held(tmp_path).close()
    path = tmp_path / JOURNAL_NAME
    path.write_bytes(path.read_bytes()[:-cut])
    assert Journal(tmp_path).job() is None
    held(tmp_path).close()
    assert Journal(tmp_path).job() == JOB


@pytest.mark.parametrize("is_there_anew", [False, True])
def test_a_journal_that_its_job_removes_just_then_is_not_taken_for_the_one_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there_anew: bool
) -> None:
    first, second = held(tmp_path), Journal(tmp_path)
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
    journal.begin(JOB)
    (tmp_path / LEASE_NAME).write_text("elsewhere 17 1.0 abc")
    before = (tmp_path / JOURNAL_NAME).read_bytes()
    for deed in (lambda: journal.begin(job_of("another")), lambda: journal.begin(JOB), journal.lease.refuse_lost):
        with pytest.raises(OSError, match="taken it over"):
            deed()
    assert not journal.is_ours
    journal.close()
    assert (tmp_path / JOURNAL_NAME).read_bytes() == before
    assert (tmp_path / LEASE_NAME).exists()


def test_what_a_journal_is_told_is_counted_and_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_size))
    journal = Journal(tmp_path)
    journal.lock()
    written = journal.begin(JOB)
    assert synced == [written] == [journal.path.stat().st_size]
    journal.remove()
    assert not (tmp_path / JOURNAL_NAME).exists() and not journal.is_ours


def test_a_disk_that_locks_only_what_is_open_for_writing_still_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NFS does, whose answer is EBADF."""
    lock = fcntl.flock

    def over_nfs(stream: FileIO, how: int) -> None:
        if not stream.writable():
            raise OSError(errno.EBADF, "not open for writing")
        lock(stream, how)

    monkeypatch.setattr(fcntl, "flock", over_nfs)
    first = held(tmp_path)
    (tmp_path / LEASE_NAME).unlink()
    with pytest.raises(BlockingIOError):
        Journal(tmp_path).lock()
    first.close()
    held(tmp_path).close()
