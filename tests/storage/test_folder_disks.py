"""What a disk does to names is known before anything of an earlier copy is removed."""

import builtins
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sharding import job
from sharding.core.errors import DestinationError
from sharding.storage import folder_names
from tests.conftest import listing
from tests.folders import finish
from tests.hubs import shard
from tests.inhouse import InHouse


@pytest.fixture
def bound(checkpoint: Path, tmp_path: Path) -> Iterator[Path]:
    """The folder of the checkpoint under a second name."""
    place = tmp_path / "bound"
    place.mkdir()
    if subprocess.run(["mount", "--bind", checkpoint, place], capture_output=True).returncode:
        pytest.skip("This process may not mount anything.")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("below", ["", "out"])
def test_the_source_under_another_name_is_never_the_destination(checkpoint: Path, bound: Path, below: str) -> None:
    before = listing(checkpoint)
    for source, out in ((checkpoint, bound / below), (bound, checkpoint / below)):
        with pytest.raises(DestinationError, match="inside the source"):
            finish(job.shard(str(source), str(out), "20kB", overwrite=True))
    assert listing(checkpoint) == before


def test_a_folder_that_becomes_the_source_stays(checkpoint: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finish(job.shard(str(checkpoint), str(out), "20kB"))
    before = listing(out)
    work = job.shard(str(checkpoint), str(out), "1GB")
    next(work)
    monkeypatch.setattr(folder_names, "lies_in", lambda inner, outer: {inner, outer} == {out, checkpoint})
    with pytest.raises(DestinationError, match="inside the source"):
        list(work)
    assert {name: data for name, data in listing(out).items() if name in before} == before


def test_a_name_that_the_disk_does_not_take_leaves_an_earlier_copy_whole(hub: InHouse, own: str, out: Path) -> None:
    shard(hub, own, str(out), "9kB")
    before = listing(out)
    hub.put(own, f"{'n' * 303}.txt")
    with pytest.raises(DestinationError, match="n" * 300):
        shard(hub, own, str(out), "1GB")
    assert listing(out) == before


def test_names_that_are_one_on_this_disk_are_refused_before_anything_is_written(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkpoint / "LICENSE").write_text("mine")
    (checkpoint / "License").write_text("yours")

    def ignoring_case(place: Path, mode: str) -> Any:
        return builtins.open(place.with_name(place.name.lower()), mode)

    finish(job.shard(str(checkpoint), str(tmp_path / "both"), "20kB"))
    assert {"LICENSE", "License"} < listing(tmp_path / "both").keys()
    monkeypatch.setattr(folder_names, "open", ignoring_case, raising=False)
    with pytest.raises(DestinationError, match="LICENSE|License") as refusal:
        finish(job.shard(str(checkpoint), str(tmp_path / "out"), "20kB"))
    assert "nearly the same" in refusal.value.message
    assert listing(tmp_path / "out") == {}


def test_a_file_in_the_place_of_a_folder_is_known_before_an_earlier_copy_goes(checkpoint: Path, out: Path) -> None:
    finish(job.shard(str(checkpoint), str(out), "20kB"))
    (out / "notes").write_text("mine")
    before = listing(out)
    (checkpoint / "notes").mkdir()
    (checkpoint / "notes/one.txt").write_text("theirs")
    with pytest.raises(DestinationError, match="notes is a file"):
        finish(job.shard(str(checkpoint), str(out), "1GB"))
    assert listing(out) == before
