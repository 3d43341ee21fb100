"""How a shard gets onto the disk: written back meanwhile, whole once that is said, and read back when all are there."""

import errno
import hashlib
import os
import re
from pathlib import Path
from threading import Event

import pytest

from sharding import job
from sharding.core.errors import DestinationError
from sharding.core.events import Progress, ShardFinished
from sharding.core.options import Options
from sharding.core.values import ShardRecord
from sharding.formats.names import STAGING_FOLDER
from sharding.storage.folder_destination import FolderDestination
from sharding.storage.folder_writing import FolderSink, explained, part_path, record_path, sync_folders, write_synced
from tests.conftest import listing
from tests.folders import staged
from tests.storage.publications import begun, written

LONG = 60.0
"""Seconds for what comes at once, unless something is broken."""
FILE = "model-00001-of-00002.safetensors"


def is_of_shard(place: str) -> bool:
    """Whether a name is that of an attempt at `FILE`."""
    return re.fullmatch(rf"{FILE}\.\w{{32}}\.part", place) is not None


class Disk:
    """What has been synced: how long each file was then. The first sync of a shard waits where that is asked for."""

    def __init__(self) -> None:
        self.synced: list[tuple[str, int]] = []
        self.is_begun, self.go_on, self.is_done = Event(), Event(), Event()
        self.go_on.set()
        self.error: OSError | None = None

    def sync(self, file: int) -> None:
        place = Path(os.readlink(f"/proc/self/fd/{file}")).name
        if is_of_shard(place):
            self.is_begun.set()
            assert self.go_on.wait(LONG)
            if self.error:
                raise self.error
        self.synced.append((place, os.fstat(file).st_size))
        if is_of_shard(place):
            self.is_done.set()

    def of_shard(self) -> list[int]:
        return [size for place, size in self.synced if is_of_shard(place)]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(os, "fsync", disk.sync)
    monkeypatch.setattr("sharding.storage.folder_writing.FLUSH_BYTES", 100)
    return disk


@pytest.fixture
def target(out: Path) -> FolderDestination:
    return begun(out, {})


def test_a_long_shard_is_written_back_meanwhile_and_whole_at_its_end(disk: Disk, target: FolderDestination) -> None:
    writer = target.open_shard(FILE)
    writer.write(b"a" * 60)
    writer.write(b"b" * 39)
    assert not disk.is_begun.is_set()  # a short one is not
    disk.go_on.clear()
    writer.write(b"c")
    assert disk.is_begun.wait(LONG)
    for _ in range(5):  # while it is written back it is not begun again
        writer.write(b"d" * 100)
    disk.go_on.set()
    digest = writer.finish()
    sizes = disk.of_shard()
    assert len(sizes) == 2 and sizes[-1] == 600, "at the end all is on the disk"
    assert digest == hashlib.sha256(b"a" * 60 + b"b" * 39 + b"c" + b"d" * 500).hexdigest()
    target.close()


def test_what_is_written_after_it_was_written_back_is_on_the_disk_too(disk: Disk, target: FolderDestination) -> None:
    writer = target.open_shard(FILE)
    writer.write(b"a" * 100)
    assert disk.is_done.wait(LONG)
    writer.write(b"b")
    writer.finish()
    assert disk.of_shard() == [100, 101]
    target.close()


def test_a_disk_that_fails_meanwhile_ends_the_shard(disk: Disk, target: FolderDestination, tmp_path: Path) -> None:
    disk.error = OSError(errno.EIO, "broken")
    writer = target.open_shard(FILE)
    writer.write(b"a" * 100)
    assert disk.is_begun.wait(LONG)
    with pytest.raises(DestinationError, match="cannot be written: broken"):
        writer.finish()
    target.close()
    assert set(listing(tmp_path)) == {f"out/{STAGING_FOLDER}/sharding_journal.part"}


def test_what_is_written_is_counted_and_has_no_name_yet(out: Path, target: FolderDestination) -> None:
    journal = (staged(out) / "sharding_journal.part").stat().st_size
    assert target.disk_bytes_written == journal
    for number, file in enumerate((FILE, "unet/model.safetensors"), start=1):
        record = written(target, file, b"12345" * number)
        assert not target.has_finished_shards or number > 1
        target.note(record)
        assert target.has_finished_shards
    assert target.open_arriving([FILE]) is None, "they are read when all are written"
    records = {path.name: path.stat().st_size for path in staged(out).glob("*.record.part")}
    assert records.keys() == {f"{FILE}.plan.record.part", "unet%2Fmodel.safetensors.plan.record.part"}
    assert target.disk_bytes_written == journal + 15 + sum(records.values())
    staging = {"sharding_journal.part", "sharding_lease.part", f"{FILE}.part", "unet%2Fmodel.safetensors.part"}
    assert set(listing(out)) == {f"{STAGING_FOLDER}/{name}" for name in staging | records.keys()}
    read = target.open_staged([FILE, "unet/model.safetensors"])
    assert b"".join(read.read("unet/model.safetensors", 2, 9)) == (b"12345" * 2)[2:9]
    target.close()


def test_nothing_is_read_back_from_a_folder_while_shards_are_written(source: Path, out: Path) -> None:
    for options in (Options("200B"), Options("200B", order="natural")):
        events = list(job.shard(str(source), str(out), options))
        finished = [n for n, event in enumerate(events) if isinstance(event, ShardFinished)]
        verified = [n for n, event in enumerate(events) if isinstance(event, Progress) and event.phase == "verify"]
        assert len(finished) == 3 and verified and max(finished) < min(verified)


def test_every_shard_has_a_part_and_a_record_of_its_own(tmp_path: Path) -> None:
    long = "n" * 400
    files = [
        "model.safetensors", "unet/model.safetensors", "unet%2Fmodel.safetensors",
        "a/b/model.safetensors", "a/b%2Fmodel.safetensors", f"{long}1/model.safetensors", f"{long}2/model.safetensors",
        f"{long}1/other.safetensors", "图" * 60 + ".safetensors", "图" * 61 + ".safetensors",
    ]  # fmt: skip
    staged(tmp_path).mkdir()
    for file in files:
        part_path(tmp_path, file).write_text(file)
        record_path(tmp_path, file, "plan").write_text(f"of {file}")
    assert [part_path(tmp_path, file).read_text() for file in files] == files
    assert [record_path(tmp_path, file, "plan").read_text() for file in files] == [f"of {file}" for file in files]
    assert len([path for path in staged(tmp_path).iterdir() if path.name.endswith(".part")]) == 2 * len(files)


def test_a_file_is_written_once_it_and_its_name_are_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deeds: list[tuple[str, object]] = []
    usual = os.replace

    def named(part: Path, place: Path) -> None:
        deeds.append(("named", place.name))
        usual(part, place)

    monkeypatch.setattr(os, "replace", named)
    synced = lambda file: (Path(os.readlink(f"/proc/self/fd/{file}")).name, os.fstat(file).st_size)  # noqa: E731
    monkeypatch.setattr(os, "fsync", lambda file: deeds.append(synced(file)))
    assert write_synced(tmp_path / "one", [b"abc", b"", b"defg"]) == 7
    assert deeds == [("one", 7)] and (tmp_path / "one").read_bytes() == b"abcdefg"
    deeds.clear()
    staged(tmp_path).mkdir()
    size = FolderSink(tmp_path, "plan")._put_record(ShardRecord("two", 4, "", {}))
    assert [deed[1] for deed in deeds[:2]] == [size, record_path(tmp_path, "two", "plan").name]
    deeds.clear()
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
    sync_folders(tmp_path / name for name in ("b", "a"))
    assert sorted(place for place, _ in deeds) == ["a", "b"]


@pytest.mark.parametrize("place", ["", "new"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
def test_what_the_system_says_of_a_disk_becomes_a_sentence_with_a_hint(tmp_path: Path, number: int, place: str) -> None:
    folder = tmp_path / place
    with pytest.raises(DestinationError) as refusal, explained(folder):
        raise OSError(number, os.strerror(number))
    is_full = number in (errno.ENOSPC, errno.EDQUOT)
    assert (f"The disk of {folder} is full (" in refusal.value.message) == is_full
    assert is_full or refusal.value.message == f"{folder} cannot be written: {os.strerror(number)}."
    assert refusal.value.hint.startswith("Free some space" if is_full else "Check that you may write to this folder")
    with pytest.raises(KeyError), explained(folder):
        raise KeyError
