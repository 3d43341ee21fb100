"""What others do while a job runs, and what a Hub only says that it has done, costs nobody what is theirs."""

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from sharding import job
from sharding.core.errors import DestinationError, SourceError
from sharding.core.events import ShardFinished
from sharding.job import Event
from sharding.localhub import records
from sharding.report.schema import Report
from sharding.storage.hub.staging import STAGING_BRANCH
from tests.conftest import random_tensors, write_checkpoint
from tests.folders import kept, until_shard
from tests.hubs import TOKEN, branches, exists, files_of, push, shard
from tests.inhouse import InHouse, hub_in_house
from tests.scenarios.conftest import SOURCE
from tests.test_job import replace_alike

INDEX = "model.safetensors.index.json"

pytestmark = pytest.mark.usefixtures("nothing_stays_on_this_disk")


def begin(hub: InHouse, name: str, source: str = SOURCE) -> Generator[Event, None, None]:
    return job.shard(source, name, "45kB", endpoint=hub.address, token=TOKEN)


def begun(hub: InHouse, name: str, source: str = SOURCE) -> tuple[Generator[Event, None, None], ShardFinished]:
    """A job that has finished a shard and goes on when it is asked for more, and that shard."""
    events = begin(hub, name, source)
    return events, until_shard(events)


def run_again(hub: InHouse, name: str, source: str = SOURCE) -> int:
    """Run the job to its end; return how many shards of an earlier run it kept."""
    *events, report = begin(hub, name, source)
    assert isinstance(report, Report) and report.verification.identical
    assert branches(hub, name) == {"main"} and INDEX in files_of(hub, name)
    return kept(events)


# --- Source and destination change --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("vanish", "says"),
    [
        (lambda hub, source: (hub.api().delete_repo(source), hub.api().create_repo(source)), "has no revision '"),
        (lambda hub, source: hub.api().delete_repo(source), "does not exist"),
    ],
    ids=["another history", "deleted repo"],
)
def test_a_source_that_vanishes_ends_the_job_and_keeps_what_was_moved(
    hub: InHouse, name: str, folder: Path, vanish: Callable[[InHouse, str], object], says: str
) -> None:
    source = push(hub, folder, f"{name}-source")
    events, _ = begun(hub, name, source)
    vanish(hub, source)
    with pytest.raises(SourceError, match=says) as refusal:
        list(events)
    assert refusal.value.hint
    assert INDEX not in files_of(hub, name)
    assert job.find_unfinished(name, endpoint=hub.address, token=TOKEN)
    assert job.discard(name, endpoint=hub.address, token=TOKEN).repo_deleted
    assert not exists(hub, name)


def test_a_destination_or_its_branch_that_somebody_deletes_ends_the_job_which_makes_it_anew(
    hub: InHouse, name: str
) -> None:
    events, _ = begun(hub, name)
    hub.api().delete_branch(name, branch=STAGING_BRANCH)
    with pytest.raises(DestinationError, match="branch .* is gone") as refusal:
        list(events)
    assert "again" in refusal.value.hint
    assert files_of(hub, name) == {".gitattributes"}
    events, _ = begun(hub, name)
    hub.api().delete_repo(name)
    with pytest.raises(DestinationError, match=f"The repo {name} does not exist"):
        list(events)
    assert not exists(hub, name)
    run_again(hub, name)


def test_somebody_elses_commit_ends_the_job_which_names_the_files_and_they_stay_beside_the_next(
    hub: InHouse, name: str
) -> None:
    shard(hub, SOURCE, name, "60kB")
    events, _ = begun(hub, name)
    hub.api().upload_file(path_or_fileobj=b"mine", path_in_repo="notes.txt", repo_id=name)
    before = files_of(hub, name)
    for go_on in (events, begin(hub, name)):
        with pytest.raises(DestinationError, match=r"meanwhile \(new or changed: notes\.txt\)") as refusal:
            list(go_on)
    assert "discard" in refusal.value.hint
    assert files_of(hub, name) == before
    job.discard(name, endpoint=hub.address, token=TOKEN)
    run_again(hub, name)
    assert "notes.txt" in files_of(hub, name)


def test_a_quota_that_fills_up_keeps_what_was_moved_and_the_job_goes_on_when_there_is_room(
    tmp_path: Path, folder: Path
) -> None:
    with hub_in_house(tmp_path / "small", quota_bytes=350_000) as hub:
        push(hub, write_checkpoint(tmp_path / "other", {"model.safetensors": random_tensors(8)}), "alice/other")
        with pytest.raises(DestinationError, match="[Ss]torage") as refusal:
            list(begin(hub, "alice/made", str(folder)))
        assert "Free some storage" in refusal.value.hint
        assert INDEX not in files_of(hub, "alice/made")
        hub.api().delete_repo("alice/other")
        assert run_again(hub, "alice/made", str(folder)) > 0


def test_what_a_job_asks_grows_with_its_shards_and_not_with_its_tensors(
    hub: InHouse, name: str, tmp_path: Path
) -> None:
    tensors = {f"layers.{n}.weight": np.full(30, n, np.float32) for n in range(1000)}
    source = push(hub, write_checkpoint(tmp_path / "many", {"model.safetensors": tensors}, index=False), f"{name}-many")
    hub.log.clear()
    report = shard(hub, source, name, "40kB")
    assert len(hub.log) <= 40 + 15 * len(report.plan.shards) < 200 and report.resources.read_requests < 30


def test_a_staged_shard_that_the_hub_confirms_and_has_not_is_moved_again(
    hub: InHouse, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, _ = begun(hub, name)
    point, seen = records.point, list[str]()

    def pointed(db: Any, repo: Any, kind: str, branch: str, commit: Any) -> None:
        """Leave the branch where it was, the first time."""
        if branch != STAGING_BRANCH or seen:
            point(db, repo, kind, branch, commit)
        else:
            seen.append(branch)

    monkeypatch.setattr(records, "point", pointed)
    with pytest.raises(SourceError, match="does not list model-00002") as refusal:
        list(events)
    assert "again" in refusal.value.hint
    assert INDEX not in files_of(hub, name)
    assert run_again(hub, name) > 0


def test_what_is_staged_of_a_folder_that_has_changed_unseen_is_made_again(
    hub: InHouse, name: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.storage.folder_source.is_steady", lambda folder: False)
    events, _ = begun(hub, name, str(checkpoint))
    events.close()
    for file in checkpoint.glob("*.safetensors"):
        replace_alike(file, {name: array[::-1].copy() for name, array in load_file(file).items()})
    assert run_again(hub, name, str(checkpoint)) == 0
