"""How far a result may be relied on follows from what was done here, with this very commit of it and of its source."""

from dataclasses import replace
from typing import Any

import pytest

from sharding import job
from sharding.core.options import Options
from sharding.desk import Desk, JobRequest, Settings
from sharding.desk.jobs import JobRecord, Reading, new_job_id, reading_of
from sharding.report.files import read_result
from sharding.report.report import event_json
from tests.desk.actors import Stage
from tests.desk.conftest import ALICE, AS_ALICE, state
from tests.inhouse import InHouse

SIZE = Options("60kB")
DIFFERS = ("The copy differs from its source in 1 tensor. The first is a: its bytes differ.", "Do not use the copy.")


def check(desk: Desk, stage: Stage, place: str, told: dict[str, Any], who: Any = AS_ALICE) -> JobRecord:
    """Have a result checked by a job that says `told`; return what is kept of it."""
    job_id = desk.submit_check(place, *who)
    actor = stage(state(desk, job_id, "running", who[0].name).request.destination)
    actor.say(told)
    actor.exit(0 if told["identical"] else 1)
    state(desk, job_id, "done" if told["identical"] else "failed", who[0].name)
    return desk.jobs_of(who[0].name)[0]


def read_of(hub: InHouse, copy: str) -> Reading:
    """What a job must read to prove the result in `copy`."""
    return reading_of(read_result(copy, endpoint=hub.address).report.source, "keep")


@pytest.fixture
def copy(hub: InHouse, small: str, name: str) -> str:
    """A result that no desk has made."""
    *_, _ = job.shard(small, name, SIZE, endpoint=hub.address, token=ALICE)
    return name


@pytest.fixture(scope="module")
def proof(hub: InHouse, small: str) -> dict[str, Any]:
    """What is said of two that are identical."""
    *_, verified = job.verify(small, small, endpoint=hub.address, token=ALICE)
    return event_json(verified)


@pytest.fixture(scope="module")
def difference(proof: dict[str, Any]) -> dict[str, Any]:
    return {**proof, "identical": False, "mismatches": [{"tensor": "a", "problem": "its bytes differ"}]}


def test_what_was_read_here_is_this_commit_and_no_other(
    hub: InHouse, desk: Desk, settings: Settings, stage: Stage, copy: str, proof: dict[str, Any]
) -> None:
    """Of the result: what is pushed later is another. The record names the commit, and outlives the desk."""
    commit = hub.api().model_info(copy).sha
    assert desk.results.judge(copy, ALICE)[1].level == "fits"
    assert check(desk, stage, copy, proof).result == f"{copy}@{commit}"
    assert desk.results.judge(copy, None)[1].level == "read-now"
    hub.api().upload_file(repo_id=copy, path_in_repo="notes.txt", path_or_fileobj=b"Later.")
    assert desk.results.judge(copy, ALICE)[1].level == "fits"
    assert desk.results.judge(f"{copy}@{commit}", ALICE)[1].level == "read-now"
    desk.close()
    with Desk(settings) as later:
        assert later.results.judge(copy, ALICE)[1].level == "fits"
        assert later.results.judge(f"{copy}@{commit}", ALICE)[1].level == "read-now"


def test_a_check_that_came_to_no_end_says_nothing_of_a_result(desk: Desk, stage: Stage, copy: str) -> None:
    job_id = desk.submit_check(copy, *AS_ALICE)
    stage(state(desk, job_id, "running").request.destination).exit(3)
    state(desk, job_id, "failed")
    record = desk.jobs_of("alice")[0]
    assert record.result == "" and record.can_resume
    assert desk.results.judge(copy, ALICE)[1].level == "fits"


def test_the_time_of_a_result_is_that_of_the_job_here_that_made_this_commit(
    hub: InHouse, settings: Settings, small: str, copy: str
) -> None:
    """A check of it, and a job that made another commit, say nothing of it."""
    source, result = (f"{repo}@{hub.api().model_info(repo).sha}" for repo in (small, copy))
    asked = JobRequest(source, copy, SIZE)
    made = JobRecord(new_job_id(copy), "alice", asked, 1, 5.0, "done", 6.0, 116.0, result=result)
    checked = replace(made, id=new_job_id(copy), request=replace(asked, destination=result, kind="verify"), ended=9.0)
    other = replace(made, id=new_job_id(copy), result=f"{copy}@{'0' * 40}", ended=7.0)
    with Desk(settings) as desk:
        wanted = desk.results.judge(copy, ALICE)[0]
        shelf = desk._shelf
        for record in (checked, other):
            shelf.save(record)
        assert desk.results.seconds_of(wanted) is None
        shelf.save(made)
        assert desk.results.seconds_of(wanted) == 110.0
