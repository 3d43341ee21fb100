"""Jobs and desks that die: nothing is lost, nothing is left, and a job goes on where it was."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from sharding.core.options import Options
from sharding.desk.desk import Desk
from sharding.desk.jobs import JobRequest, Settings, destination_of
from tests.conftest import environment, listing
from tests.desk.actors import Stage, Told
from tests.desk.conftest import ALICE, AS_ALICE, SLOW, Hand, at_work, end, is_identical, process_of, seen, until
from tests.hubs import shard
from tests.inhouse import InHouse

PYTHON = sys.executable
"""On a stage, it is another."""


def test_a_killed_job_fails_and_goes_on_where_it_was(
    hub: InHouse, desk: Desk, settings: Settings, large: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with at_work(hub, large):
        job_id = desk.submit(JobRequest(large, name, Options(SLOW)), *AS_ALICE)
        until(desk, job_id, 2)
        os.kill(process_of(settings, job_id), signal.SIGKILL)
        status = end(desk, job_id)
    assert status.state == "failed" and status.error and "signal 9" in status.error[0] and status.error[1]
    monkeypatch.setattr("sharding.desk.runner.Child", Hand)
    again = end(desk, desk.submit(status.request, *AS_ALICE))
    assert again.state == "done" and any(shard.kept for shard in again.shards)  # what the Hub was told of


def test_a_desk_closed_in_mid_job_leaves_it_resumable_to_an_identical_result(
    hub: InHouse, settings: Settings, large: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with at_work(hub, large), Desk(settings) as desk:
        job_id = desk.submit(JobRequest(large, name, Options(SLOW), private=False), *AS_ALICE)
        until(desk, job_id, 2)
    with Desk(settings) as desk:
        status = seen(desk, job_id, "alice")
        assert status.state == "interrupted" and len(status.shards) >= 2 and status.error and status.error[1]
        assert desk.status(job_id, "bob") is None
    # Another machine, which knows the link only.
    monkeypatch.setattr("sharding.desk.runner.Child", Hand)
    with Desk(replace(settings, folder=settings.folder / "elsewhere")) as desk:
        assert desk.status(job_id, "alice") is None
        request = desk.unfinished(destination_of(job_id) or "", ALICE)
        assert request == replace(status.request, confirmed=True)
        resumed = end(desk, desk.submit(request, *AS_ALICE))
        assert resumed.state == "done" and any(shard.kept for shard in resumed.shards) and resumed.report
    assert hub.api().model_info(name).private is False
    whole = shard(hub, large, f"{name}-whole", SLOW)
    assert [one.sha256 for one in resumed.report.shards] == [one.sha256 for one in whole.shards]
    assert is_identical(hub, large, name)


def test_a_desk_killed_in_mid_job_leaves_no_process_and_an_interrupted_job(
    settings: Settings, stage: Stage, small: str, name: str
) -> None:
    script = (
        "import sys, time; from pathlib import Path; from sharding.core.options import Options; from sharding.desk import *\n"
        "from sharding.desk.forecast import this_machine; from sharding.storage.hub.answers import Person\n"
        "alice = Person('alice', ('alice',)); this_machine().result()\n"
        f"sys.executable = {sys.executable!r}\n"
        f"desk = Desk(Settings(Path({str(settings.folder)!r}), {settings.endpoint!r}))\n"
        f"id = desk.submit(JobRequest({small!r}, {name!r}, Options('60kB')), alice, sys.stdin.readline())\n"
        "while not desk.status(id, 'alice').shards: time.sleep(0.01)\n"
        "print(id, flush=True); time.sleep(600)\n"
    )
    stage(name).shard(1)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([PYTHON, "-c", script], **pipes, text=True, env=environment()) as program:
        assert program.stdin and program.stdout
        program.stdin.write(ALICE)
        program.stdin.close()
        job_id = program.stdout.readline().strip()
        child = psutil.Process(process_of(settings, job_id))
        program.kill()
    with Desk(settings) as desk:
        child.wait(60)
        assert seen(desk, job_id, "alice").state == "interrupted" and desk.queue_length == 0


def test_jobs_are_kept_for_a_day_and_then_swept(
    settings: Settings, stage: Stage, small: str, name: str, told: Told
) -> None:
    now = [1_800_000_000.0]
    stage(name).publish(told)
    with Desk(settings, clock=lambda: now[0]) as desk:
        job_id = desk.submit(JobRequest(small, name, Options("60kB")), *AS_ALICE)
        end(desk, job_id)
    with Desk(settings, clock=lambda: now[0]) as desk:  # which knows of it from the folder only
        now[0] += settings.keep_seconds - 1
        desk.sweep()
        assert desk.status(job_id, "alice")
        kept = settings.folder / job_id.split("/")[0]
        assert {path.name for path in kept.iterdir()} == {"job.json", "events.jsonl"}
        now[0] += 2
        desk.sweep()
        assert desk.status(job_id, "alice") is None
    assert listing(settings.folder).keys() == {"desk.lock", "verdicts.jsonl"}
