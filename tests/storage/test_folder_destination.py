"""A folder is written whole or not at all, and never over what somebody else wrote."""

import errno
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sharding import job
from sharding.core.errors import DestinationError
from sharding.core.events import Published, ShardFinished
from sharding.core.values import ShardRecord
from sharding.formats.names import STAGING_FOLDER
from sharding.storage import folder_destination as destination_room
from sharding.storage.folder_destination import FolderDestination
from tests.conftest import listing, random_tensors
from tests.folders import arrays, finish, reshard, same, staged

RECORD = ShardRecord("model.safetensors", 1, "0" * 64, {})
INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize("text", ["~nobody-of-this-name/x", "./" + "n" * 300, "./a\0b", "./circle", "./circle/x"])
def test_a_path_that_can_be_no_destination_is_refused(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (tmp_path / "circle").symlink_to("circle")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DestinationError, match="cannot be written"):
        finish(job.shard(str(checkpoint), text, "60kB"))
    with pytest.raises(DestinationError, match="cannot be written"):
        job.discard(text)


def test_a_destination_without_room_is_refused_with_the_figures(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = destination_room.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(destination_room.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    figures = r"needs 2\d\d\.\d kB and 64\.0 MB must stay free, but the disk of .* has only 1\.0 kB free"
    with pytest.raises(DestinationError, match=figures):
        finish(job.shard(str(checkpoint), str(tmp_path / "a/b/out"), "60kB"))
    assert not (tmp_path / "a").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A file system of its own, where the machine lets us mount one."""
    mounted = []

    def mount(options: str) -> Path:
        place = tmp_path / f"disk{len(mounted)}"
        place.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True).returncode:
            pytest.skip("no right to mount a file system here")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", place], check=True)


def test_a_read_only_disk_is_refused(checkpoint: Path, small_disk: Callable[[str], Path]) -> None:
    place = small_disk("size=200m")
    subprocess.run(["mount", "-o", "remount,ro", place], check=True)
    with pytest.raises(DestinationError, match="(?i)cannot be written: read-only"):
        finish(job.shard(str(checkpoint), str(place / "out"), "60kB"))
    assert list(place.iterdir()) == []


def test_a_disk_that_fills_up_meanwhile_keeps_finished_shards_and_says_so(
    checkpoint: Path, small_disk: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = small_disk("size=100k")
    with pytest.raises(DestinationError, match="has only 102.4 kB free"):
        finish(job.shard(str(checkpoint), str(place / "out"), "60kB"))
    assert list(place.iterdir()) == []
    usage = destination_room.shutil.disk_usage("/")
    monkeypatch.setattr(destination_room.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(DestinationError, match="is full"):
        finish(job.shard(str(checkpoint), str(place / "out"), "25kB"))
    assert f"{STAGING_FOLDER}/sharding_journal.part" in listing(place / "out")
    assert not (place / "out" / INDEX).exists()
    with pytest.raises(DestinationError, match="is full"):
        finish(job.shard(str(checkpoint), str(place / "all"), "1GB"))
    assert not (place / "all").exists()


def test_what_cannot_be_noted_names_the_folder(checkpoint: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr("sharding.storage.folder_writing.write_synced", full)
    with pytest.raises(DestinationError, match=f"disk of {out} is full"):
        finish(job.shard(str(checkpoint), str(out), "60kB"))


def test_a_part_published_just_then_ends_no_job(checkpoint: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts, gone = FolderDestination._parts, staged(out) / "model.safetensors.part"
    monkeypatch.setattr(FolderDestination, "_parts", lambda target: [*parts(target), gone])
    reshard(checkpoint, out)


# --- Names ----------------------------------------------------------------------------------------------


PLANTED = [
    "model.safetensors.part",
    "model-00001-of-00005.safetensors.part",
    "Model-00001-of-00005.SafeTensors.PART",
    "MODEL.SAFETENSORS",
    "Model.safetensors.Index.json",
    "Sharding_Report.json",
    "sharding_journal.part",
    "readme.md",
    f"{STAGING_FOLDER}/model-00001-of-00005.safetensors.part",
    f"{STAGING_FOLDER.upper()}/x.txt",
    "sharding_records/model-00001-of-00005.safetensors.json",
]


@pytest.mark.parametrize("name", PLANTED)
def test_no_file_beside_the_weights_takes_the_place_of_one_of_ours(checkpoint: Path, out: Path, name: str) -> None:
    (checkpoint / "vocab.txt").write_text("words")
    (checkpoint / name).parent.mkdir(exist_ok=True)
    (checkpoint / name).write_bytes(b"planted")
    size = "1GB" if name.lower() in ("model.safetensors", "model.safetensors.part") else "60kB"
    report = reshard(checkpoint, out, size)
    assert same(arrays(out), random_tensors())
    found = listing(out)
    assert b"planted" not in found.values() and found["vocab.txt"] == b"words"
    told = [finding.message for finding in report.plan.findings if finding.code == "left-out"]
    assert any(name in message for message in told) or STAGING_FOLDER in name.lower()  # no folder of a repo


def test_a_job_that_has_ended_leaves_the_parts_of_the_next_one_alone(checkpoint: Path, out: Path) -> None:
    first = job.shard(str(checkpoint), str(out), "60kB")
    next(event for event in first if isinstance(event, Published))
    second = job.shard(str(checkpoint), str(out), "20kB")
    next(event for event in second if isinstance(event, ShardFinished))
    finish(first)
    assert finish(second).verification.identical
    assert same(arrays(out), random_tensors())


def test_a_folder_in_the_place_of_a_file_is_refused_before_anything_moves(checkpoint: Path, out: Path) -> None:
    finish(job.shard(str(checkpoint), str(out), "60kB"))
    before = listing(out)
    (checkpoint / "README.md").mkdir()
    (checkpoint / "README.md/x.txt").write_text("x")
    with pytest.raises(DestinationError, match=r"README.md/x.txt of the source would replace a file"):
        finish(job.shard(str(checkpoint), str(out), "20kB"))
    assert listing(out) == before
