"""What somebody else puts into a repo while a job runs is neither replaced, nor shown, nor taken for the job's own."""

import json
import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from sharding import job
from sharding.core.errors import DestinationError
from sharding.core.events import Planned, Published, ShardFinished
from sharding.core.values import ShardRecord
from sharding.job import Event
from sharding.report.schema import Report
from sharding.storage.hub import answers as retry
from sharding.storage.hub.destination import HubDestination
from sharding.storage.hub.main import MainBranch
from sharding.storage.hub.staging import RECORDS, STAGING_BRANCH, StagingBranch
from tests.conftest import random_tensors, write_checkpoint
from tests.folders import arrays, same
from tests.hubs import TOKEN, branches, download, exists, files_of, push, shard
from tests.inhouse import InHouse, hub_in_house

SOURCE, MADE = "alice/source", "alice/made"
MINE = b"---\nlicense: mit\n---\nMy own words.\n"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InHouse]:
    monkeypatch.setattr(retry, "NETWORK_WAIT_SECONDS", 0.001)
    folder = write_checkpoint(tmp_path / "in", {"model.safetensors": random_tensors()}, index=False)
    with hub_in_house(tmp_path / "hub") as hub:
        push(hub, folder, SOURCE)
        yield hub


def start(hub: InHouse, until: type, size: str = "20kB", **more: Any) -> Generator[Event, None, None]:
    """A job that goes on when it is asked for more than the first event of a kind."""
    events = job.shard(SOURCE, MADE, size, endpoint=hub.address, token=TOKEN, **more)
    next(event for event in events if isinstance(event, until))
    return events


def put(hub: InHouse, path: str, data: bytes = b"for nobody else", **more: Any) -> None:
    hub.put(MADE, path, data, None=more)


def is_private(hub: InHouse) -> bool:
    return bool(hub.api().model_info(MADE).private)


# --- A new repo -------------------------------------------------------------------------------------------


def test_a_repo_that_somebody_fills_before_the_job_creates_it_is_left_alone(hub: InHouse) -> None:
    events = start(hub, Planned)
    hub.api().create_repo(MADE, private=True)
    put(hub, "secret.txt")
    with pytest.raises(DestinationError, match="already holds files that this tool did not write"):
        list(events)
    assert (files_of(hub, MADE), branches(hub, MADE)) == ({".gitattributes", "secret.txt"}, {"main"})
    assert is_private(hub)


def test_an_empty_repo_that_somebody_creates_before_the_job_does_is_not_shown(hub: InHouse) -> None:
    events = start(hub, Planned, private=False)
    hub.api().create_repo(MADE, private=True)
    published = next(event for event in events if isinstance(event, Published))
    assert "stays private" in published.remark and f"{hub.address}/{MADE}/settings" in published.remark
    assert "sharding_report.json" in files_of(hub, MADE) and is_private(hub)


def test_a_repo_of_somebody_else_is_not_deleted_with_a_job_that_came_to_nothing(hub: InHouse) -> None:
    events = start(hub, Planned)
    hub.api().create_repo(MADE, private=True)
    with hub.failing("status:403@POST .*/branch/"), pytest.raises(DestinationError):
        list(events)
    assert exists(hub, MADE)


@pytest.mark.parametrize("where", ["main", "a branch", "a tag", "a pull request"])
def test_a_repo_is_not_shown_with_what_somebody_has_put_there_since(
    hub: InHouse, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    publish = MainBranch.publish

    def and_then(main: MainBranch, *given: Any) -> str:
        commit = publish(main, *given)
        if where == "a branch":
            hub.api().create_branch(MADE, branch="mine")
            put(hub, "secret.txt", revision="mine")
        elif where == "a tag":
            hub.api().create_tag(MADE, tag="mine")
        else:
            put(hub, "secret.txt", create_pr=where == "a pull request")
        return commit

    monkeypatch.setattr(MainBranch, "publish", and_then)
    published = next(event for event in start(hub, Planned, private=False) if isinstance(event, Published))
    assert is_private(hub) and "somebody else has changed" in published.remark
    assert STAGING_BRANCH not in branches(hub, MADE)


# --- Two jobs ---------------------------------------------------------------------------------------------


def finish_both(hub: InHouse, first: Iterator[Event], second: Iterator[Event]) -> Report:
    """Run `second`, which must be refused, and then `first`, which must not notice; return its report."""
    with pytest.raises(DestinationError) as refusal:
        list(second)
    assert refusal.value.hint
    *_, report = first
    assert isinstance(report, Report) and report.verification.identical
    shards = {path for path in files_of(hub, MADE) if path.endswith(".safetensors")}
    assert shards == {shard.file for shard in report.shards}
    assert branches(hub, MADE) == {"main"}
    return report


@pytest.mark.parametrize("restart", [False, True])
def test_of_two_jobs_to_a_new_repo_one_is_refused_and_the_other_loses_nothing(hub: InHouse, restart: bool) -> None:
    second = start(hub, Planned, "60kB", restart=restart)
    first = start(hub, ShardFinished, "20kB")
    finish_both(hub, first, second)


@pytest.mark.parametrize(("room", "name"), [(HubDestination, "_create"), (StagingBranch, "begin")])
@pytest.mark.parametrize("before", [True, False])
def test_whichever_step_another_job_comes_between_one_of_both_is_refused(
    hub: InHouse, monkeypatch: pytest.MonkeyPatch, room: type, name: str, before: bool
) -> None:
    others: list[Iterator[Event]] = []
    step: Callable[..., None] = getattr(room, name)

    def other() -> None:
        if not others:
            others.append(iter(()))  # not once more for the other one
            others.append(start(hub, ShardFinished, "60kB"))

    def between(self: object, *given: Any) -> None:
        if before:
            other()
        step(self, *given)
        if not before:
            other()

    monkeypatch.setattr(room, name, between)
    ours = start(hub, Planned, "20kB")
    if (name, before) == ("begin", False):  # the other came last, and is refused
        with pytest.raises(DestinationError, match="unfinished job of another plan"):
            list(ours)
        return
    finish_both(hub, others_of(others, ours), ours)


def others_of(others: list[Iterator[Event]], ours: Iterator[Event]) -> Iterator[Event]:
    """What the other job goes on with, once there is one."""
    yield from others[1]


@pytest.mark.parametrize("until", ["its first shard", "its last shard"])
def test_of_two_runs_of_one_command_at_once_one_publishes_and_the_other_says_so(hub: InHouse, until: str) -> None:
    first = start(hub, ShardFinished)
    second = start(hub, ShardFinished)
    if until == "its last shard":
        next(event for event in second if isinstance(event, ShardFinished) and event.number == event.shards)
    ended = []
    for events in (first, second):
        try:
            ended.append(next(event.ref.revision for event in events if isinstance(event, Published)))
        except DestinationError as error:
            assert error.hint
    assert ended == [hub.api().model_info(MADE).sha]
    assert shard(hub, SOURCE, MADE, "20kB").verification.identical and branches(hub, MADE) == {"main"}


# --- Going on ---------------------------------------------------------------------------------------------


def test_a_job_that_goes_on_replaces_nothing_that_came_to_main_meanwhile_and_shows_nothing(hub: InHouse) -> None:
    start(hub, ShardFinished, private=False).close()
    put(hub, "secret.txt")
    put(hub, "config.json", b'{"mine": true}')
    before = hub.api().model_info(MADE).sha
    with pytest.raises(
        DestinationError, match=r"already holds files that this tool did not write: config\.json, secret\.txt"
    ):
        shard(hub, SOURCE, MADE, "20kB", private=False)
    assert hub.api().model_info(MADE).sha == before and is_private(hub)
    discarded = job.discard(MADE, endpoint=hub.address, token=TOKEN)
    assert (discarded.found, discarded.repo_deleted) == (True, False)
    assert files_of(hub, MADE) == {".gitattributes", "secret.txt", "config.json"} and is_private(hub)


@pytest.mark.parametrize("adds", [True, False])
def test_a_job_that_goes_on_after_it_was_shown_replaces_nothing_on_top_of_its_commit(hub: InHouse, adds: bool) -> None:
    shard(hub, SOURCE, MADE, "60kB")
    with hub.failing(f"status:403@DELETE .*{STAGING_BRANCH}"), pytest.raises(DestinationError):
        shard(hub, SOURCE, MADE, "20kB")
    assert STAGING_BRANCH in branches(hub, MADE) and "model-00003-of" in " ".join(files_of(hub, MADE))
    if not adds:
        assert shard(hub, SOURCE, MADE, "20kB").verification.identical and branches(hub, MADE) == {"main"}
        return
    put(hub, "config.json", b'{"mine": true}')
    before = hub.api().model_info(MADE).sha
    with pytest.raises(DestinationError, match=rf"Somebody has changed {MADE} meanwhile .*config\.json"):
        shard(hub, SOURCE, MADE, "20kB")
    assert hub.api().model_info(MADE).sha == before and STAGING_BRANCH in branches(hub, MADE)


def test_a_file_of_ones_own_beside_an_earlier_copy_is_not_replaced_by_one_of_the_source(hub: InHouse) -> None:
    shard(hub, SOURCE, MADE, "60kB")
    put(hub, "notes.txt", b"mine")
    hub.put(SOURCE, "notes.txt", b"theirs")
    with pytest.raises(
        DestinationError, match=r"alice/made has files that somebody else wrote or changed: notes\.txt"
    ) as refusal:
        shard(hub, SOURCE, MADE, "20kB")
    assert "--overwrite" in refusal.value.hint
    assert Path(hub.api().hf_hub_download(MADE, "notes.txt", local_dir=hub.folder / "down")).read_bytes() == b"mine"
    assert shard(hub, SOURCE, MADE, "20kB", overwrite=True).verification.identical


@pytest.mark.parametrize(("there", "theirs"), [("assets", "assets/a.txt"), ("assets/deep/b.txt", "assets")])
def test_a_file_where_the_source_has_a_folder_is_refused_before_anything_moves(
    hub: InHouse, there: str, theirs: str
) -> None:
    shard(hub, SOURCE, MADE, "60kB")
    put(hub, there)
    hub.put(SOURCE, theirs, b"theirs")
    with pytest.raises(DestinationError, match=f"alice/made has files that somebody else wrote or changed: {there}"):
        shard(hub, SOURCE, MADE, "20kB")
    assert branches(hub, MADE) == {"main"} and there in files_of(hub, MADE)
    assert shard(hub, SOURCE, MADE, "20kB", overwrite=True).verification.identical
    assert theirs in files_of(hub, MADE) and there not in files_of(hub, MADE)


@pytest.mark.parametrize(
    ("path", "stays"), [("README.md", False), ("config.json", False), ("notes.txt", True), ("labels.txt", True)]
)
def test_a_file_of_an_earlier_copy_that_somebody_has_edited_is_not_replaced_without_a_word(
    hub: InHouse, tmp_path: Path, path: str, stays: bool
) -> None:
    for name in ("notes.txt", "labels.txt"):
        hub.put(SOURCE, name, b"theirs")
    shard(hub, SOURCE, MADE, "60kB")
    hub.api().delete_file("labels.txt", SOURCE)
    hub.api().delete_file("notes.txt", SOURCE)
    hub.put(SOURCE, "new.txt", b"new")
    put(hub, path, MINE)
    put(hub, "more.txt")  # what comes after changes nothing about that

    def text() -> bytes:
        return Path(hub.api().hf_hub_download(MADE, path, local_dir=tmp_path / "down")).read_bytes()

    if not stays:
        before = files_of(hub, MADE)
        with pytest.raises(
            DestinationError, match=rf"alice/made has files that somebody .* changed: {re.escape(path)}"
        ):
            shard(hub, SOURCE, MADE, "20kB")
        assert (files_of(hub, MADE), branches(hub, MADE)) == (before, {"main"})
        assert text() == MINE
    assert shard(hub, SOURCE, MADE, "20kB", overwrite=not stays).verification.identical
    assert (text() == MINE) == stays
    assert {"notes.txt", "labels.txt"} & files_of(hub, MADE) <= {path}  # what is left of the earlier copy goes


# --- Records of nobody ------------------------------------------------------------------------------------


def forged(hub: InHouse, tmp_path: Path) -> dict[str, bytes]:
    """Records of shards with other weights, as this tool writes them and has written them."""
    other = write_checkpoint(tmp_path / "other", {"model.safetensors": random_tensors(seed=1)}, index=False)
    push(hub, other, "alice/other")
    report = shard(hub, "alice/other", "alice/forged", "20kB")
    digests = json.loads(
        Path(hub.api().hf_hub_download("alice/forged", "sharding_digests.json", local_dir=tmp_path / "d")).read_text()
    )
    lines = {}
    for written, planned in zip(report.shards, report.plan.shards, strict=True):
        hashes = {name: digests["tensors"][name]["blake3"] for name in planned.tensors}
        record = asdict(ShardRecord(written.file, written.bytes, written.sha256, hashes))
        lines[f"{RECORDS}{written.file}.json"] = json.dumps(record).encode()
        lines[f"{RECORDS}{written.file}.2.json"] = json.dumps({"job": "", "plan": "", "record": record}).encode()
    return {**lines, f"{RECORDS}job.json": b"{}"}


def test_records_that_a_source_or_main_brings_are_no_records(hub: InHouse, tmp_path: Path) -> None:
    lines = forged(hub, tmp_path)
    for path, data in lines.items():
        hub.put(SOURCE, path, data)
    shard(hub, SOURCE, MADE, "60kB")
    assert not [path for path in files_of(hub, MADE) if path.startswith(RECORDS)]
    for path, data in lines.items():
        put(hub, path, data)
    for file in {path.removeprefix(RECORDS).split(".safetensors")[0] + ".safetensors" for path in lines} - {
        f"{RECORDS}job.json",
        "job.json.safetensors",
    }:
        source = hub.api().hf_hub_download("alice/forged", file, local_dir=tmp_path / "f")
        put(hub, file, Path(source).read_bytes())
    events = start(hub, ShardFinished, overwrite=True)
    staged = {path for path in files_of(hub, MADE, STAGING_BRANCH) if path.startswith(RECORDS)}
    assert f"{RECORDS}job.json" in staged and not any(path.endswith(".2.json") for path in staged)
    assert len(staged) == 2  # the job, and the shard that is finished
    events.close()
    kept = [
        event.file
        for event in job.shard(SOURCE, MADE, "20kB", endpoint=hub.address, token=TOKEN, overwrite=True)
        if isinstance(event, ShardFinished) and event.kept
    ]
    assert kept
    assert same(arrays(download(hub, MADE, tmp_path / "down")), random_tensors())


# --- What a copy would be hidden by -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.safetensors", "model-00001-of-00001.safetensors"])
def test_weights_that_would_be_loaded_instead_of_the_copy_are_not_left_beside_it(hub: InHouse, name: str) -> None:
    shard(hub, SOURCE, MADE, "60kB")
    put(hub, name, b"other weights")
    before = files_of(hub, MADE)
    with pytest.raises(
        DestinationError, match=f"alice/made has files that somebody else wrote or changed: {name}"
    ) as refusal:
        shard(hub, SOURCE, MADE, "20kB")
    assert "--overwrite" in refusal.value.hint
    assert (files_of(hub, MADE), branches(hub, MADE)) == (before, {"main"})
    assert shard(hub, SOURCE, MADE, "20kB", overwrite=True).verification.identical
    assert name not in files_of(hub, MADE)


# --- What files beside the copy say of others -----------------------------------------------------------------


def test_files_that_a_gitignore_names_are_published_all_the_same(hub: InHouse) -> None:
    hub.put(SOURCE, ".gitignore", b"*.json\n*.safetensors\n")
    for size in ("20kB", "60kB"):  # the second time it stands in the repo already
        report = shard(hub, SOURCE, MADE, size)
        published = files_of(hub, MADE)
        assert published >= {".gitignore", "config.json", "model.safetensors.index.json"}
        assert {one.file for one in report.shards} <= published


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the client, where it uploads without Xet
def test_shards_go_to_the_store_whatever_the_gitattributes_of_a_repo_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    folder = write_checkpoint(tmp_path / "in", {"model.safetensors": random_tensors()}, index=False)
    with hub_in_house(tmp_path / "hub", xet=False) as hub:
        push(hub, folder, SOURCE)
        hub.api().create_repo(MADE)
        put(hub, ".gitattributes", b"*.bin filter=lfs diff=lfs merge=lfs -text\n")
        assert shard(hub, SOURCE, MADE).verification.identical


def test_of_a_repo_that_is_public_nobody_says_that_it_stays_private(hub: InHouse) -> None:
    token = hub.login("alice", "openid contribute-repos read-repos")["access_token"]
    with hub.failing("cut:0@POST .*/repos/create#1"):
        events = list(job.shard(SOURCE, MADE, "20kB", endpoint=hub.address, token=token))
    (published,) = [event for event in events if isinstance(event, Published)]
    assert published.remark == "" and not is_private(hub)
