"""Attempts write into one folder at once, on one machine or many, and do one another no harm."""

from pathlib import Path

import pytest

from sharding import job
from sharding.core.errors import DestinationError
from sharding.storage.folder_destination import FolderDestination
from sharding.storage.folder_writing import FolderSink
from tests.conftest import listing
from tests.folders import staged
from tests.storage.publications import begun, written

PLAN = "a" * 64
FILE = "unet/model.safetensors"


@pytest.fixture
def folder(out: Path) -> Path:
    """A folder with a job in it."""
    begun(out, {}, PLAN, is_shared=True).close()  # the journal stays
    return out


def test_two_attempts_at_a_shard_leave_it_once(folder: Path) -> None:
    one, other = FolderSink(folder, PLAN), FolderSink(folder, PLAN)
    records = written(one, FILE), written(other, FILE)
    assert one.finished(FILE) is None, "without a name nothing is finished"
    one.note(records[0])
    (part,) = staged(folder).glob("unet%2Fmodel.safetensors.part")
    first = part.stat()
    assert other.finished(FILE) == records[0]
    other.note(records[1])
    for sink in (one, other):
        sink.close()
    assert part.stat().st_ino == first.st_ino and part.read_bytes() == b"bytes"
    left = {path.name for path in staged(folder).glob("unet*")}
    assert left == {part.name, f"unet%2Fmodel.safetensors.{PLAN[:16]}.record.part"}


def test_who_leads_puts_down_a_record_that_does_not_show_yet_and_no_second_one(folder: Path) -> None:
    leader, sink = begun(folder, {}, PLAN, is_shared=True), FolderSink(folder, PLAN)
    sink.note(record := written(sink, FILE))
    (place,) = staged(folder).glob("*.record.part")
    there = place.stat().st_ino
    leader.note(record)
    assert place.stat().st_ino == there
    place.unlink()
    leader.note(record)
    assert FolderDestination(folder).done(PLAN) == {FILE: record}
    leader.close()
    sink.close()
    assert FolderDestination(folder).done(PLAN) == {FILE: record}


def test_what_is_not_finished_goes_and_so_does_all_with_the_job(folder: Path) -> None:
    sink = FolderSink(folder, PLAN)
    writer = sink.open_shard(FILE)
    writer.write(b"half")
    assert len(list(staged(folder).glob("unet*"))) == 1
    sink.close()
    assert not list(staged(folder).glob("unet*"))
    killed = FolderSink(folder, PLAN)
    killed.note(written(killed, FILE))
    killed.open_shard(FILE)
    job.discard(str(folder))
    assert not folder.exists() or not list(folder.iterdir())
    killed.close()


def test_an_attempt_that_comes_after_the_job_leaves_nothing(folder: Path) -> None:
    late = FolderSink(folder, PLAN)
    record = written(late, FILE)
    (staged(folder) / "sharding_journal.part").unlink()
    with pytest.raises(DestinationError):
        late.note(record)
    late.close()
    assert not list(staged(folder).glob("unet*"))


def test_an_attempt_at_a_job_that_was_replaced_leaves_the_other_alone(folder: Path) -> None:
    early, late = FolderSink(folder, PLAN), FolderSink(folder, PLAN)
    early.note(written(early, FILE))
    early.close()
    journal, other = staged(folder) / "sharding_journal.part", FolderSink(folder, "b" * 64)
    journal.write_text(journal.read_text().replace(PLAN, "b" * 64))
    assert other.finished(FILE) is None, "a record of another plan is none"
    before, record = listing(folder), written(late, FILE)
    with pytest.raises(DestinationError, match="does not hold the job of this worker"):
        late.note(record)
    late.close()
    assert listing(folder) == before
    with pytest.raises(DestinationError):
        FolderSink(folder, PLAN).refuse_other()


@pytest.mark.parametrize("size", [0, 4, 6, None])
def test_a_record_counts_where_its_whole_shard_is_there_and_else_is_made_again(folder: Path, size: int | None) -> None:
    one = FolderSink(folder, PLAN)
    one.note(record := written(one, FILE))
    one.close()
    other = FolderSink(folder, PLAN)
    assert other.finished(FILE) == record and other.finished("unet/other.safetensors") is None
    (part,) = staged(folder).glob("unet%2Fmodel.safetensors.part")
    if size is None:
        part.unlink()
    else:
        part.write_bytes(b"bytes!"[:size])
    assert other.finished(FILE) is None
    other.note(written(other, FILE))
    assert other.finished(FILE) == record and part.read_bytes() == b"bytes"
    other.close()


def test_an_attempt_that_lets_go_leaves_the_others_at_work(folder: Path) -> None:
    one, other = FolderSink(folder, PLAN), FolderSink(folder, PLAN)
    for sink in (one, other):
        sink.open_shard("unet/half.safetensors").write(b"half")
    record = written(other, FILE)
    assert len(list(staged(folder).glob("unet*"))) == 3, "each has a name of its own"
    one.close()
    assert len(list(staged(folder).glob("unet*"))) == 2
    other.note(record)
    other.close()
    left = {path.name for path in staged(folder).glob("unet*")}
    assert left == {"unet%2Fmodel.safetensors.part", f"unet%2Fmodel.safetensors.{PLAN[:16]}.record.part"}
