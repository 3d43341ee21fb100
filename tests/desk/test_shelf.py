"""The folder of the jobs: what is kept in it, for how long, and who may look."""

import json
import os
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from stat import S_IMODE
from typing import Any

import pytest

from sharding.core.errors import Refused, Remedy
from sharding.core.options import Options
from sharding.core.verification import Outcome
from sharding.desk.job_store import Shelf
from sharding.desk.jobs import JobRecord, JobRequest, new_job_id
from tests.conftest import listing
from tests.desk.actors import PROGRESS
from tests.promises import promise


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    shelf = Shelf(tmp_path / "desk")
    yield shelf
    shelf.close()


def record(name: str, **more: Any) -> JobRecord:
    job_id, request = new_job_id(f"alice/{name}"), JobRequest("a/b", f"alice/{name}", Options())
    return replace(JobRecord(job_id, "alice", request, 1, 0.0), **more)


def place(tmp_path: Path, kept: JobRecord) -> Path:
    return tmp_path / "desk" / kept.id.split("/")[0]


def test_what_is_kept_comes_back_as_it_was_the_oldest_first(shelf: Shelf, tmp_path: Path) -> None:
    options = Options("1MB", variant="fp16", base="d/e")
    whole = record(
        "whole",
        request=JobRequest("a/b@c", "alice/whole", options, private=False, compare_rounds=3),
        **{"created": 5.0, "state": "failed", "started": 6.0, "ended": 7.0, "process": (8, 9.5), "seconds": 1.5},
        **{"error": ("a sentence", "a hint"), "remedy": Remedy("choose_variant", "fp16"), "remark": "é\n"},
        **{"result": "alice/whole@c", "peak_anon_bytes": 2, "disk_bytes_written": 3, "unreached": ("a/b@c",)},
        **{"outcome": Outcome("within", 3)},
    )
    plain, newest = record("plain", created=4.0), record("newest", created=6.0)
    for kept in (newest, whole, plain):
        shelf.save(kept)
    assert shelf.records() == [plain, whole, newest]
    assert [shelf.load(kept.id) for kept in (newest, whole, plain)] == [newest, whole, plain]
    changed = replace(plain, state="running")
    shelf.save(changed)
    assert shelf.records() == [changed, whole, newest]
    shelf.close()
    again = Shelf(tmp_path / "desk")
    assert again.records() == [changed, whole, newest]
    again.close()


def test_a_folder_is_one_desks_until_it_lets_go(shelf: Shelf, tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(Refused, match="Another page keeps its jobs in"):
            Shelf(tmp_path / "desk")
    shelf.close()
    Shelf(tmp_path / "desk").close()


def test_where_there_is_no_room_for_a_record_the_last_one_stays(shelf: Shelf, tmp_path: Path) -> None:
    """Half a record would be none: of that job nothing would be known any more."""
    kept = record("full", remark="x" * 100)
    shelf.save(kept)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            shelf.save(replace(kept, remark="y" * 20_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert shelf.load(kept.id) == kept and shelf.records() == [kept]
    shelf.save(replace(kept, remark="z" * 20_000))
    assert shelf.records() == [replace(kept, remark="z" * 20_000)]
    assert set(listing(place(tmp_path, kept))) == {"job.json"}


def test_an_event_that_cannot_be_read_hides_nothing_else(shelf: Shelf, tmp_path: Path) -> None:
    """Neither one of another version, nor one that was cut short, nor a line that is none."""
    kept = record("odd", ended=60.0, state="failed", error=("It failed.", "Try again."))
    shelf.save(kept)
    assert list(shelf.history(kept).told.log) == ["00:01:00 It failed."]
    shelf.note(kept.id, {**PROGRESS, "stage": "check"}, 1.0)
    odd: list[dict[str, object]] = [{"event": "party"}, {}, {**PROGRESS, "bytes_done": "many"}, {"error": 1}]
    for event in odd:
        shelf.note(kept.id, event, 2.0)
    with open(place(tmp_path, kept) / "events.jsonl", "ab") as stream:
        stream.write(b"[1]\nnull\nno json\n\xff\n\n" + json.dumps({"time": "noon", **PROGRESS}).encode() + b"\n")
        stream.write(json.dumps(PROGRESS).encode() + b"\n")  # it has no time
    shelf.note(kept.id, {**PROGRESS, "stage": "verify"}, 3.0)
    with open(place(tmp_path, kept) / "events.jsonl", "ab") as stream:
        stream.write(b'{"time": 4.0, "event": "prog')
    history = shelf.history(kept)
    log = [" ".join(line.split()[:2]) for line in history.told.log]
    assert log == ["00:00:01 Checking", "00:00:03 Verifying.", "00:01:00 It"]
    assert history.told.progress and history.told.progress.phase == "verify"


def test_a_folder_without_a_record_that_can_be_read_is_no_job(shelf: Shelf, tmp_path: Path) -> None:
    kept = record("good")
    shelf.save(kept)
    earlier = (place(tmp_path, kept) / "job.json").read_text().replace('"strategy": "size"', '"strategy": "stages:2"')
    assert "stages:2" in earlier
    for name, text in (("empty", ""), ("strange", "{}"), ("cut", '{"id": "x'), ("earlier", earlier)):
        (tmp_path / "desk" / name).mkdir()
        (tmp_path / "desk" / name / "job.json").write_text(text)
    (tmp_path / "desk/nothing").mkdir()
    assert shelf.records() == [kept]


def test_noting_an_event_tells_how_many_bytes_it_took(shelf: Shelf, tmp_path: Path) -> None:
    kept = record("noted")
    shelf.save(kept)
    sizes = []
    for number, text in enumerate(("a", "é", "\ud800", "x" * 100_000)):
        sizes.append(shelf.note(kept.id, {"event": text}, float(number)))
        assert (place(tmp_path, kept) / "events.jsonl").stat().st_size == sum(sizes)
    assert len((place(tmp_path, kept) / "events.jsonl").read_bytes().splitlines()) == 4


def test_each_process_gets_an_empty_folder_and_what_it_left_is_removed(shelf: Shelf, tmp_path: Path) -> None:
    """Also where it left folders that cannot be written to; what is known of the job stays."""
    kept = record("worked")
    shelf.save(kept)
    shelf.note(kept.id, PROGRESS, 1.0)
    for _ in range(2):
        work = shelf.work_folder(kept.id)
        assert list(work.iterdir()) == [] and S_IMODE(work.stat().st_mode) == 0o700
        (work / "deep/er").mkdir(parents=True)
        (work / "deep/er/file").write_text("much")
        (work / "link").symlink_to(place(tmp_path, kept))
    shelf.clear(kept.id)
    shelf.clear(kept.id)
    assert {path.name for path in place(tmp_path, kept).iterdir()} == {"job.json", "events.jsonl"}


@promise("docs/security.md#take-the-lock-of-the-page")
def test_nobody_else_can_look_into_anything_that_is_kept(tmp_path: Path) -> None:
    """Whatever the mask of the one who starts the page."""
    before = os.umask(0)
    try:
        shelf, kept = Shelf(tmp_path / "desk"), record("hidden")
        shelf.save(kept)
        shelf.note(kept.id, PROGRESS, 1.0)
        work = shelf.work_folder(kept.id)
        shelf.close()
    finally:
        os.umask(before)
    assert S_IMODE((tmp_path / "desk/desk.lock").stat().st_mode) == 0o600
    folders = (tmp_path / "desk", place(tmp_path, kept), work)
    assert [S_IMODE(folder.stat().st_mode) for folder in folders] == [0o700] * 3


def test_what_is_old_is_removed_and_nothing_else(shelf: Shelf, tmp_path: Path) -> None:
    """By its end, and not by how long ago it came; a folder without a job by its own age."""
    jobs = {
        "ended long ago": record("a", created=10.0, ended=99.0, state="done"),
        "ended just so": record("b", created=10.0, ended=100.0, state="failed"),
        "ended lately": record("c", created=10.0, ended=101.0, state="cancelled"),
        "came long ago and runs": record("d", created=1.0, started=2.0, state="running"),
        "came long ago and waits": record("e", created=1.0),
        "also ended long ago": record("f", created=98.0, ended=98.5, state="interrupted"),
    }
    for kept in jobs.values():
        shelf.save(kept)
        shelf.note(kept.id, PROGRESS, 1.0)
        os.utime(place(tmp_path, kept), (1.0, 1.0))
    for name, seconds in (("old", 99.0), ("just so", 100.0), ("new", 101.0)):
        (tmp_path / "desk" / name).mkdir()
        (tmp_path / "desk" / name / "file").write_text("")
        os.utime(tmp_path / "desk" / name, (seconds, seconds))
    shelf.sweep(100.0)
    gone = {"ended long ago", "also ended long ago"}
    assert {what for what, kept in jobs.items() if not shelf.load(kept.id)} == gone
    assert {what for what, kept in jobs.items() if not place(tmp_path, kept).exists()} == gone
    there = {path.name for path in (tmp_path / "desk").iterdir()}
    assert there - {place(tmp_path, kept).name for kept in jobs.values()} == {"just so", "new", "desk.lock"}
