"""What is staged is one job's own: it is told in time, survives lost answers, and is nobody else's to use or remove."""

from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import HfApi

from sharding import job
from sharding.core.errors import DestinationError
from sharding.core.events import Planned
from sharding.storage.hub import staging as hub_staging
from sharding.storage.hub.client import Hub
from sharding.storage.hub.main import MainBranch
from sharding.storage.hub.repo import HubRepo
from sharding.storage.hub.staging import STAGING_BRANCH, StagingBranch
from sharding.storage.hub.upload import XetShardWriter
from tests.hubs import TOKEN, branches, exists, files_of
from tests.inhouse import InHouse
from tests.storage.steps import begin, begun, heads, looked, noted, publish, sent, staged, start

STAGED = f"POST .*/commit/{STAGING_BRANCH}"


class Clock:
    """The minutes between commits: it stands still unless somebody moves it."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.under_way: list[Future[None]] = []

    def settle(self) -> None:
        """Wait for commits that nobody waits for."""
        wait(self.under_way)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()

    class Watched(ThreadPoolExecutor):
        def submit(self, *given: Any, **more: Any) -> Any:
            clock.under_way.append(super().submit(*given, **more))
            return clock.under_way[-1]

    monkeypatch.setattr(hub_staging, "ThreadPoolExecutor", Watched)
    monkeypatch.setattr(hub_staging, "time", SimpleNamespace(monotonic=lambda: clock.seconds))
    return clock


# --- One job at a time --------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", ["plan", "another plan"])
def test_of_two_jobs_that_begin_at_the_same_moment_the_later_ends_and_adds_nothing(
    hub: InHouse, name: str, plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.api().create_repo(name, private=True)
    late, usual, before = looked(hub, name, plan), HfApi.create_branch, dict[str, str]()

    def create_branch(api: HfApi, *given: Any, **more: Any) -> None:
        monkeypatch.setattr(HfApi, "create_branch", usual)
        others.append(begun(hub, name))
        staged(others[0], 1)
        before.update(heads(hub, name))
        usual(api, *given, **more)

    others: list[Any] = []
    monkeypatch.setattr(HfApi, "create_branch", create_branch)
    with pytest.raises(DestinationError, match=f"Another job uses the branch {STAGING_BRANCH}") as refusal:
        begin(late, plan)
    assert refusal.value.hint
    late.discard()
    late.close()
    assert heads(hub, name) == before
    staged(others[0], 2)
    others[0].open_staged([])
    assert len(noted(hub, name)) == 2


@pytest.mark.parametrize("plan", ["plan", "another plan"])
def test_who_lost_the_branch_adds_and_removes_nothing(hub: InHouse, name: str, tmp_path: Path, plan: str) -> None:
    first = begun(hub, name)
    one, two = staged(first, 1), sent(first, 2)
    second = begun(hub, name, plan, restart=True)
    theirs = staged(second, 3, b"of the other job" * 100)
    before = heads(hub, name)
    first.note(two)
    with pytest.raises(DestinationError, match="Another job uses the branch"):
        first.open_staged([])
    first.close()
    assert first.discard().found is False
    assert heads(hub, name) == before and noted(hub, name) == {theirs.file}
    # It has all it needs to publish, and does; what the other has staged stays.
    publish(first, tmp_path / "in", one)
    assert one.file in files_of(hub, name)
    assert heads(hub, name)[STAGING_BRANCH] == before[STAGING_BRANCH]


def test_what_another_run_of_the_same_job_has_staged_stays_where_one_comes_to_nothing(hub: InHouse, name: str) -> None:
    first = begun(hub, name)
    second = begun(hub, name)
    record = staged(second, 1)
    discarded = first.discard()
    assert discarded.found is False and "stay there" in discarded.remark
    first.close()
    assert noted(hub, name) == {record.file}
    assert begun(hub, name).has_finished_shards


# --- When a finished shard is told --------------------------------------------------------------------


def test_the_first_shard_is_on_the_branch_when_it_was_noted(hub: InHouse, name: str) -> None:
    target = begun(hub, name)
    with hub.failing(f"delay:0.1@{STAGED}"):
        record = staged(target, 1)
        assert noted(hub, name) == {record.file}
    assert target.has_finished_shards


def test_the_others_are_told_once_a_minute_several_together(hub: InHouse, name: str, clock: Clock) -> None:
    target = begun(hub, name)
    hub.log.clear()
    told = []
    for number, seconds in enumerate((0, 1, 59.9, 60.1, 61, 119, 120.2), 1):
        clock.seconds = seconds
        staged(target, number)
        clock.settle()
        told.append((hub.asked(STAGED), len(noted(hub, name))))
    assert told == [(1, 1), (1, 1), (1, 1), (2, 4), (2, 4), (2, 4), (3, 7)]


@pytest.mark.parametrize("closes", [True, False])
def test_all_that_is_finished_is_told_before_a_job_ends_or_reads_it_back(hub: InHouse, name: str, closes: bool) -> None:
    target = begun(hub, name)
    records = [staged(target, number) for number in range(1, 4)]
    assert len(noted(hub, name)) == 1
    unfinished = target.open_shard("model-00004-of-00009.safetensors")
    unfinished.write(b"half")
    target.close() if closes else target.open_staged([])
    assert noted(hub, name) == {record.file for record in records}
    assert hub.asked(STAGED) == 3


def test_a_silent_hub_keeps_no_job_from_letting_go(hub: InHouse, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = begun(hub, name)
    staged(target, 1)
    staged(target, 2)
    target.open_shard("model-00003-of-00009.safetensors")
    usual, given_up = XetShardWriter.abort, list[XetShardWriter]()

    def abort(writer: XetShardWriter) -> None:
        given_up.append(writer)
        usual(writer)
        raise RuntimeError("the store is gone as well")

    monkeypatch.setattr(XetShardWriter, "abort", abort)
    with hub.failing("status:403@POST"):
        target.close()
    assert len(given_up) == 3 and len(noted(hub, name)) == 1


def test_a_shard_that_is_finished_during_a_commit_is_in_the_next(
    hub: InHouse, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = begun(hub, name)
    one, two, three = (sent(target, number) for number in (1, 2, 3))
    usual, late = HubRepo.commit, [three, two]

    def commit(repo: HubRepo, *given: Any) -> str:
        made = usual(repo, *given)
        if late:
            target.note(late.pop())
        return made

    monkeypatch.setattr(HubRepo, "commit", commit)
    target.note(one)
    target.open_staged([])
    target.open_staged([])
    assert noted(hub, name) == {one.file, two.file, three.file}


def test_a_commit_that_has_failed_is_raised_the_next_time(hub: InHouse, name: str, clock: Clock) -> None:
    target = begun(hub, name)
    staged(target, 1)
    records = [sent(target, number) for number in (2, 3)]
    clock.seconds = 61
    with hub.failing(f"status:403@{STAGED}"):
        target.note(records[0])  # nobody waits for that
        clock.settle()
        clock.seconds = 122
        with pytest.raises(DestinationError, match="does not allow it"):
            target.note(records[1])
    target.close()
    assert len(noted(hub, name)) == 3


# --- Lost answers -------------------------------------------------------------------------------------


def test_lost_answers_to_commits_are_no_failure_and_nothing_is_committed_twice(hub: InHouse, name: str) -> None:
    with hub.failing(f"cut:0@{STAGED}#1"):
        target = begun(hub, name)
    with hub.failing(f"cut:0@{STAGED}#1"):
        record = staged(target, 1)
    assert noted(hub, name) == {record.file}
    titles = [commit.title for commit in hub.api().list_repo_commits(name, revision=STAGING_BRANCH)]
    assert titles == [record.file, "Begin", "initial commit"]


def test_a_lost_answer_to_deleting_the_branch_is_no_failure(hub: InHouse, name: str, tmp_path: Path) -> None:
    rule = "cut:0@DELETE .*/branch/#1"
    hub.api().create_repo(name, private=True)
    target = begun(hub, name)
    record = staged(target, 1)
    with hub.failing(rule):
        publish(target, tmp_path / "in", record)
    assert branches(hub, name) == {"main"}
    staged(begun(hub, f"{name}-not", private=True), 1)
    hub.put(f"{name}-not", "x.txt")
    with hub.failing(rule):
        assert job.discard(f"{name}-not", endpoint=hub.address, token=TOKEN).found
    assert branches(hub, f"{name}-not") == {"main"}


def test_a_deletion_of_the_branch_that_is_refused_is_a_failure(hub: InHouse, name: str) -> None:
    hub.api().create_repo(name, private=True)
    staged(begun(hub, name), 1)
    with hub.failing("status:403@DELETE .*/branch/"), pytest.raises(DestinationError, match="does not allow it"):
        job.discard(name, endpoint=hub.address, token=TOKEN)
    assert STAGING_BRANCH in branches(hub, name)


# --- When nothing is asked --------------------------------------------------------------------------


def test_nothing_is_asked_of_a_hub_until_somebody_looks(hub: InHouse, name: str) -> None:
    client = Hub(hub.address, TOKEN)
    repo = HubRepo(client, name)
    StagingBranch(repo)
    MainBranch(repo, overwrite=True)
    assert (client.api.endpoint, bool(client.headers)) == (hub.address, True)
    assert client.page(name) == f"{hub.address}/{name}" and hub.log == []
    assert repo.exists() is False and hub.log == [f"GET /api/models/{name}"]


def test_a_job_that_only_planned_has_left_nothing(hub: InHouse, name: str) -> None:
    start(hub, name, Planned).close()
    assert not exists(hub, name) and hub.asked("^(POST|PUT|DELETE) ") == 0
