"""What others do to source and destination while a job runs ends it in words, and costs nobody what is theirs."""

from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import numpy as np
import pytest

from sharding import job
from sharding.core.errors import DestinationError, ShardingError, SourceError
from sharding.core.events import ShardFinished
from sharding.job import Event
from sharding.storage.hub import retry
from sharding.storage.hub.staging import STAGING_BRANCH
from tests.conftest import random_tensors, write_checkpoint
from tests.hubs import TOKEN, branches, exists, files_of, push, shard
from tests.inhouse import InHouse, hub_in_house

SOURCE, MADE = "alice/source", "alice/made"
INDEX = "model.safetensors.index.json"

pytestmark = pytest.mark.usefixtures("nothing_stays_on_this_disk")


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "NETWORK_WAIT_SECONDS", 0.001)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "checkpoint", {"model.safetensors": random_tensors()}, index=False)


@pytest.fixture
def hub(tmp_path: Path, folder: Path) -> Iterator[InHouse]:
    with hub_in_house(tmp_path / "hub") as hub:
        push(hub, folder, SOURCE)
        yield hub


def begun(hub: InHouse, source: str = SOURCE) -> Generator[Event, None, None]:
    """A job that has finished a shard, and goes on when it is asked for more."""
    events = job.shard(source, MADE, "20kB", endpoint=hub.address, token=TOKEN)
    next(event for event in events if isinstance(event, ShardFinished))
    return events


def kept(events: Iterator[Event]) -> int:
    return len([event for event in events if isinstance(event, ShardFinished) and event.kept])


@pytest.mark.parametrize(
    ("vanish", "says"),
    [
        (lambda hub: hub.api().super_squash_history(SOURCE), "has no revision '"),
        (lambda hub: hub.api().delete_repo(SOURCE), "does not exist"),
    ],
    ids=["rewritten history", "deleted repo"],
)
def test_a_source_that_vanishes_ends_the_job_and_keeps_what_was_moved(
    hub: InHouse, vanish: Callable[[InHouse], None], says: str
) -> None:
    events = begun(hub)
    vanish(hub)
    with pytest.raises(SourceError, match=says) as refusal:
        list(events)
    assert refusal.value.hint
    assert INDEX not in files_of(hub, MADE)
    assert job.find_unfinished(MADE, endpoint=hub.address, token=TOKEN)
    assert job.discard(MADE, endpoint=hub.address, token=TOKEN).repo_deleted
    assert not exists(hub, MADE)


def test_a_staging_branch_that_somebody_deletes_ends_the_job_which_begins_anew(hub: InHouse) -> None:
    events = begun(hub)
    hub.api().delete_branch(MADE, branch=STAGING_BRANCH)
    with pytest.raises(DestinationError, match="branch .* is gone") as refusal:
        list(events)
    assert "again" in refusal.value.hint
    assert files_of(hub, MADE) == {".gitattributes"}
    assert shard(hub, SOURCE, MADE, "20kB").verification.identical
    assert branches(hub, MADE) == {"main"}


def test_a_destination_that_somebody_deletes_ends_the_job_which_makes_it_anew(hub: InHouse) -> None:
    events = begun(hub)
    hub.api().delete_repo(MADE)
    with pytest.raises(DestinationError, match="The repo alice/made does not exist"):
        list(events)
    assert not exists(hub, MADE)
    assert shard(hub, SOURCE, MADE, "20kB").verification.identical


def test_somebody_elses_commit_ends_the_job_which_names_the_files_and_they_stay_beside_the_next(hub: InHouse) -> None:
    shard(hub, SOURCE, MADE, "60kB")
    events = begun(hub)
    hub.api().upload_file(path_or_fileobj=b"mine", path_in_repo="notes.txt", repo_id=MADE)
    before = files_of(hub, MADE)
    with pytest.raises(DestinationError, match=r"meanwhile \(new or changed: notes\.txt\)"):
        list(events)
    with pytest.raises(DestinationError, match=r"meanwhile \(new or changed: notes\.txt\)") as refusal:
        shard(hub, SOURCE, MADE, "20kB")
    assert "discard" in refusal.value.hint
    assert files_of(hub, MADE) == before
    job.discard(MADE, endpoint=hub.address, token=TOKEN)
    assert shard(hub, SOURCE, MADE, "20kB").verification.identical
    assert "notes.txt" in files_of(hub, MADE)
    assert branches(hub, MADE) == {"main"}


def test_a_quota_that_fills_up_keeps_what_was_moved_and_the_job_goes_on_when_there_is_room(
    tmp_path: Path, folder: Path
) -> None:
    with hub_in_house(tmp_path / "small", quota_bytes=350_000) as hub:
        push(hub, write_checkpoint(tmp_path / "other", {"model.safetensors": random_tensors(8)}), "alice/other")
        events = job.shard(str(folder), MADE, "20kB", endpoint=hub.address, token=TOKEN)
        with pytest.raises(DestinationError, match="[Ss]torage") as refusal:
            list(events)
        assert "Free some storage" in refusal.value.hint
        assert INDEX not in files_of(hub, MADE)
        hub.api().delete_repo("alice/other")
        again = list(job.shard(str(folder), MADE, "20kB", endpoint=hub.address, token=TOKEN))
        assert kept(iter(again)) > 0
        assert branches(hub, MADE) == {"main"}


def test_a_login_that_is_withdrawn_keeps_what_was_moved(hub: InHouse) -> None:
    events = begun(hub)
    with hub.failing("status:401@.*"), pytest.raises(ShardingError, match="not valid or has expired"):
        list(events)
    assert kept(iter(list(job.shard(SOURCE, MADE, "20kB", endpoint=hub.address, token=TOKEN)))) > 0


# --- What a job asks of the Hub ------------------------------------------------------------------------


def test_a_job_of_many_shards_makes_few_commits(hub: InHouse, tmp_path: Path) -> None:
    tensors = {f"layers.{n}.weight": np.full(300, n, np.float32) for n in range(40)}
    many = write_checkpoint(tmp_path / "many", {"model.safetensors": tensors}, index=False)
    push(hub, many, "alice/many")
    hub.log.clear()
    events = list(job.shard("alice/many", MADE, "1200B", endpoint=hub.address, token=TOKEN))
    shards = [event for event in events if isinstance(event, ShardFinished)]
    assert len(shards) == 40
    assert hub.asked("POST .*/commit/") <= 4 + 1  # the beginning, the first, the rest, main; a minute may pass
    assert branches(hub, MADE) == {"main"}


def test_shards_that_are_not_noted_yet_are_when_a_job_is_stopped(hub: InHouse) -> None:
    events = begun(hub)
    for event in events:
        if isinstance(event, ShardFinished) and event.number == 6:
            events.close()
    assert kept(job.shard(SOURCE, MADE, "20kB", endpoint=hub.address, token=TOKEN)) >= 6


def test_what_a_job_asks_grows_with_its_shards_and_not_with_its_tensors(hub: InHouse, tmp_path: Path) -> None:
    tensors = {f"layers.{n}.weight": np.full(30, n, np.float32) for n in range(3000)}
    push(hub, write_checkpoint(tmp_path / "many", {"model.safetensors": tensors}, index=False), "alice/many")
    hub.log.clear()
    shards = shard(hub, "alice/many", MADE, "100kB").plan.shards
    assert len(hub.log) <= 40 + 15 * len(shards)
