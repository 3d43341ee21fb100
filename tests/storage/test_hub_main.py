"""What somebody else puts into a repo while a job runs is neither replaced, nor shown, nor taken for the job's own."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sharding import job
from sharding.core.errors import DestinationError
from sharding.core.events import Planned, Published, ShardFinished, Verified
from sharding.job import Event
from sharding.storage.hub.destination import HubDestination
from sharding.storage.hub.main import MainBranch
from sharding.storage.hub.staging import RECORDS, STAGING_BRANCH, StagingBranch
from tests.conftest import random_tensors, write_checkpoint
from tests.folders import arrays, finish, kept, same
from tests.hubs import SOURCE, TOKEN, branches, download, exists, files_of, is_private, push, remark_of, shard
from tests.inhouse import InHouse
from tests.storage.steps import start

MINE = b"---\nlicense: mit\n---\nMy own words.\n"


# --- A new repo -------------------------------------------------------------------------------------------


def test_a_repo_that_somebody_fills_before_the_job_creates_it_is_left_alone(hub: InHouse, name: str) -> None:
    events = start(hub, name, Planned)
    hub.api().create_repo(name, private=True)
    hub.put(name, "secret.txt")
    with pytest.raises(DestinationError, match="already holds files that this tool did not write"):
        list(events)
    assert (files_of(hub, name), branches(hub, name)) == ({".gitattributes", "secret.txt"}, {"main"})
    assert is_private(hub, name)


@pytest.mark.parametrize("fails", [False, True])
def test_an_empty_repo_that_somebody_made_first_is_not_shown_or_deleted(hub: InHouse, name: str, fails: bool) -> None:
    events = start(hub, name, Planned, private=False)
    hub.api().create_repo(name, private=True)
    if fails:
        with hub.failing("status:403@POST .*/branch/"), pytest.raises(DestinationError):
            list(events)
        assert exists(hub, name)
    else:
        remark = remark_of(events)
        assert "stays private" in remark and f"{hub.address}/{name}/settings" in remark
        assert "sharding_report.json" in files_of(hub, name) and is_private(hub, name)


@pytest.mark.parametrize("where", ["main", "a tag"])
def test_a_repo_is_not_shown_with_what_somebody_has_put_there_since(
    hub: InHouse, name: str, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    publish = MainBranch.publish

    def and_then(main: MainBranch, *given: Any) -> str:
        commit = publish(main, *given)
        hub.put(name, "secret.txt") if where == "main" else hub.api().create_tag(name, tag="mine")
        return commit

    monkeypatch.setattr(MainBranch, "publish", and_then)
    assert "somebody else has changed" in remark_of(start(hub, name, Planned, private=False))
    assert is_private(hub, name) and STAGING_BRANCH not in branches(hub, name)


# --- Two jobs ---------------------------------------------------------------------------------------------


def finish_both(hub: InHouse, name: str, first: Callable[[], Iterator[Event]], second: Iterator[Event]) -> None:
    """Run `second`, which must be refused, and then `first`, which must not notice."""
    with pytest.raises(DestinationError) as refusal:
        list(second)
    assert refusal.value.hint
    report = finish(first())
    assert report.verification.identical
    shards = {path for path in files_of(hub, name) if path.endswith(".safetensors")}
    assert shards == {shard.file for shard in report.shards} and branches(hub, name) == {"main"}


@pytest.mark.parametrize("restart", [False, True])
def test_of_two_jobs_to_a_new_repo_one_is_refused_and_one_loses_nothing(hub: InHouse, name: str, restart: bool) -> None:
    second = start(hub, name, Planned, "20kB", restart=restart)
    first = start(hub, name, ShardFinished)
    finish_both(hub, name, lambda: first, second)


@pytest.mark.parametrize(("room", "step"), [(HubDestination, "_create"), (StagingBranch, "begin")])
def test_whichever_step_another_job_comes_after_one_of_both_is_refused(
    hub: InHouse, name: str, monkeypatch: pytest.MonkeyPatch, room: type, step: str
) -> None:
    others: list[Iterator[Event]] = []
    usual: Callable[..., None] = getattr(room, step)

    def and_then(self: object, *given: Any) -> None:
        usual(self, *given)
        if not others:
            others.append(iter(()))  # not once more for the other one
            others.append(start(hub, name, ShardFinished, "20kB"))

    monkeypatch.setattr(room, step, and_then)
    ours = start(hub, name, Planned)
    if step == "begin":  # the other came last, and is refused
        with pytest.raises(DestinationError, match="unfinished job of another plan"):
            list(ours)
    else:
        finish_both(hub, name, lambda: others[1], ours)


@pytest.mark.parametrize("until", ["its first shard", "its last shard"])
def test_of_two_runs_of_a_command_at_once_one_publishes_the_other_says_so(hub: InHouse, name: str, until: str) -> None:
    first, second = start(hub, name, ShardFinished), start(hub, name, ShardFinished)
    if until == "its last shard":
        next(event for event in second if isinstance(event, ShardFinished) and event.number == event.shards)
    ended = []
    for events in (first, second):
        try:
            ended.append(next(event.ref.revision for event in events if isinstance(event, Published)))
        except DestinationError as error:
            assert error.hint
        events.close()  # a collector of garbage might do so in a thread of the Hub, which would wait for itself
    assert ended == [hub.api().model_info(name).sha]
    assert shard(hub, SOURCE, name, "9kB").verification.identical and branches(hub, name) == {"main"}


# --- Going on ---------------------------------------------------------------------------------------------


def test_a_job_that_goes_on_replaces_nothing_that_came_to_main_and_shows_nothing(hub: InHouse, name: str) -> None:
    start(hub, name, ShardFinished, private=False).close()
    hub.put(name, "secret.txt")
    before = hub.put(name, "config.json", b'{"mine": true}')
    with pytest.raises(DestinationError, match=r"that this tool did not write: config\.json, secret\.txt"):
        shard(hub, SOURCE, name, "9kB", private=False)
    assert hub.api().model_info(name).sha == before and is_private(hub, name)
    discarded = job.discard(name, endpoint=hub.address, token=TOKEN)
    assert (discarded.found, discarded.repo_deleted) == (True, False)
    assert files_of(hub, name) == {".gitattributes", "secret.txt", "config.json"} and is_private(hub, name)


@pytest.mark.parametrize("then", ["goes on", "is discarded", "is refused"])
def test_a_result_that_is_shown_stays_although_its_staging_branch_is_there(hub: InHouse, name: str, then: str) -> None:
    with hub.failing(f"status:403@DELETE .*{STAGING_BRANCH}"), pytest.raises(DestinationError):
        shard(hub, SOURCE, name, "9kB")
    shown = files_of(hub, name)
    assert STAGING_BRANCH in branches(hub, name) and "model-00003-of" in " ".join(shown)
    if then == "is refused":
        before = hub.put(name, "config.json", b'{"mine": true}')
        with pytest.raises(DestinationError, match=rf"Somebody has changed {name} meanwhile .*config\.json"):
            shard(hub, SOURCE, name, "9kB")
        assert hub.api().model_info(name).sha == before and STAGING_BRANCH in branches(hub, name)
        return
    if then == "goes on":
        assert shard(hub, SOURCE, name, "9kB").verification.identical
    else:
        discarded = job.discard(name, endpoint=hub.address, token=TOKEN)
        assert (discarded.found, discarded.repo_deleted) == (True, False)
    assert (files_of(hub, name), branches(hub, name)) == (shown, {"main"})


STRANGE = {  # what somebody has put beside an earlier copy, and what the source has anew
    "notes.txt": "notes.txt",
    "assets": "assets/a.txt",
    "folder/deep/b.txt": "folder",
    "model.safetensors": "",  # it would be loaded instead of the copy
    "model-00001-of-00001.safetensors": "",
    "README.md": "",  # which was of the copy
    "config.json": "",
}


def text(hub: InHouse, name: str, path: str, folder: Path) -> bytes:
    return Path(hub.api().hf_hub_download(name, path, local_dir=folder, force_download=True)).read_bytes()


def test_what_others_put_beside_a_copy_or_change_stays(hub: InHouse, own: str, name: str, tmp_path: Path) -> None:
    shard(hub, own, name, "20kB")
    before = {path: text(hub, name, path, tmp_path) for path in STRANGE if path in files_of(hub, name)}
    for theirs in filter(None, STRANGE.values()):
        hub.put(own, theirs, b"theirs")
    for path in STRANGE:
        hub.put(name, path, MINE)
        hub.put(name, "more.txt", path.encode())  # what comes after changes nothing about that
        there, refused = files_of(hub, name), f"{name} has files that somebody else wrote or changed: {re.escape(path)}"
        with pytest.raises(DestinationError, match=refused) as refusal:
            shard(hub, own, name, "9kB")
        assert "--overwrite" in refusal.value.hint and text(hub, name, path, tmp_path) == MINE
        assert (files_of(hub, name), branches(hub, name)) == (there, {"main"})
        hub.put(name, path, before[path]) if path in before else hub.api().delete_file(path, name)
    for path in STRANGE:
        hub.put(name, path, MINE)
    assert shard(hub, own, name, "9kB", overwrite=True).verification.identical
    shown = files_of(hub, name)
    assert {"notes.txt", "assets/a.txt", "folder"} <= shown
    assert not {"assets", "folder/deep/b.txt", "model.safetensors", "model-00001-of-00001.safetensors"} & shown
    assert all(text(hub, name, path, tmp_path) != MINE for path in ("notes.txt", "README.md", "config.json"))


def test_an_edited_file_stays_where_the_source_has_it_no_more(
    hub: InHouse, own: str, name: str, tmp_path: Path
) -> None:
    for path in ("notes.txt", "labels.txt"):
        hub.put(own, path, b"theirs")
    shard(hub, own, name, "20kB")
    for path in ("notes.txt", "labels.txt"):
        hub.api().delete_file(path, own)
    hub.put(name, "notes.txt", MINE)
    hub.put(name, "more.txt")
    assert shard(hub, own, name, "9kB").verification.identical
    assert text(hub, name, "notes.txt", tmp_path) == MINE
    assert "labels.txt" not in files_of(hub, name)  # what is left of the earlier copy goes


# --- What is beside the copy ------------------------------------------------------------------------------


def test_records_that_main_brings_are_no_records(hub: InHouse, name: str, tmp_path: Path) -> None:
    other = write_checkpoint(tmp_path / "in", {"model.safetensors": random_tensors(3, 2000, seed=1)}, index=False)
    push(hub, other, f"{name}-other")
    start(hub, f"{name}-forged", Verified, source=f"{name}-other").close()
    forged = hub.api().snapshot_download(f"{name}-forged", revision=STAGING_BRANCH, local_dir=tmp_path / "forged")
    hub.api().create_repo(name)
    hub.api().upload_folder(repo_id=name, folder_path=forged, ignore_patterns=".cache/*")
    assert len([path for path in files_of(hub, name) if path.startswith(RECORDS)]) > 3
    shard(hub, SOURCE, f"{name}-whole", "9kB")
    report = hub.api().hf_hub_download(f"{name}-whole", "sharding_report.json", local_dir=tmp_path)
    hub.put(name, "sharding_report.json", report)  # else nothing is published there
    events = start(hub, name, ShardFinished, overwrite=True)
    recorded = {path for path in files_of(hub, name, STAGING_BRANCH) if path.startswith(RECORDS)}
    assert f"{RECORDS}job.json" in recorded and len(recorded) == 2  # the job, and the shard that is finished
    events.close()
    assert kept(job.shard(SOURCE, name, "9kB", endpoint=hub.address, token=TOKEN, overwrite=True))
    assert same(arrays(download(hub, name, tmp_path / "down")), random_tensors(3, 2000))


def test_files_that_a_gitignore_names_are_published_all_the_same(hub: InHouse, own: str, name: str) -> None:
    hub.put(own, ".gitignore", b"*.json\n*.safetensors\n")
    for size in ("9kB", "20kB"):  # the second time it stands in the repo already
        report = shard(hub, own, name, size)
        published = {".gitignore", "config.json", "model.safetensors.index.json", *(one.file for one in report.shards)}
        assert files_of(hub, name) >= published


def test_of_a_repo_that_is_public_nobody_says_that_it_stays_private(hub: InHouse, name: str) -> None:
    token = hub.login("alice", "openid contribute-repos read-repos")["access_token"]
    with hub.failing("cut:0@POST .*/repos/create#1"):
        events = list(job.shard(SOURCE, name, "9kB", endpoint=hub.address, token=token))
    assert remark_of(events) == "" and not is_private(hub, name)
