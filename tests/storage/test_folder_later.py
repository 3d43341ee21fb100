"""What a later run finds in a folder: the shards that are whole, of its own plan, and whose job it is."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sharding import job
from sharding.core.events import ShardFinished
from sharding.core.options import Options
from sharding.core.origin import Place
from sharding.core.protocols import LentDestination
from sharding.core.values import BytesRead, ShardRecord
from sharding.formats.names import STAGING_FOLDER
from sharding.storage.folder_destination import FolderDestination
from sharding.storage.folder_writing import part_path, record_path
from tests.conftest import listing
from tests.folders import staged
from tests.storage.publications import begun, job_of, written
from tests.storage.recorder import recorded

FILE = "model-00001-of-00002.safetensors"
JOB = job_of()
FILES = {FILE: b"one", "unet/model.safetensors": b"two", "last.safetensors": b"three"}


def finished(folder: Path, *, reads: tuple[BytesRead, ...] = ()) -> dict[str, ShardRecord]:
    """Have a job finish `FILES` in `folder`; return their records."""
    target = begun(folder, {})
    records = {file: written(target, file, data, reads) for file, data in FILES.items()}
    for record in records.values():
        target.note(record)
    target.close()
    return records


@pytest.mark.parametrize("change", [lambda part: part.write_bytes(b"tw"), lambda part: part.write_bytes(b"two!"),
                                    Path.unlink, lambda part: (part.unlink(), part.mkdir())])  # fmt: skip
@pytest.mark.parametrize("noted", [False, True])
def test_done_are_the_shards_that_are_there_in_full(out: Path, change: Callable[[Path], object], noted: bool) -> None:
    reads = (BytesRead("in", 0, 9, "a" * 64),) if noted else ()
    records = finished(out, reads=reads)
    assert FolderDestination(out).done("plan") == records
    assert FolderDestination(out).done("pla") == {}
    assert FolderDestination(out, restart=True).done("plan") == {}
    published = out / "last.safetensors"
    part_path(out, "last.safetensors").rename(published)  # as publishing does, until it is killed
    assert FolderDestination(out).done("plan") == records
    change(part_path(out, "unet/model.safetensors"))
    del records["unet/model.safetensors"]
    # Where it says what was read, the others may be made of that too.
    assert FolderDestination(out).done("plan") == ({} if noted else records)


def test_preparing_keeps_what_is_to_be_kept_and_removes_all_else_of_another_plan(out: Path) -> None:
    records = finished(out)
    names = {file: part_path(out, file).name for file in FILES}
    (staged(out) / "sharding_file0.part").write_bytes(b"beside")
    (staged(out) / "mine.txt").write_bytes(b"mine")
    (out / "mine.safetensors.part").write_bytes(b"mine")
    ours = ("mine.txt", "sharding_journal.part", "sharding_lease.part")
    always = {"mine.safetensors.part", *(f"{STAGING_FOLDER}/{name}" for name in ours)}
    for job_now, kept in ((JOB, [FILE, "last.safetensors"]), (JOB, [FILE]), (replace(JOB, plan_id="another"), [])):
        target = FolderDestination(out)
        target.prepare(job_now, [records[file] for file in kept], 0)
        shards = {name for file in kept for name in (names[file], f"{names[file][:-5]}.plan.record.part")}
        assert set(listing(out)) == always | {f"{STAGING_FOLDER}/{name}" for name in shards}
        assert target.lend() == LentDestination(Place("folder", "out", ""), job_now.plan_id, folder=str(out))
        assert target.unfinished() == job_now and target.has_finished_shards == bool(kept)
        target.close()
        assert set(FolderDestination(out).done(job_now.plan_id)) == set(kept)


def test_a_kept_shard_has_the_record_that_says_all_that_was_read(out: Path) -> None:
    records = finished(out, reads=(BytesRead("in", 0, 9, "a" * 64),))
    before = listing(out)
    # As where a shard goes of which others may be made: one that is kept takes over what it says of the source.
    now = records | {FILE: replace(records[FILE], reads=(*records[FILE].reads, BytesRead("in", 9, 12, "b" * 64)))}
    for kept, is_new in ((records, False), (now, True), (now, False)):
        target = FolderDestination(out)
        target.prepare(JOB, kept.values(), 0)
        target.close()
        assert FolderDestination(out).done("plan") == kept
        changed = [path for path, data in listing(out).items() if before[path] != data]
        assert changed == ([] if kept is records else [f"{STAGING_FOLDER}/{FILE}.plan.record.part"])
        assert target.disk_bytes_written == (len(listing(out)[changed[0]]) if is_new else 0)


def test_where_a_record_is_damaged_no_shard_is_done(out: Path) -> None:
    finished(out)
    place = record_path(out, FILE, "plan")
    place.write_bytes(place.read_bytes()[:-1])
    assert FolderDestination(out).done("plan") == {}


@pytest.mark.parametrize("end", ["restarted", "discarded"])
@pytest.mark.parametrize("noted", [False, True])
def test_a_kill_while_shards_go_leaves_none_that_may_be_made_of_what_went(out: Path, end: str, noted: bool) -> None:
    def go() -> None:
        target = FolderDestination(out)
        if end == "restarted":
            target.prepare(JOB, [], 0)
        else:
            target.discard()
        target.close()

    def begin() -> dict[str, ShardRecord]:
        shutil.rmtree(out, ignore_errors=True)
        return finished(out, reads=(BytesRead("in", 0, 9, "a" * 64),) if noted else ())

    begin()
    with recorded() as recorder:
        go()
    removals = [number for number, step in enumerate(recorder.steps) if step.kind == "remove"]
    assert len(removals) >= 2 * len(FILES)
    for number in removals:
        records = begin()
        with recorded(dies_at=number):
            go()
        done = FolderDestination(out).done("plan")
        assert done.items() <= records.items()
        assert not noted or done in (records, {})


def test_a_folder_says_which_job_is_unfinished_in_it_until_it_is_shown_or_discarded(source: Path, out: Path) -> None:
    options = Options("200B", order="natural")
    for end in ("published", "discarded"):
        events = job.shard(str(source), str(out), options)
        next(event for event in events if isinstance(event, ShardFinished))
        assert job.find_unfinished(str(out)) == FolderDestination(out).unfinished()
        if end == "discarded":
            events.close()
        found = job.find_unfinished(str(out))
        assert found and (found.options, found.source.repo_id) == (options, "in") and len(found.plan_id) == 64
        if end == "discarded":
            assert job.discard(str(out)).found
        else:
            list(events)
        assert job.find_unfinished(str(out)) is None and not staged(out).exists()
    finished(out)
    journal = staged(out) / "sharding_journal.part"
    journal.write_bytes(journal.read_bytes()[5:])
    assert job.find_unfinished(str(out)) is None
