"""Whose a job is: its owner sees and stops it, and to all others it is not there."""

import re
from dataclasses import replace

import pytest

from sharding.core.errors import Refused
from sharding.core.options import Options
from sharding.desk.desk import Desk
from sharding.desk.job_store import Shelf
from sharding.desk.jobs import JobRecord, JobRequest, Settings, destination_of, new_job_id, newest_of
from tests.desk.actors import Stage
from tests.desk.conftest import AS_ALICE, AS_BOB, state

STRANGERS = ("alice", "bob", "acme", "Alice", "Bob", "", None)


def kept(owner: str, destination: str, created: float, **more: object) -> JobRecord:
    """What is kept of a job that ended, as far as no test says otherwise."""
    request = JobRequest("a/b", destination, Options("1MB"))
    record = JobRecord(new_job_id(destination), owner, request, 1, created, "done", created, created)
    return replace(record, **more)  # type: ignore[arg-type]


def test_a_job_is_its_owners_from_the_queue_to_its_end_and_nobody_elses(
    desk: Desk, stage: Stage, small: str, name: str
) -> None:
    """While it waits, runs, ends by itself or is cancelled."""

    def is_hidden(job_id: str, of: str) -> bool:
        strangers = [who for who in STRANGERS if who != of]
        for stranger in strangers:
            with pytest.raises(Refused, match="no job with this id"):
                desk.cancel(job_id, stranger)
        return not any(desk.status(job_id, stranger) for stranger in strangers)

    actor, second = stage(name), stage("bobs")
    running = desk.submit(JobRequest(small, name, Options("60kB")), *AS_ALICE)
    waiting = desk.submit(JobRequest(small, "bob/bobs", Options("60kB")), *AS_BOB)
    state(desk, running, "running")
    state(desk, waiting, "queued", "bob")
    assert is_hidden(running, "alice") and is_hidden(waiting, "bob")
    state(desk, running, "running")
    state(desk, waiting, "queued", "bob")
    actor.exit(3)
    state(desk, running, "failed")
    assert is_hidden(running, "alice")
    state(desk, waiting, "running", "bob")
    assert is_hidden(waiting, "bob")
    desk.cancel(waiting, "bob")
    state(desk, waiting, "cancelled", "bob")
    assert is_hidden(waiting, "bob") and second.discarded == 0


def test_the_list_of_somebodys_jobs_is_all_of_theirs_and_the_newest_comes_first(
    settings: Settings, stage: Stage, small: str, name: str
) -> None:
    shelf = Shelf(settings.folder)
    ended = [
        kept("alice", "alice/second", 200.0, id=f"{'c' * 22}/alice/second"),
        kept("alice", "alice/first", 100.0, id=f"{'z' * 22}/alice/first"),
        kept("bob", "bob/one", 250.0, id=f"{'d' * 22}/bob/one"),
        kept("alice", "acme/third", 300.0, id=f"{'a' * 22}/acme/third", state="failed"),
    ]
    for record in ended:
        shelf.save(record)
    shelf.close()
    with Desk(settings, clock=lambda: 1000.0) as desk:
        actor = stage(name)
        running = desk.submit(JobRequest(small, name, Options("60kB")), *AS_ALICE)
        state(desk, running, "running")
        mine = desk.jobs_of("alice")
        assert [record.id for record in mine] == [running, ended[3].id, ended[0].id, ended[1].id]
        assert [record.state for record in mine] == ["running", "failed", "done", "done"]
        assert [record.id for record in desk.jobs_of("bob")] == [ended[2].id]
        assert desk.jobs_of("carol") == desk.jobs_of("") == desk.jobs_of("Alice") == []
        actor.exit()
        state(desk, running, "failed")
        assert [record.state for record in desk.jobs_of("alice")] == ["failed", "failed", "done", "done"]


def test_a_copy_has_one_entry_and_each_original_it_was_compared_with_has_one() -> None:
    def compared(original: str, created: float, **more: object) -> JobRecord:
        request = JobRequest(f"{original}@{'1' * 40}", f"alice/it@{'2' * 40}", Options(), kind="verify")
        return kept("alice", "alice/it", created, request=request, **more)

    jobs = [
        compared("a/b", 700.0, state="interrupted"),
        compared("c/d", 600.0, state="failed", result="alice/it@2"),
        kept("alice", "alice/it", 500.0),
        kept("alice", "alice/it", 400.0, state="interrupted"),
        kept("alice", "alice/other", 300.0, state="failed"),
        compared("a/b", 200.0),
        kept("alice", "alice/other", 100.0),
    ]
    assert newest_of(jobs) == jobs[:3] + [jobs[4]]
    loaded = [replace(jobs[0], request=replace(jobs[0].request, kind="compare"), created=at) for at in (800.0, 50.0)]
    assert newest_of([loaded[0], *jobs, loaded[1]]) == [loaded[0], *newest_of(jobs)]
    assert [record.can_resume for record in newest_of(jobs)] == [True, False, False, True]


def test_only_the_whole_id_leads_to_a_job(settings: Settings, stage: Stage, small: str, name: str) -> None:
    """While it runs, after its end, and after a restart: the secret alone, with another repo, says nothing."""
    with Desk(settings) as desk:
        actor = stage(name)
        job_id = desk.submit(JobRequest(small, name.removeprefix("alice/"), Options("60kB")), *AS_ALICE)
        state(desk, job_id, "running")
        secret, _, destination = job_id.partition("/")
        assert destination_of(job_id) == destination == name
        others = [f"{secret}/{destination}-2", f"{secret}/acme/{destination.split('/')[1]}", secret, f"{secret}/"]
        others += [f"{job_id}/", f"{job_id}/more", f"{job_id}\n", f" {job_id}", f"x{job_id}", job_id.swapcase()]
        others += ["", "..", "../..", "desk.lock", "x/alice/y", "\0" * 22 + "/a/b", f"{'A' * 22}/{name}"]
        others += [f"../desk/{name}"]
        for other in others:
            assert desk.status(other, "alice") is None, other
        actor.exit()
        state(desk, job_id, "failed")
        for other in others:
            assert desk.status(other, "alice") is None, other
            with pytest.raises(Refused, match="no job with this id"):
                desk.cancel(other, "alice")
    with Desk(settings) as desk:
        for other in others:
            assert desk.status(other, "alice") is None, other
        assert desk.status(job_id, "alice")


def test_what_is_not_wholly_an_id_names_no_destination() -> None:
    job_id = new_job_id("alice/model.v1_x-y")
    assert destination_of(job_id) == "alice/model.v1_x-y"
    secret = job_id.split("/")[0]
    wrong = [f"{job_id}/more", f"{job_id}\n", f"{job_id}@main", f"{job_id}?x", f" {job_id}", f"x{job_id}", job_id[1:]]
    wrong += [f"{secret}{more}" for more in ("", "/alice", "/alice/", "//model", "/../model/x")] + [f"é{job_id[1:]}"]
    assert {text: destination_of(text) for text in wrong} == dict.fromkeys(wrong)


def test_no_two_ids_have_anything_in_common_but_the_destination() -> None:
    secrets = [new_job_id("alice/model").split("/")[0] for _ in range(200)]
    assert len(set(secrets)) == 200
    assert all(re.fullmatch(r"[\w-]{22}", secret, re.ASCII) for secret in secrets)
    # Nothing that comes before the next one is known: each place takes many values.
    assert min(len(set(place)) for place in zip(*(secret[:21] for secret in secrets), strict=True)) > 30
