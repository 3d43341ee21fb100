"""Processes that misbehave end as a failed job, and none tells the token."""

import json
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event

import psutil
import pytest

from sharding.core.errors import Refused
from sharding.core.options import Options
from sharding.desk import Desk, JobRequest, Settings
from sharding.desk.runner import ActiveJob
from sharding.formats.names import REPORT_NAME
from tests.conftest import listing
from tests.desk.actors import Stage, Told
from tests.desk.conftest import ALICE, AS_ALICE, AS_BOB, NUMBERS, SLOW, end, process_of, until
from tests.localhub.conftest import Server


@pytest.fixture
def impostor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let jobs run a script of ours in the place of the command line."""
    python = sys.executable  # what is set below stands in the place of this

    def impostor(code: str) -> None:
        script = tmp_path / "impostor"
        script.write_text(f"#!{python}\nimport json, os, signal, sys, time\n{code}")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr("sharding.core.environment.sys.executable", str(script))

    return impostor


GARBAGE = {
    "no JSON": "print('hello')",
    "no object": "print('[1, 2]')",
    "no event": "print(json.dumps({'a': 1}))",
    "an unknown event": "print(json.dumps({'event': 'party'}))",
    "a wrong shape": "print(json.dumps({'event': 'progress', 'stage': 'transfer', 'bytes_done': 'many'}))",
    "a wrong error": "print(json.dumps({'error': 'oops'}))",
    "not a number": 'print(\'{"event": "shard-finished", "number": NaN}\')',
    "no text": "os.write(1, bytes(range(256)) + b'\\n')",
    "deep": "print('[' * 90_000)",
    "a line beyond all bounds": "os.write(1, b'x' * 200_000)",
    "exit 3": "sys.exit(3)",
    "exit 0 without a result": "sys.exit(0)",
    "a crash": "os.kill(os.getpid(), signal.SIGSEGV)",
    "much to say about it": "sys.stderr.write('x' * 5_000_000 + '\\n'); raise KeyError('the very last line')",
}


def test_a_job_that_talks_nonsense_fails_with_a_hint_and_the_next_one_runs(
    desk: Desk, small: str, name: str, impostor: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.desk.process.EVENT_BYTES", 100_000)
    executable = sys.executable
    for kind, code in GARBAGE.items():
        impostor(code)
        status = end(desk, desk.submit(JobRequest(small, name, Options("60kB")), *AS_ALICE))
        assert status.state == "failed", kind
        assert status.error and status.error[0].startswith("The job's process ") and status.error[1], kind
        assert len(status.error[0]) < 10_000, kind
    monkeypatch.setattr("sharding.core.environment.sys.executable", executable)
    monkeypatch.setattr("sharding.desk.process.EVENT_BYTES", 64_000_000)
    assert end(desk, desk.submit(JobRequest(small, name, Options("60kB")), *AS_ALICE)).state == "done"


def test_who_has_seen_a_job_end_may_start_the_next_at_once(
    desk: Desk, stage: Stage, small: str, name: str, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, settle = Event(), Desk._settle

    def slowly(self: Desk, taken: ActiveJob) -> None:
        held.wait(60)
        settle(self, taken)

    monkeypatch.setattr(Desk, "_settle", slowly)
    for place in (name, f"{name}-next"):
        stage(place).publish(told)
    assert end(desk, desk.submit(JobRequest(small, name, Options("60kB")), *AS_ALICE)).state == "done"
    again = desk.submit(JobRequest(small, f"{name}-next", Options("60kB")), *AS_ALICE)
    held.set()
    assert end(desk, again).state == "done"


def test_a_disk_that_is_full_ends_the_job_and_not_the_queue(
    desk: Desk,
    settings: Settings,
    stage: Stage,
    small: str,
    name: str,
    told: Told,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    job_id = desk.submit(JobRequest(small, name, Options("60kB")), *AS_ALICE)
    stage(name).shard(1)
    until(desk, job_id, 1)
    child = psutil.Process(process_of(settings, job_id))
    with monkeypatch.context() as context:
        context.setattr("sharding.desk.job_store.Shelf.note", full)
        context.setattr("sharding.desk.job_store.Shelf.save", full)
        stage(name).shard(2)
        child.wait(60)
        status = end(desk, job_id)
    assert status.state == "interrupted"
    assert status.error and status.error[1]
    stage(f"{name}-next").publish(told)
    assert end(desk, desk.submit(JobRequest(small, f"{name}-next", Options("60kB")), *AS_ALICE)).state == "done"


def test_a_job_that_says_too_much_is_ended(
    desk: Desk, small: str, name: str, impostor: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.desk.runner.EVENTS_BYTES", 10_000)
    event = {"event": "shard-finished", "file": "x", "bytes": 1, "number": 1, "shards": 1, "sha256": ""}
    impostor(f"while True: print({json.dumps(json.dumps(event))})")
    status = end(desk, desk.submit(JobRequest(small, name, Options("60kB")), *AS_ALICE))
    assert status.state == "failed"
    assert status.error and "too many bytes" in status.error[0]


def test_a_job_that_hangs_is_ended(settings: Settings, small: str, name: str, impostor: Callable[[str], None]) -> None:
    impostor("time.sleep(600)")
    now = [1_800_000_000.0]
    with Desk(settings, clock=lambda: now[0]) as desk:
        job_id = desk.submit(JobRequest(small, name, Options("60kB")), *AS_ALICE)
        next(status for status in desk.watch(job_id, "alice") if status.state == "running")
        desk.sweep()
        status = desk.status(job_id, "alice")
        assert status and status.state == "running"
        now[0] += 3600
        desk.sweep()
        status = end(desk, job_id)
    assert status.state == "failed"
    assert status.error and "reported nothing" in status.error[0]


def test_a_job_that_runs_for_too_long_is_stopped(
    settings: Settings, small: str, name: str, impostor: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.desk.desk.JOB_SECONDS", 7200)
    monkeypatch.setattr("sharding.desk.desk.SILENT_SECONDS", 36_000)
    impostor("time.sleep(600)")
    now = [1_800_000_000.0]
    with Desk(settings, clock=lambda: now[0]) as desk:
        job_id = desk.submit(JobRequest(small, name, Options("60kB")), *AS_ALICE)
        next(status for status in desk.watch(job_id, "alice") if status.state == "running")
        now[0] += 7100
        desk.sweep()
        status = desk.status(job_id, "alice")
        assert status and status.state == "running"
        now[0] += 200
        desk.sweep()
        status = end(desk, job_id)
    assert status.state == "failed"
    assert status.error and "reached the limit of 2 hours" in status.error[0] and status.error[1]


def test_a_queue_that_is_full_takes_nobody_more(
    desk: Desk, small: str, name: str, impostor: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.desk.desk.MAX_ACTIVE_JOBS", 1)
    executable = sys.executable
    impostor("time.sleep(600)")
    first = desk.submit(JobRequest(small, name, Options("60kB")), *AS_ALICE)
    monkeypatch.setattr("sharding.core.environment.sys.executable", executable)
    with pytest.raises(Refused, match="queue is full") as refusal:
        desk.submit(JobRequest(small, f"bob/copy-{next(NUMBERS)}", Options("60kB")), *AS_BOB)
    assert "duplicate this Space" in refusal.value.hint
    desk.cancel(first, "alice")
    end(desk, first)


def test_a_job_that_does_not_want_to_end_is_killed(
    desk: Desk, small: str, name: str, impostor: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.desk.process.STOP_SECONDS", 0.2)
    shard = {"event": "shard-finished", "file": "x", "bytes": 1, "number": 1, "shards": 1, "sha256": ""}
    impostor(
        "if 'discard' in sys.argv: print(json.dumps({'repo_deleted': True, 'remark': ''})); sys.exit()\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"print({json.dumps(json.dumps(shard))}, flush=True)\n"
        "time.sleep(600)"
    )
    job_id = desk.submit(JobRequest(small, name, Options("60kB")), *AS_ALICE)
    until(desk, job_id, 1)
    desk.cancel(job_id, "alice")
    assert end(desk, job_id).state == "cancelled"


# --- Secrets ----------------------------------------------------------------------------------------------


def test_the_token_is_nowhere_but_in_the_environment_of_the_job(
    hub: Server, desk: Desk, settings: Settings, large: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret_of_the_space")
    monkeypatch.setenv("OPENAI_API_KEY", "another_secret_of_the_space")
    token = hub.login("alice", "openid profile write-repos manage-repos")["access_token"]
    job_id = desk.submit(JobRequest(large, name, Options(SLOW)), AS_ALICE[0], token)
    assert token not in repr(until(desk, job_id, 2))
    process = psutil.Process(process_of(settings, job_id))
    family = [process, *process.children(recursive=True)]
    assert not [argument for member in family for argument in member.cmdline() if token in argument]
    variables = process.environ()
    assert variables["HF_TOKEN"] == token
    assert "secret_of_the_space" not in repr(variables)
    assert variables["HF_HOME"].startswith(str(settings.folder))
    assert stat.S_IMODE(settings.folder.stat().st_mode) == 0o700
    assert not [path for path, data in listing(settings.folder).items() if token.encode() in data]
    status = end(desk, job_id)
    assert status.state == "done"
    assert token not in repr(status)
    places = listing(settings.folder)
    places |= {path: hub.ask("GET", f"/{name}/resolve/main/{path}").body for path in (REPORT_NAME, "README.md")}
    assert not [path for path, data in places.items() if token.encode() in data]


def test_a_token_that_a_job_prints_is_struck_out(
    desk: Desk, settings: Settings, small: str, name: str, impostor: Callable[[str], None]
) -> None:
    impostor(
        "token = os.environ['HF_TOKEN']\n"
        "print(json.dumps({'error': {'kind': 'E', 'message': f'no {token}', 'hint': token}}), flush=True)\n"
        "sys.stderr.write(token)\n"
    )
    status = end(desk, desk.submit(JobRequest(small, name, Options("60kB")), *AS_ALICE))
    assert status.error == ("no [token]", "[token]")
    assert not [path for path, data in listing(settings.folder).items() if ALICE.encode() in data]
