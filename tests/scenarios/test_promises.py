"""What a Hub says and does not do, and what others do to a job's own files on it, costs nobody a byte."""

import gc
import re
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from huggingface_hub import CommitOperationAdd
from safetensors.numpy import load_file

from sharding import job
from sharding.core.errors import DestinationError, ShardingError, SourceError
from sharding.core.events import ShardFinished
from sharding.core.values import ShardRecord
from sharding.job import Event
from sharding.localhub import records
from sharding.report.schema import Report
from sharding.storage.hub import retry
from sharding.storage.hub.staging import RECORDS, STAGING_BRANCH
from sharding.storage.records import record_line
from tests.conftest import random_tensors, write_checkpoint
from tests.hubs import TOKEN, branches, exists, files_of, push, shard
from tests.inhouse import InHouse, hub_in_house
from tests.test_job import replace_alike

SOURCE, MADE = "alice/source", "alice/made"
INDEX = "model.safetensors.index.json"


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "NETWORK_WAIT_SECONDS", 0.001)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[InHouse]:
    with hub_in_house(tmp_path / "hub") as hub:
        push(hub, write_checkpoint(tmp_path / "in", {"model.safetensors": random_tensors()}, index=False), SOURCE)
        yield hub


def begin(hub: InHouse, size: str = "20kB") -> Generator[Event, None, None]:
    return job.shard(SOURCE, MADE, size, endpoint=hub.address, token=TOKEN)


def until_a_shard(events: Generator[Event, None, None]) -> ShardFinished:
    return next(event for event in events if isinstance(event, ShardFinished))


def run_again(hub: InHouse) -> int:
    """Run the job to its end; return how many shards of an earlier run it kept."""
    *events, report = begin(hub)
    assert isinstance(report, Report)
    assert report.verification.identical
    assert branches(hub, MADE) == {"main"}
    assert INDEX in files_of(hub, MADE)
    return len([event for event in events if isinstance(event, ShardFinished) and event.kept])


# --- The Hub says that it has done it -----------------------------------------------------------------


@pytest.fixture
def forget(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    """Have the Hub confirm commit number `number` to a branch, and leave the branch where it was."""

    def forget(branch: str, number: int) -> None:
        point, seen = records.point, iter(range(1, 1000))

        def pointed(db: Any, repo: Any, kind: str, name: str, commit: Any) -> None:
            if name != branch or next(seen) != number:
                point(db, repo, kind, name, commit)

        monkeypatch.setattr(records, "point", pointed)

    return forget


def test_a_result_that_the_hub_confirms_and_does_not_show_stays_staged(
    hub: InHouse, forget: Callable[[str, int], None]
) -> None:
    events = begin(hub)
    until_a_shard(events)
    forget("main", 1)
    with pytest.raises(DestinationError, match="does not show it") as refusal:
        list(events)
    assert "still staged" in refusal.value.hint
    assert files_of(hub, MADE) == {".gitattributes"}
    assert run_again(hub) > 1


def test_a_staged_shard_that_the_hub_confirms_and_has_not_is_moved_again(
    hub: InHouse, forget: Callable[[str, int], None]
) -> None:
    events = begin(hub)
    until_a_shard(events)
    forget(STAGING_BRANCH, 1)
    with pytest.raises(SourceError, match="does not list model-00002") as refusal:
        list(events)
    assert "again" in refusal.value.hint
    assert INDEX not in files_of(hub, MADE)
    assert run_again(hub) > 0


def test_a_result_whose_answer_was_lost_is_published_once(hub: InHouse) -> None:
    with hub.failing("cut:0@POST .*/commit/main#1"):
        shard(hub, SOURCE, MADE)
    assert len(hub.api().list_repo_commits(MADE)) == 2  # the first is of the repo itself
    assert branches(hub, MADE) == {"main"}


def test_patience_ends_where_the_hub_asks_for_too_much(hub: InHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    events = begin(hub)
    until_a_shard(events)
    monkeypatch.setattr(retry, "LONGEST_WAIT_SECONDS", -1)  # what the Hub of these tests asks for is to wait 0 seconds
    with hub.failing("status:429@POST .*/commit/"), pytest.raises(DestinationError, match="slow down"):
        list(events)
    assert hub.asked(f"POST .*{MADE}/commit/main") == 0
    monkeypatch.undo()
    assert run_again(hub) > 0


# --- Others change what a job has staged --------------------------------------------------------------


def commit(hub: InHouse, *files: tuple[str, bytes]) -> None:
    operations = [CommitOperationAdd(path, data) for path, data in files]
    hub.api().create_commit(MADE, operations, commit_message="Mine", revision=STAGING_BRANCH)


def staged(hub: InHouse, file: str, folder: Path) -> Path:
    return Path(hub.api().hf_hub_download(MADE, file, revision=STAGING_BRANCH, local_dir=folder))


def test_a_staged_shard_that_somebody_replaces_is_not_published(hub: InHouse, tmp_path: Path) -> None:
    events = begin(hub)
    shown = until_a_shard(events)
    data = staged(hub, shown.file, tmp_path).read_bytes()
    commit(hub, (shown.file, data[:-1] + bytes([data[-1] ^ 1])))
    *_, report = events
    assert isinstance(report, Report)
    assert not report.verification.identical
    assert not exists(hub, MADE) or INDEX not in files_of(hub, MADE)
    run_again(hub)


def test_a_record_of_what_is_no_part_of_the_job_is_passed_over(hub: InHouse, tmp_path: Path) -> None:
    events = begin(hub)
    shown = until_a_shard(events)
    events.close()
    data = b"anything" * 100
    (stored,) = [file for file in hub.api().list_repo_tree(MADE, revision=STAGING_BRANCH) if file.path == shown.file]
    foreign = ShardRecord("model-00099-of-00099.safetensors", stored.size, stored.lfs.sha256, {})  # type: ignore[union-attr]
    wrong = ShardRecord(shown.file, stored.size, stored.lfs.sha256, {"no.such.tensor": "0" * 64})  # type: ignore[union-attr]
    commit(
        hub,
        ("notes.bin", data),
        (f"{RECORDS}{foreign.file}.json", record_line(foreign)),
        (f"{RECORDS}{wrong.file}.json", record_line(wrong)),
        (f"{RECORDS}nonsense.json", b'{"file": 3'),
    )
    hub.api().create_commit(
        MADE,
        [CommitOperationAdd(foreign.file, staged(hub, shown.file, tmp_path))],
        commit_message="Mine",
        revision=STAGING_BRANCH,
    )
    run_again(hub)
    assert foreign.file not in files_of(hub, MADE)


def test_what_is_staged_of_a_folder_that_has_changed_unseen_is_made_again(
    hub: InHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.storage.folder_source.is_steady", lambda folder: False)
    folder, access = tmp_path / "in", {"endpoint": hub.address, "token": TOKEN}
    events = job.shard(str(folder), MADE, "20kB", **access)  # type: ignore[arg-type]
    until_a_shard(events)
    events.close()
    weights = folder / "model.safetensors"
    replace_alike(weights, {name: array[::-1].copy() for name, array in load_file(weights).items()})
    *again, report = job.shard(str(folder), MADE, "20kB", **access)  # type: ignore[arg-type]
    assert isinstance(report, Report) and report.verification.identical
    assert not [event for event in again if isinstance(event, ShardFinished) and event.kept]


@pytest.mark.parametrize(
    ("size", "why"),
    [
        ("20kB", "meanwhile .new or changed: |is gone, but the job writes to it"),
        ("60kB", "holds an unfinished job of another plan"),
    ],
    ids=["the same plan", "another plan"],
)
def test_of_two_jobs_at_once_one_shows_its_whole_result_and_the_other_is_refused(
    hub: InHouse, size: str, why: str
) -> None:
    jobs = [begin(hub), begin(hub, size)]
    for events in jobs:
        next(events)  # planned, and nothing staged: neither knows of the other
    refused = list[ShardingError]()
    while jobs:
        for events in list(jobs):
            try:
                next(events)
            except StopIteration:
                jobs.remove(events)
            except ShardingError as error:
                refused.append(error)
                jobs.remove(events)
    (error,) = refused
    assert isinstance(error, DestinationError) and error.hint
    assert re.search(f"{MADE} ({why})", str(error))
    assert branches(hub, MADE) == {"main"}
    assert len([file for file in files_of(hub, MADE) if file.endswith(".safetensors")]) == 14
    *_, verified = job.verify(SOURCE, MADE, endpoint=hub.address, token=TOKEN)
    assert verified.verification.identical  # type: ignore[union-attr]


# --- What was granted expires -------------------------------------------------------------------------


@pytest.fixture
def strict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InHouse]:
    """A Hub whose store is reached over HTTP with grants that are good for three seconds."""
    monkeypatch.setattr("sharding.storage.hub.client.Hub.least_xet_bytes", 10_000)
    tensors = {f"layers.{n}.weight": np.random.default_rng(n).random(20_000, np.float32) for n in range(6)}
    with hub_in_house(tmp_path / "strict", xet_over_http=True, xet_seconds=3) as hub:
        push(hub, write_checkpoint(tmp_path / "in", {"model.safetensors": tensors}, index=False), SOURCE)
        yield hub


@pytest.mark.parametrize(
    "slow",
    ["POST /cas/v1/xorbs/", pytest.param("GET /cas/xorbs/", marks=pytest.mark.thorough)],
    ids=["upload", "download"],
)
def test_access_to_the_store_that_expires_in_mid_job_is_renewed(strict: InHouse, slow: str) -> None:
    rate = 100_000 if slow.startswith("POST") else 200_000
    with strict.failing(f"slow:{rate}@{slow}"):
        shard(strict, SOURCE, MADE, "170kB")
    assert strict.asked(f"{MADE}/xet-write-token" if slow == "POST /cas/v1/xorbs/" else "xet-read-token") > 2
    assert branches(strict, MADE) == {"main"}


def test_the_store_is_told_nothing_but_the_transfer_itself(strict: InHouse) -> None:
    strict.log.clear()  # the client itself, which has brought the source, is as talkative as it likes
    shard(strict, SOURCE, MADE, "170kB")
    gc.collect()  # a session that has ended tells what it has kept for that
    assert strict.asked("POST /cas/v1/xorbs/") and strict.asked("GET /cas/xorbs/")
    assert not strict.asked("/v1/telemetry")


@pytest.mark.parametrize("days", [pytest.param(-1, marks=pytest.mark.thorough), 1])
def test_a_clock_that_jumps_ends_no_job(strict: InHouse, monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    import time

    moments = iter(range(1_000_000))
    clock = SimpleNamespace(time=lambda: time.time() + (days * 86_400 if next(moments) > 3 else 0))
    monkeypatch.setattr("sharding.storage.hub.client.time", clock)
    with strict.failing(*(["slow:300000@GET /cas/xorbs/"] if days < 0 else [])):  # by then all grants have expired
        assert shard(strict, SOURCE, MADE, "100kB").verification.identical
    assert next(moments) > 4
