"""Whose a repo is, and who may see it, is what the Hub says: this tool shows and deletes only what it made itself."""

import re
from pathlib import Path
from typing import Any

import pytest

from sharding import job
from sharding.core.errors import DestinationError
from sharding.core.events import Planned, ShardFinished
from sharding.core.protocols import Discarded
from sharding.localhub import repos
from sharding.storage.hub import answers as retry
from sharding.storage.hub.repo import Change, HubRepo
from sharding.storage.hub.staging import STAGING_BRANCH
from tests.hubs import SOURCE, TOKEN, branches, exists, files_of, is_private, remark_of, shard
from tests.inhouse import InHouse
from tests.storage.steps import OF, aim, begin, begun, noted, publish, staged, start

ATTRIBUTES = b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"


def discard(hub: InHouse, name: str) -> Discarded:
    return job.discard(name, endpoint=hub.address, token=TOKEN)


# --- Who made it --------------------------------------------------------------------------------------


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("then", ["publish", "discard"])
def test_a_restart_owns_a_repo_only_while_main_is_as_it_was(hub: InHouse, name: str, changed: bool, then: str) -> None:
    start(hub, name, ShardFinished).close()
    if changed:
        hub.put(name, ".gitattributes", ATTRIBUTES)
    events = start(hub, name, ShardFinished, "30kB", restart=True)
    if then == "publish":
        remark = remark_of(events)
        assert is_private(hub, name) is changed
        assert (f"did not create {name}" in remark) is changed and bool(remark) is changed
    else:
        events.close()
        assert discard(hub, name) == Discarded(found=True, repo_deleted=not changed)
        assert exists(hub, name) is changed and (not changed or branches(hub, name) == {"main"})


def test_after_a_restart_a_repo_that_somebody_else_made_is_theirs_still(hub: InHouse, name: str) -> None:
    hub.api().create_repo(name, private=True)
    start(hub, name, ShardFinished).close()
    start(hub, name, ShardFinished, "30kB", restart=True).close()
    assert discard(hub, name) == Discarded(found=True)
    assert exists(hub, name) and is_private(hub, name)


def test_a_repo_made_between_two_tries_is_not_shown(hub: InHouse, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry.time, "sleep", lambda _: hub.api().create_repo(name, private=True))
    with hub.failing("status:500@POST /api/repos/create#1"):
        remark = remark_of(job.shard(SOURCE, name, "9kB", private=False, endpoint=hub.address, token=TOKEN))
    assert f"did not create {name}" in remark and f"{hub.address}/{name}/settings" in remark
    assert is_private(hub, name) and "sharding_report.json" in files_of(hub, name)


def test_a_repo_that_was_made_and_whose_answer_was_lost_goes_with_its_job(hub: InHouse, name: str) -> None:
    with hub.failing("cut:0@POST /api/repos/create#1"):
        target = begun(hub, name)
    assert target.discard() == Discarded(found=True, repo_deleted=True)
    assert not exists(hub, name)


def test_a_repo_that_the_job_made_is_not_deleted_once_it_holds_something(hub: InHouse, name: str) -> None:
    target = begun(hub, name)
    hub.put(name, "notes.txt", b"mine")
    assert target.discard() == Discarded(found=True)
    assert (files_of(hub, name), branches(hub, name)) == ({".gitattributes", "notes.txt"}, {"main"})


@pytest.mark.parametrize("ref", ["a branch", "a tag", "a pull request"])
def test_a_job_that_came_to_nothing_leaves_what_others_keep_beside_main(hub: InHouse, name: str, ref: str) -> None:
    target = begun(hub, name)
    if ref == "a pull request":
        hub.put(name, "x.txt", create_pr=True)
    elif ref == "a tag":
        hub.api().create_tag(name, tag="mine")
    else:
        hub.api().create_branch(name, branch="mine")
    assert target.discard() == Discarded(found=True)
    assert exists(hub, name) and STAGING_BRANCH not in branches(hub, name)


def test_a_repo_that_the_hub_only_says_it_has_deleted_is_said_to_stay(hub: InHouse, name: str) -> None:
    staged(begun(hub, name), 1)
    with hub.failing("null@DELETE /api/repos/delete"):
        discarded = discard(hub, name)
    assert discarded.found and not discarded.repo_deleted
    assert f"This tool created {name} for the job. It is empty, but this tool could not delete it" in discarded.remark
    assert f"{hub.address}/{name}/settings" in discarded.remark
    assert branches(hub, name) == {"main"}
    assert discard(hub, name) == Discarded(found=False)


# --- Who may see it -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("begun_as", "then", "shown"),
    [(None, None, False), (None, False, False), (True, False, False), (False, False, True), (False, None, False)],
)
def test_a_job_is_shown_where_that_was_asked_for_when_it_began_and_again_when_it_goes_on(
    hub: InHouse, folder: Path, name: str, begun_as: bool | None, then: bool | None, shown: bool
) -> None:
    start(hub, name, ShardFinished, source=folder, private=begun_as).close()
    assert is_private(hub, name)
    remark = remark_of(start(hub, name, Planned, source=folder, private=then))
    assert is_private(hub, name) is not shown and hub.asked(f"PUT .*{name}/settings") == shown
    assert ("this job started as a private one" in remark) is (then is False and not shown)


@pytest.mark.parametrize(("there", "private"), [(True, None), (False, True), (False, False)])
def test_a_hub_that_does_not_say_whether_a_repo_is_private_gets_no_commit(
    hub: InHouse, name: str, there: bool, private: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if there:
        hub.api().create_repo(name, private=True)
    usual = repos.describe

    def describe(*given: Any, **more: Any) -> Any:
        return {key: value for key, value in usual(*given, **more).items() if key != "private"}

    monkeypatch.setattr(repos, "describe", describe)
    target = aim(hub, name, private=private)
    with pytest.raises(DestinationError, match=r"an answer that makes no sense: .* \(GET /api/models/"):
        target.check(OF)
        begin(target)
    assert hub.asked("POST .*/commit/") == 0
    monkeypatch.undo()
    target.discard()
    assert exists(hub, name) is there
    assert not there or (is_private(hub, name) and branches(hub, name) == {"main"})


def test_who_may_see_a_repo_is_asked_right_before_each_commit(hub: InHouse, folder: Path, name: str) -> None:
    shard(hub, str(folder), name)
    steps = (f"GET /api/models/{name}$", "POST /api/repos/create", "/preupload/", "/branch/", "/commit/")
    deeds = [line for line in hub.log if any(re.search(step, line) for step in steps)]
    commits = [number for number, line in enumerate(deeds) if "/commit/" in line]
    assert len(commits) >= 3 and any("/preupload/main" in line for line in deeds)
    assert {deeds[number - 1] for number in commits} == {f"GET /api/models/{name}"}
    made = deeds.index("POST /api/repos/create")
    assert deeds[made + 1] == f"GET /api/models/{name}", "and before anything goes up"


def test_one_shown_during_an_upload_gets_no_commit(
    hub: InHouse, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = begun(hub, name, private=True)
    record = staged(target, 1)
    usual = HubRepo.added

    def added(repo: HubRepo, *given: Any) -> list[Change]:
        changes = usual(repo, *given)
        hub.api().update_repo_settings(name, private=False)
        return changes

    monkeypatch.setattr(HubRepo, "added", added)
    with pytest.raises(DestinationError, match="is public now"):
        publish(target, tmp_path / "in", record)
    assert hub.asked("/commit/main") == 0 and files_of(hub, name) == {".gitattributes"}
    assert noted(hub, name) == {record.file}
