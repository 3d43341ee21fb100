"""A folder is written whole or not at all, and never over what somebody else wrote."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sharding import job
from sharding.core.errors import DestinationError
from sharding.core.events import ShardFinished, Verified
from sharding.storage import folder_destination as destination_room
from tests.conftest import listing, random_tensors, write_checkpoint
from tests.folders import arrays, finish, same

INDEX = "model.safetensors.index.json"


def test_nothing_stale_of_an_earlier_result_stays_beside_the_new_files(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "old_tokenizer.json").write_text("x")
    out = tmp_path / "out"
    finish(job.shard(str(checkpoint), str(out), "20kB"))
    (checkpoint / "old_tokenizer.json").unlink()
    (out / "notes of mine.txt").write_text("keep")
    finish(job.shard(str(checkpoint), str(out), "1GB"))
    names = {"config.json", "model.safetensors", "notes of mine.txt", "README.md"}
    names |= {"sharding_digests.json", "sharding_map.svg", "sharding_report.json"}
    assert set(listing(out)) == names


def test_a_folder_that_this_tool_did_not_write_is_refused_and_left_alone(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("x")
    with pytest.raises(DestinationError, match="not empty") as refusal:
        finish(job.shard(str(checkpoint), str(out), "60kB"))
    assert "--overwrite" in refusal.value.hint
    assert listing(out) == {"thesis.txt": b"x"}


def test_overwrite_replaces_foreign_weights_and_keeps_the_rest(checkpoint: Path, tmp_path: Path) -> None:
    out = write_checkpoint(tmp_path / "out", {"model-00001-of-00001.safetensors": random_tensors(3)})
    (out / "pytorch_model.bin").write_bytes(b"x")
    (out / "thesis.txt").write_text("x")
    finish(job.shard(str(checkpoint), str(out), "1GB", overwrite=True))
    assert same(arrays(out), random_tensors())
    assert not (out / INDEX).exists()
    assert not (out / "pytorch_model.bin").exists()
    assert (out / "thesis.txt").exists()


def test_an_earlier_result_stays_whole_until_the_new_one_is_verified(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    finish(job.shard(str(checkpoint), str(out), "60kB"))
    before = listing(out)
    events = job.shard(str(checkpoint), str(out), "20kB")
    for event in events:
        if isinstance(event, Verified):
            break
    assert {name: data for name, data in listing(out).items() if not name.endswith(".part")} == before
    events.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("place", ["inside", "same", "around"])
def test_a_destination_inside_the_source_or_around_it_is_refused(checkpoint: Path, place: str) -> None:
    out = {"inside": checkpoint / "out", "same": checkpoint, "around": checkpoint.parent}[place]
    before = listing(checkpoint)
    with pytest.raises(DestinationError, match="inside each other"):
        finish(job.shard(str(checkpoint), str(out), "60kB"))
    assert listing(checkpoint) == before


def test_a_file_in_place_of_the_destination_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("x")
    with pytest.raises(DestinationError, match="is a file"):
        finish(job.shard(str(checkpoint), str(tmp_path / "out"), "60kB"))


def test_a_destination_without_room_is_refused_with_the_figures(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = destination_room.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(destination_room.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(DestinationError, match=r"needs 2\d\d\.\d kB and the disk of .* has 1\.0 kB free"):
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


def test_a_disk_that_is_too_small_is_refused(checkpoint: Path, small_disk: Callable[[str], Path]) -> None:
    place = small_disk("size=100k")
    with pytest.raises(DestinationError, match="has 102.4 kB free"):
        finish(job.shard(str(checkpoint), str(place / "out"), "60kB"))
    assert list(place.iterdir()) == []


def test_a_disk_that_fills_up_meanwhile_keeps_finished_shards_and_says_so(
    checkpoint: Path, small_disk: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = small_disk("size=100k")
    usage = destination_room.shutil.disk_usage("/")
    monkeypatch.setattr(destination_room.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(DestinationError, match="is full"):
        finish(job.shard(str(checkpoint), str(place / "out"), "25kB"))
    assert "sharding_journal.part" in listing(place / "out")
    assert not (place / "out" / INDEX).exists()
    with pytest.raises(DestinationError, match="is full"):
        finish(job.shard(str(checkpoint), str(place / "all"), "1GB"))
    assert not (place / "all").exists()


def test_two_jobs_do_not_write_to_one_folder(checkpoint: Path, tmp_path: Path) -> None:
    first = job.shard(str(checkpoint), str(tmp_path / "out"), "20kB")
    next(event for event in first if isinstance(event, ShardFinished))
    with pytest.raises(DestinationError, match="Another job"):
        finish(job.shard(str(checkpoint), str(tmp_path / "out"), "60kB"))
    finish(first)
    assert same(arrays(tmp_path / "out"), random_tensors())
