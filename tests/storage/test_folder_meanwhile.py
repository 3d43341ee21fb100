"""What happens to a folder while a job writes to it: others put files there, take it over, or keep something in it."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sharding import job
from sharding.core.errors import DestinationError, SourceError
from sharding.core.events import ShardFinished, Verified
from sharding.core.values import ShardRecord
from sharding.formats.names import STAGING_FOLDER
from sharding.job import Event
from sharding.storage.folder_destination import FolderDestination
from sharding.storage.folder_source import FolderSource
from sharding.storage.journal import JOURNAL_NAME, LEASE_NAME
from tests.conftest import listing
from tests.fleet.hands import Hands, led
from tests.folders import finish, staged
from tests.storage.publications import begun, job_of, shown

__all__ = ["led"]

INDEX = "model.safetensors.index.json"
ANOTHER = "elsewhere 17 1.0 abc"
"""What another machine writes into a lease."""


def until(events: Iterator[Event], kind: type[Event]) -> None:
    next(event for event in events if isinstance(event, kind))


# --- Files that somebody puts there -------------------------------------------------------------------------

NEW = ["model-00002-of-00003.safetensors", "model.safetensors", "vocab.txt", "sub/new.json", "model_index.json"]
"""A shard, weights that would be loaded instead, files beside them, one in a folder, and what makes a pipeline."""


@pytest.mark.parametrize(
    ("name", "moment"), [*((name, "verified") for name in NEW), *((name, "reading") for name in NEW[1:3])]
)
def test_a_file_put_there_before_the_very_end_stays_and_so_does_the_earlier_result(
    source: Path, out: Path, name: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(job.shard(str(source), str(out), "400B"))
    for new in ("vocab.txt", "sub/new.json", "last.json"):
        (source / new).write_text("theirs")
    before = shown(out)
    read = FolderSource.read
    is_due = False

    def put_meanwhile(self: FolderSource, file: str, start: int, end: int) -> Iterator[bytes]:
        if is_due and file == "last.json":  # the files beside the weights are being read
            (out / name).write_bytes(b"mine")
        yield from read(self, file, start, end)

    monkeypatch.setattr(FolderSource, "read", put_meanwhile)
    events = job.shard(str(source), str(out), "200B")
    until(events, Verified)
    is_due = moment == "reading"
    if moment == "verified":
        (out / name).write_bytes(b"mine")
    with pytest.raises(DestinationError, match=name) as refusal:
        finish(events)
    assert "--overwrite" in refusal.value.hint
    assert shown(out) == {**before, name: b"mine"}
    monkeypatch.undo()
    with pytest.raises(DestinationError, match=name):
        finish(job.shard(str(source), str(out), "200B"))
    assert shown(out) == {**before, name: b"mine"}
    (out / name).unlink()
    *events_again, report = job.shard(str(source), str(out), "200B")
    assert [event.kept for event in events_again if isinstance(event, ShardFinished)] == [True] * 3
    assert report.verification.identical and not staged(out).exists()  # type: ignore[union-attr]


def test_a_file_beside_the_weights_that_cannot_be_read_leaves_the_earlier_result_whole(source: Path, out: Path) -> None:
    finish(job.shard(str(source), str(out), "400B"))
    before = shown(out)
    for new in ("a.json", "z.json"):
        (source / new).write_text("{}")
    events = job.shard(str(source), str(out), "200B", overwrite=True)
    until(events, Verified)
    (source / "z.json").write_text("another")
    with pytest.raises(SourceError, match=r"z.json changed"):
        finish(events)
    assert shown(out) == before


# --- A folder that another job has taken over -----------------------------------------------------------------


@pytest.mark.parametrize("deed", ["publish", "note"])
def test_a_job_that_has_lost_its_folder_writes_nothing_more_there(out: Path, deed: str) -> None:
    target = begun(out, {"model.safetensors": b"one"}, is_shared=True)
    (staged(out) / LEASE_NAME).write_text(ANOTHER)
    (staged(out) / "other.safetensors.part").write_bytes(b"of the other")
    before = listing(out)
    with pytest.raises(DestinationError, match="another job has taken it over"):
        if deed == "publish":
            records = {"model.safetensors": ShardRecord("model.safetensors", 3, "0" * 64, {})}
            target.publish(records, [], FolderSource("in", {}), {"config.json": b"{}"})
        else:
            target.note(ShardRecord("second.safetensors", 3, "0" * 64, {}))
    target.close()
    assert listing(out) == before


@pytest.mark.parametrize("workers", [None, "ray"])
def test_a_job_that_loses_its_folder_before_it_has_finished_a_shard_leaves_it_to_the_other(
    source: Path, out: Path, led: Callable[[Hands], Hands], workers: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    led(Hands())
    note, seen = FolderDestination.note, []

    def note_too_late(target: FolderDestination, shard: ShardRecord) -> None:
        (staged(out) / LEASE_NAME).write_text(ANOTHER)
        seen.append({path: data for path, data in listing(out).items() if not re.search(r"\.\w{32}\.part", path)})
        note(target, shard)

    monkeypatch.setattr(FolderDestination, "note", note_too_late)
    with pytest.raises(DestinationError, match="another job has taken it over.*: process 17 on elsewhere") as refused:
        finish(job.shard(str(source), str(out), "1GB", workers=workers))
    assert "could not be removed" not in refused.value.hint
    assert seen == [listing(out)], "what it has not finished goes, and nothing else"


# --- What else somebody keeps there ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kept", "folders"),
    [
        ("mine.txt", {"new"}),
        ("a/mine.txt", {"new", "new/a"}),
        ("a/out/mine.txt", {"new", "new/a", "new/a/out"}),
        (f"a/out/{STAGING_FOLDER}/mine.txt", {"new", "new/a", "new/a/out", f"new/a/out/{STAGING_FOLDER}"}),
        ("", set()),
    ],
)
def test_a_discard_removes_its_jobs_folders_but_none_in_use(tmp_path: Path, kept: str, folders: set[str]) -> None:
    (tmp_path / "theirs").mkdir()
    target = begun(tmp_path / "new/a/out", {"model.safetensors": b"one"})
    target.open_shard("second.safetensors").write(b"half")
    if kept:
        (tmp_path / "new" / kept).write_bytes(b"mine")
    assert target.discard().found
    target.close()
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_dir()}
    assert left == {"theirs", *folders}
    assert listing(tmp_path) == ({f"new/{kept}": b"mine"} if kept else {})


def test_a_discard_leaves_a_folder_that_was_there_before_the_job(tmp_path: Path) -> None:
    (tmp_path / "new/out").mkdir(parents=True)
    target = begun(tmp_path / "new/out", {})
    assert target.discard().found
    target.close()
    assert list(tmp_path.rglob("*")) == [tmp_path / "new", tmp_path / "new/out"]
    assert not job.discard(str(tmp_path / "new/out")).found
    assert list(tmp_path.rglob("*")) == [tmp_path / "new", tmp_path / "new/out"]


# --- Jobs that are refused, and jobs that have ended ------------------------------------------------------------


@pytest.mark.parametrize("plan", ["plan", "another"])
@pytest.mark.parametrize("why", ["room", "names", "clash", "lock"])
def test_a_job_that_is_refused_as_it_begins_leaves_what_an_earlier_one_has_finished(
    out: Path, plan: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {f"model-{n}-of-2.safetensors": bytes([n]) * 9 for n in (1, 2)}
    first = begun(out, files)
    if why == "lock":
        first.open_shard("third.safetensors").write(b"half")
    else:
        first.close()
    if why == "names":
        (out / "config.json").write_text("mine")
    before = listing(out)
    beside = {"names": ["config.json"], "clash": ["Model-1-of-2.safetensors"]}.get(why, [])
    second = FolderDestination(out, overwrite=why == "lock", restart=plan == "another")
    kept = second.done(plan)
    assert set(kept) == (set(files) if plan == "plan" else set())
    with pytest.raises(DestinationError):
        second.prepare(job_of(plan), kept.values(), 10**18 if why == "room" else 0, files, beside)
    assert second.has_finished_shards == bool(kept)
    if why == "lock":
        with pytest.raises(DestinationError, match="Another job"):
            FolderDestination(out).discard()
    second.discard()
    second.close()
    assert listing(out) == before
    first.close()
    assert set(FolderDestination(out).done("plan")) == set(files)
    assert FolderDestination(out).unfinished() == job_of("plan")


def test_closing_removes_what_is_not_finished_and_nothing_else(out: Path) -> None:
    target = begun(out, {"a.safetensors": b"one", "unet/b.safetensors": b"two"})
    target.open_shard("c.safetensors").write(b"half")
    (staged(out) / "sharding_file0.part").write_bytes(b"beside")
    (out / "mine.safetensors.part").write_bytes(b"mine")
    target.close()
    shards = [f"{name}.safetensors{end}" for name in ("a", "unet%2Fb") for end in (".part", ".plan.record.part")]
    left = {f"{STAGING_FOLDER}/{name}" for name in (JOURNAL_NAME, *shards)}
    assert set(listing(out)) == {*left, "mine.safetensors.part"}
    again = FolderDestination(out)
    assert set(again.done("plan")) == {"a.safetensors", "unet/b.safetensors"}
    again.close()
    assert set(listing(out)) == {*left, "mine.safetensors.part"}
