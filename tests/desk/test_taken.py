"""Which jobs a desk takes, and which it refuses before anything has begun."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest
from safetensors.numpy import save_file

from sharding import job
from sharding.core.errors import DestinationError, Refused, Remedy, UsageError
from sharding.core.options import Options
from sharding.desk.desk import Desk
from sharding.desk.forecast import Forecast
from sharding.desk.jobs import JobRequest, Settings
from sharding.planning.plan import identify_plan
from sharding.storage.hub.answers import Person
from tests.conftest import random_tensors, write_checkpoint
from tests.desk.actors import Stage
from tests.desk.conftest import AS_ALICE, AS_BOB, NUMBERS, seen, state
from tests.hubs import push, shard
from tests.inhouse import InHouse

SIZE = Options("60kB")


@pytest.fixture(scope="module")
def result(hub: InHouse, small: str) -> str:
    """A copy of `small`, for anybody to check."""
    shard(hub, small, "alice/result")
    return "alice/result"


@pytest.fixture(scope="module")
def trained(hub: InHouse, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """What the one rank of a training run has saved, public, and the private model that was trained."""
    folder, tensors = tmp_path_factory.mktemp("in"), random_tensors()
    base = push(hub, write_checkpoint(folder / "base", {"model.safetensors": tensors}, False), "alice/b", private=True)
    info = {name: {"saved_offsets": [0] * tensor.ndim} for name, tensor in tensors.items()}
    (folder / "run").mkdir()
    path = folder / "run/shard-00001-model-00001-of-00001.safetensors"
    save_file(tensors, path, {"DCP_VERSION": "1.0", "DCP_SHARDING_INFO": json.dumps(info)})
    return push(hub, folder / "run", "alice/run"), base


def test_a_job_runs_the_plan_that_was_shown_or_is_refused(desk: Desk, stage: Stage, small: str, name: str) -> None:
    shown = identify_plan(desk.models.plan(small, SIZE)[1])
    with pytest.raises(Refused, match="have changed since this plan was made"):
        desk.submit(JobRequest(small, name, Options("90kB"), expect=shown), *AS_ALICE)
    assert desk.jobs_of("alice") == []
    desk.submit(JobRequest(small, name, SIZE, expect=shown), *AS_ALICE)
    assert len(desk.jobs_of("alice")) == 1


def test_the_classic_engine_is_held_to_the_choices_that_were_shown_and_plans_once_more(
    desk: Desk, stage: Stage, small: str, name: str
) -> None:
    """Its own plan has another id, because it is one of the files that it has saved."""
    shown = identify_plan(desk.models.plan(small, SIZE)[1])
    request = JobRequest(small, name, SIZE, engine="classic", expect=shown)
    with pytest.raises(Refused, match="have changed since this plan was made"):
        desk.submit(replace(request, options=Options("90kB")), *AS_ALICE)
    with pytest.raises(UsageError, match="can only cut by size") as refusal:
        desk.submit(replace(request, options=Options("60kB", strategy="blocks")), *AS_ALICE)
    assert refusal.value.remedy == Remedy("use_stream_engine")
    taken = seen(desk, desk.submit(request, *AS_ALICE), "alice")
    assert (taken.request.engine, taken.request.expect) == ("classic", "")


@pytest.mark.parametrize("needs", [{}, {"peak_anon_bytes": 10**15}, {"disk_bytes": 10**18}])
def test_a_machine_has_room_for_what_its_memory_and_its_disk_hold(desk: Desk, needs: dict[str, int]) -> None:
    usual = {"lower_seconds": 1.0, "upper_seconds": 2.0, "peak_anon_bytes": 1000, "disk_bytes": 1000}
    assert desk.has_room(Forecast(**(usual | needs))) is not bool(needs)


def test_who_has_a_job_gets_no_second_one_until_it_has_ended(
    desk: Desk, stage: Stage, small: str, result: str, name: str
) -> None:
    """Whether it waits, runs or is being cancelled; a check counts as a job does."""

    def are_refused(who: tuple[Person, str], destination: str, own: str) -> None:
        request = JobRequest(small, destination, SIZE)
        for ask in (lambda: desk.submit(request, *who), lambda: desk.submit_about("verify", result, *who)):
            with pytest.raises(Refused, match="a job here already") as refusal:
                ask()
            assert refusal.value.remedy == Remedy("open_job", own)

    first, second = stage(name), stage("bobs-second")
    running = desk.submit(JobRequest(small, name, SIZE), *AS_ALICE)
    waiting = desk.submit(JobRequest(small, "bob/bobs-second", SIZE), *AS_BOB)
    state(desk, running, "running")
    first.ignore_stop()
    are_refused(AS_ALICE, f"{name}-2", running)
    are_refused(AS_BOB, "bob/another", waiting)
    desk.cancel(running, "alice")
    state(desk, running, "cancelling")
    are_refused(AS_ALICE, f"{name}-2", running)
    first.exit()
    state(desk, running, "cancelled")
    state(desk, waiting, "running", "bob")
    are_refused(AS_BOB, "bob/another", waiting)
    check = desk.submit_about("verify", result, *AS_ALICE)
    are_refused(AS_ALICE, f"{name}-2", check)
    second.exit()
    state(desk, waiting, "failed", "bob")
    stage(seen(desk, check, "alice").request.destination).exit()
    state(desk, check, "failed")
    assert desk.queue_length == 0


def test_a_repo_has_one_writer_until_its_job_has_ended(hub: InHouse, desk: Desk, stage: Stage, small: str) -> None:
    """However the repo is called, while the job waits, runs and is being cancelled."""
    shared = f"acme/copy-{next(NUMBERS)}"

    def is_refused() -> None:
        for called in (shared, f"{hub.address}/{shared}"):
            with pytest.raises(Refused, match=f"Another job is writing to {shared}") as refusal:
                desk.submit(JobRequest(small, called, SIZE), *AS_BOB)
            assert refusal.value.remedy is None and job_id not in str(refusal.value.document())

    actor = stage(shared)
    job_id = desk.submit(JobRequest(small, f"{hub.address}/{shared}", SIZE), *AS_ALICE)
    assert seen(desk, job_id, "alice").request.destination == shared
    state(desk, job_id, "running")
    actor.ignore_stop()
    is_refused()
    desk.cancel(job_id, "alice")
    state(desk, job_id, "cancelling")
    is_refused()
    actor.exit()
    state(desk, job_id, "cancelled")
    again = desk.submit(JobRequest(small, shared, SIZE), *AS_BOB)
    state(desk, again, "running", "bob")
    desk.cancel(again, "bob")
    state(desk, again, "cancelled", "bob")


def test_of_jobs_handed_in_at_the_same_time_one_is_taken(
    desk: Desk, stage: Stage, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one person, and of two for one repo: both were free when the desk first looked."""
    usual: Callable[..., None] = job.check
    shared = f"acme/copy-{next(NUMBERS)}"
    mine = [(f"alice/copy-{next(NUMBERS)}", AS_ALICE) for _ in range(2)]
    ours = [(shared, AS_ALICE), (shared, AS_BOB)]
    for pair, says in ((mine, "a job here already"), (ours, "Another job is writing")):
        together = Barrier(2)

        def check(*given: object, together: Barrier = together, **more: object) -> None:
            usual(*given, **more)
            together.wait(60)

        monkeypatch.setattr(job, "check", check)
        for destination, _ in pair:
            stage(destination)
        with ThreadPoolExecutor(2) as pool:
            asked = [pool.submit(desk.submit, JobRequest(small, place, SIZE), *who) for place, who in pair]
            (refusal,) = filter(None, [answer.exception() for answer in asked])
        assert isinstance(refusal, Refused) and says in refusal.message
        assert desk.queue_length == 1
        for answer, (_, (person, _)) in zip(asked, pair, strict=True):
            if not answer.exception():
                desk.cancel(answer.result(), person.name)
                state(desk, answer.result(), "cancelled", person.name)


def test_the_limit_is_for_every_visitor_and_to_the_byte(
    settings: Settings, stage: Stage, small: str, result: str, name: str
) -> None:
    """Copy or check, and also where the machine has no host; the host has no limit."""
    with Desk(settings) as desk:
        size = desk.models.plan(small, SIZE)[1].total_bytes
    for host, limit in ((None, size), (None, size - 1), ("bob", size - 1), ("alice", 1)):
        with Desk(replace(settings, max_job_bytes=limit, host=host)) as desk:
            for ask in (
                lambda desk=desk: desk.submit(JobRequest(small, name, SIZE), *AS_ALICE),
                lambda desk=desk: desk.submit_about("verify", result, *AS_ALICE),
            ):
                if limit < size and host != "alice":
                    with pytest.raises(Refused, match="This shared machine accepts up to"):
                        ask()
                    assert desk.queue_length == 0
                    continue
                job_id = ask()
                stage(seen(desk, job_id, "alice").request.destination).exit()
                state(desk, job_id, "failed")


def test_what_would_end_a_job_is_said_when_it_is_handed_in(
    hub: InHouse, desk: Desk, stage: Stage, small: str, name: str, tmp_path: Path
) -> None:
    """A copy of another model is replaced with a word only, and what is private is shown with a word only."""
    other = write_checkpoint(tmp_path / "other", {"model.safetensors": random_tensors(seed=5)}, False)
    push(hub, other, f"{name}-other")
    shard(hub, f"{name}-other", name)
    hidden = push(hub, other, f"{name}-hidden", private=True)
    with pytest.raises(DestinationError, match="copy of"):
        desk.submit(JobRequest(small, name, SIZE, confirmed=True, restart=True), *AS_ALICE)
    with pytest.raises(DestinationError, match="private or gated"):
        desk.submit(JobRequest(hidden, f"{name}-shown", SIZE, private=False, overwrite=True), *AS_ALICE)
    assert desk.queue_length == 0 and desk.jobs_of("alice") == []
    assert not hub.api().repo_exists(f"{name}-shown")
    shown = JobRequest(hidden, f"{name}-shown", SIZE, private=False, confirmed=True)
    for request in (JobRequest(small, name, SIZE, overwrite=True), shown):
        stage(request.destination).exit()
        state(desk, desk.submit(request, *AS_ALICE), "failed")


def test_what_was_trained_of_a_private_base_is_shown_with_a_word_only(
    hub: InHouse, desk: Desk, stage: Stage, name: str, trained: tuple[str, str]
) -> None:
    run, base = trained
    asked = JobRequest(run, name, replace(SIZE, base=base), private=False)
    with pytest.raises(DestinationError, match=f"{base}.* is private or gated"):
        desk.submit(asked, *AS_ALICE)
    assert desk.jobs_of("alice") == []
    stage(name).exit()
    status = state(desk, desk.submit(replace(asked, confirmed=True), *AS_ALICE), "failed")
    assert status.request.options.base == f"{base}@{hub.api().model_info(base).sha}"
