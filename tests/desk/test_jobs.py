"""The desk on a real Hub: jobs run, wait and are cancelled; nobody sees those of others."""

from dataclasses import replace
from pathlib import Path
from threading import Event, current_thread, main_thread

import pytest

from sharding import job
from sharding.core.errors import DestinationError, Refused, ShardingError, SourceError, UsageError, VariantMissing
from sharding.core.events import Published
from sharding.core.options import Options
from sharding.core.origin import Place
from sharding.desk.desk import Desk
from sharding.desk.jobs import JobRequest, Settings
from sharding.desk.runner import ActiveJob
from sharding.storage.hub.staging import STAGING_BRANCH
from tests.conftest import random_tensors, write_checkpoint
from tests.desk.actors import Stage, Told
from tests.desk.conftest import AS_ALICE, AS_BOB, NUMBERS, SLOW, at_work, end, is_identical, seen, stop_short, until
from tests.hubs import TOKEN, branches, push
from tests.inhouse import InHouse
from tests.localhub.conftest import Server


def test_a_job_runs_to_its_result_and_tells_all_that_the_page_shows(
    hub: Server, desk: Desk, large: str, name: str
) -> None:
    status = end(desk, desk.submit(JobRequest(large, name, Options("200kB")), *AS_ALICE))
    assert (status.state, status.error, status.position, status.owner) == ("done", None, 0, "alice")
    assert status.planned and status.report and status.verification and status.published and status.progress
    assert len(status.shards) == len(status.planned.plan.shards) == 12
    assert status.verification.identical
    commit = Place("hub", name, hub.api().model_info(name).sha)
    assert status.published == Published(commit, f"{hub.address}/{name}")
    assert status.progress.anon_bytes > 10_000_000
    assert status.progress.bytes_uploaded + status.progress.bytes_deduplicated >= 24 * 90_000
    assert any("Shard 12 of 12" in line for line in status.log)
    assert is_identical(hub, large, name)


def test_what_the_job_said_is_told_to_its_owner_after_a_cancel_that_came_too_late_and_a_restart(
    settings: Settings, stage: Stage, small: str, name: str, told: Told
) -> None:
    (actor := stage(name)).publish(told)
    with Desk(settings) as desk:
        job_id = desk.submit(JobRequest(small, name, Options("60kB")), *AS_ALICE)
        before = end(desk, job_id)
        desk.cancel(job_id, "alice")
        assert desk.status(job_id, "alice") == before and before.state == "done" and actor.discarded == 0
    with Desk(settings) as desk:
        assert desk.status(job_id, "alice") == before
        assert desk.status(job_id, "bob") is None


@pytest.mark.usefixtures("at_hand")
def test_an_error_of_the_job_is_told_with_its_hint(hub: Server, settings: Settings, name: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "gone", {"model.safetensors": random_tensors()}, False)
    source = push(hub, folder, f"{name}-gone")
    with Desk(replace(settings, jobs_at_once=0)) as desk:  # it runs when the test says so
        job_id = desk.submit(JobRequest(source, name, Options("60kB")), *AS_ALICE)
        hub.api(TOKEN).delete_repo(source)
        desk._queue.put(None)
        desk._work()
        status = end(desk, job_id)
    says = f"The repo {source} does not exist"
    assert status.state == "failed" and status.error and says in status.error[0] and status.error[1]
    assert any(says in line for line in status.log)


def test_a_job_told_of_as_ended_no_longer_counts_and_nobody_waits_for_it(
    desk: Desk, stage: Stage, small: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the desk takes to clear it away: its worker is held up here until the test has looked."""
    settle, looked = desk._settle, Event()

    def late(taken: ActiveJob) -> None:
        if current_thread() is not main_thread():  # who cancels what waits, clears it away at once
            assert looked.wait(60)
        settle(taken)

    monkeypatch.setattr(desk, "_settle", late)
    try:
        actor, bobs = stage(name), f"bob/copy-{next(NUMBERS)}"
        ended = desk.submit(JobRequest(small, name, Options("60kB")), *AS_ALICE)
        actor.exit(3)
        assert end(desk, ended).state == "failed"
        desk.cancel(ended, "alice")
        assert seen(desk, ended, "alice").state == "failed" and desk.queue_length == 0
        waiting = desk.submit(JobRequest(small, bobs, Options("60kB")), *AS_BOB)
        status = seen(desk, waiting, "bob")
        assert (status.state, status.position, status.seconds_until_start) == ("queued", 0, 0.0)
        assert desk.queue_length == 1
        again = desk.submit(JobRequest(small, name, Options("60kB")), *AS_ALICE)
        behind = seen(desk, again, "alice")
        assert (behind.state, behind.position, desk.queue_length) == ("queued", 1, 2)
        desk.cancel(waiting, "bob")
        assert (seen(desk, again, "alice").position, desk.queue_length) == (0, 1)
        desk.cancel(again, "alice")
    finally:
        looked.set()
    assert end(desk, waiting, "bob").state == end(desk, again).state == "cancelled"


@pytest.mark.parametrize(
    ("change", "family"),
    [
        *(({"source": text}, SourceError) for text in ("alice/no-such-model", "./small", "/etc", "~", "--help")),
        *(({"destination": text}, DestinationError) for text in ("./out", "alice/x@main", "alice/", "alice/x--y")),
        ({"destination": ""}, UsageError),
        ({"options": Options("60kB", variant="fp16")}, VariantMissing),
    ],
)
def test_what_cannot_be_planned_is_refused_before_a_job_is_made(
    desk: Desk, small: str, change: dict[str, object], family: type[ShardingError]
) -> None:
    with pytest.raises(family) as refusal:
        desk.submit(replace(JobRequest(small, "alice/x", Options("60kB")), **change), *AS_ALICE)  # type: ignore[arg-type]
    assert refusal.value.hint and desk.queue_length == 0


def test_nobody_submits_without_a_login(desk: Desk, small: str) -> None:
    with pytest.raises(Refused, match="signed in"):
        desk.submit(JobRequest(small, "alice/x", Options("60kB")), AS_ALICE[0], "")


def test_cancel_in_mid_job_leaves_no_branch_and_no_repo(hub: InHouse, desk: Desk, large: str, name: str) -> None:
    with at_work(hub, large):
        job_id = desk.submit(JobRequest(large, name, Options(SLOW)), *AS_ALICE)
        until(desk, job_id, 2)
        assert STAGING_BRANCH in branches(hub, name)
        desk.cancel(job_id, "alice")
        status = end(desk, job_id)
    assert (status.state, status.published, status.remark) == ("cancelled", None, "")
    assert not hub.api().repo_exists(name) and desk.unfinished(name, TOKEN) is None


def test_who_may_not_delete_a_repo_discards_what_is_staged_in_it(hub: InHouse, small: str, name: str) -> None:
    token = hub.login("alice", "openid profile contribute-repos")["access_token"]
    stop_short(hub, small, name, token=token)
    discarded = job.discard(name, endpoint=hub.address, token=token)
    assert discarded.found and not discarded.repo_deleted and branches(hub, name) == {"main"}
