"""The desk on a real Hub: jobs run, wait, are cancelled, killed and resumed; nobody sees those of others."""

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import psutil
import pytest

from sharding import job
from sharding.desk import Desk, JobRequest, JobView, Settings, destination_of
from sharding.desk.child import kill_stray
from sharding.errors import Refused, ShardingError, SourceError, UsageError
from sharding.events import Verified
from sharding.files import REPORT_NAME
from sharding.hub_destination import STAGING_BRANCH
from tests.conftest import environment, listing, random_tensors, write_checkpoint
from tests.localhub.conftest import Server

NUMBERS = count()
ALICE, BOB = "hf_alice", "hf_bob"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("hub"), ("--org", "acme=alice,bob")).start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def small(hub: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A public source of 240 kB."""
    folder = write_checkpoint(tmp_path_factory.mktemp("in") / "small", {"model.safetensors": random_tensors()}, False)
    return push(hub, folder, "alice/small")


@pytest.fixture(scope="module")
def large(hub: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A public source of 60 MB, which `SLOW` cuts into so many shards that there is time to interfere."""
    tensors = {
        f"layers.{n}.weight": np.frombuffer(np.random.default_rng(n).bytes(300_000), np.uint8) for n in range(200)
    }
    folder = write_checkpoint(tmp_path_factory.mktemp("in") / "large", {"model.safetensors": tensors}, False)
    return push(hub, folder, "alice/large")


SLOW = "1MB"


def push(hub: Server, folder: Path, repo_id: str, token: str = ALICE, **options: object) -> str:
    hub.api(token).create_repo(repo_id, **options)  # type: ignore[arg-type]
    hub.api(token).upload_folder(repo_id=repo_id, folder_path=folder)
    return repo_id


@pytest.fixture
def settings(hub: Server, tmp_path: Path) -> Settings:
    return Settings(tmp_path / "desk", hub.address)


@pytest.fixture
def desk(settings: Settings) -> Iterator[Desk]:
    with Desk(settings) as desk:
        yield desk


@pytest.fixture
def name() -> str:
    """A name that no repo has yet."""
    return f"alice/copy-{next(NUMBERS)}"


def end(desk: Desk, job_id: str, viewer: str = "alice") -> JobView:
    *_, last = desk.watch(job_id, viewer)
    return last


def until(desk: Desk, job_id: str, shards: int, viewer: str = "alice") -> JobView:
    """Wait until a job has finished so many shards."""
    return next(view for view in desk.watch(job_id, viewer) if len(view.shards) >= shards)


def process_of(settings: Settings, job_id: str) -> int:
    """The number of a running job's process, from the record that outlives the desk."""
    number, _ = json.loads((settings.folder / job_id.split("/")[0] / "job.json").read_text())["process"]
    return int(number)


def branches(hub: Server, repo_id: str) -> set[str]:
    return {branch.name for branch in hub.api().list_repo_refs(repo_id).branches}


def sha256s(hub: Server, repo_id: str) -> dict[str, str]:
    """What a result is: its shards' SHA-256s, and the index."""
    files = hub.api().model_info(repo_id, files_metadata=True).siblings or []
    return {
        file.rfilename: file.lfs.sha256 if file.lfs else file.blob_id for file in files if "model" in file.rfilename
    }


def is_identical(hub: Server, one: str, other: str) -> bool:
    *_, verified = job.verify(one, other, endpoint=hub.address, token=ALICE)
    assert isinstance(verified, Verified)
    return verified.verification.identical


# --- A job ----------------------------------------------------------------------------------------------


def test_a_job_runs_to_its_result_and_tells_all_that_the_page_shows(
    hub: Server, desk: Desk, large: str, name: str
) -> None:
    view = end(desk, desk.submit(JobRequest(large, name, "5MB"), "alice", ALICE))
    assert (view.state, view.error, view.position, view.owner) == ("done", None, 0, "alice")
    assert view.planned and view.report and view.verification and view.published and view.progress
    assert len(view.shards) == len(view.planned["plan"]["shards"]) == 13
    assert view.verification["identical"] is True
    assert view.published == {
        "repo_id": name,
        "revision": hub.api().model_info(name).sha,
        "place": f"{hub.address}/{name}",
        "remark": "",
    }
    assert view.progress["anon_bytes"] > 10_000_000
    assert view.progress["bytes_uploaded"] + view.progress["bytes_deduplicated"] >= 60_000_000
    assert any("Shard 13 of 13" in line for line in view.log)
    assert is_identical(hub, large, name)


def test_a_job_is_pinned_to_the_commit_that_was_planned(hub: Server, desk: Desk, small: str, name: str) -> None:
    view = end(desk, desk.submit(JobRequest(small, name, "60kB"), "alice", ALICE))
    assert view.request == JobRequest(f"{small}@{hub.api().model_info(small).sha}", name, "60kB")


def test_the_id_names_the_destination_and_cannot_be_guessed(desk: Desk, small: str, name: str) -> None:
    job_id = desk.submit(JobRequest(small, name.removeprefix("alice/"), "60kB"), "alice", ALICE)
    assert destination_of(job_id) == name
    assert len(job_id.split("/")[0]) * 6 >= 128
    end(desk, job_id)
    assert desk.view(f"{'A' * 22}/{name}", "alice") is None


@pytest.mark.parametrize("job_id", ["", "..", "../..", "desk.lock", "x/alice/y", "\0" * 22 + "/a/b", "../desk/a/b"])
def test_what_is_no_job_id_is_no_job(desk: Desk, job_id: str) -> None:
    assert desk.view(job_id, "alice") is None
    assert list(desk.watch(job_id, "alice")) == []


def test_what_the_job_said_is_told_to_its_owner_after_a_restart(settings: Settings, small: str, name: str) -> None:
    with Desk(settings) as desk:
        job_id = desk.submit(JobRequest(small, name, "60kB"), "alice", ALICE)
        before = end(desk, job_id)
    with Desk(settings) as desk:
        assert desk.view(job_id, "alice") == before
        assert desk.view(job_id, "bob") is None


def test_an_error_of_the_job_is_told_with_its_hint(hub: Server, desk: Desk, small: str) -> None:
    view = end(desk, desk.submit(JobRequest(small, f"bob/x-{next(NUMBERS)}", "60kB"), "alice", ALICE))
    assert view.state == "failed"
    assert view.error and "may not write to the namespace bob" in view.error[0]
    assert "alice" in view.error[1]
    assert any("may not write" in line for line in view.log)


# --- Two visitors -----------------------------------------------------------------------------------------


def test_the_second_visitor_waits_and_neither_sees_or_cancels_the_others_job(
    hub: Server, desk: Desk, large: str, small: str, name: str
) -> None:
    first = desk.submit(JobRequest(large, name, SLOW), "alice", ALICE)
    until(desk, first, 2)
    second = desk.submit(JobRequest(small, f"bob/copy-{next(NUMBERS)}", "60kB"), "bob", BOB)
    waiting = desk.view(second, "bob")
    assert waiting
    assert (waiting.state, waiting.position, desk.queue_length) == ("queued", 1, 2)
    assert waiting.seconds_until_start is not None
    for job_id, stranger in ((first, "bob"), (second, "alice"), (first, None), (second, "")):
        assert desk.view(job_id, stranger) is None
        assert list(desk.watch(job_id, stranger)) == []
        with pytest.raises(Refused, match="no such job"):
            desk.cancel(job_id, stranger)
    active = desk.active_job("bob")
    assert active and active.id == second
    desk.cancel(first, "alice")
    assert end(desk, second, "bob").state == "done"
    assert end(desk, first).state == "cancelled"
    assert desk.active_job("bob") is None
    assert desk.queue_length == 0


def test_a_job_that_waits_is_cancelled_without_having_begun(
    hub: Server, desk: Desk, large: str, small: str, name: str
) -> None:
    first = desk.submit(JobRequest(large, name, SLOW), "alice", ALICE)
    second = desk.submit(JobRequest(small, "bob/never", "60kB"), "bob", BOB)
    desk.cancel(second, "bob")
    view = desk.view(second, "bob")
    assert view and view.state == "cancelled"
    assert desk.active_job("bob") is None
    third = desk.submit(JobRequest(small, f"bob/copy-{next(NUMBERS)}", "60kB"), "bob", BOB)
    desk.cancel(first, "alice")
    assert end(desk, third, "bob").state == "done"
    assert not hub.api(BOB).repo_exists("bob/never")


def test_a_visitor_has_one_job_at_a_time_and_a_repo_has_one_writer(desk: Desk, large: str, small: str) -> None:
    shared = f"acme/copy-{next(NUMBERS)}"
    first = desk.submit(JobRequest(large, shared, SLOW), "alice", ALICE)
    with pytest.raises(Refused, match="a job here already"):
        desk.submit(JobRequest(small, f"alice/copy-{next(NUMBERS)}", "60kB"), "alice", ALICE)
    with pytest.raises(Refused, match="Another job is writing"):
        desk.submit(JobRequest(small, shared, "60kB"), "bob", BOB)
    desk.cancel(first, "alice")
    end(desk, first)
    assert end(desk, desk.submit(JobRequest(small, shared, "60kB"), "bob", BOB), "bob").state == "done"


def test_what_is_too_large_is_refused_but_not_for_the_host(settings: Settings, small: str, name: str) -> None:
    with Desk(replace(settings, max_job_bytes=100_000, host="alice")) as desk:
        with pytest.raises(Refused, match=r"240\.\d kB.*100\.0 kB") as refusal:
            desk.submit(JobRequest(small, "bob/too-large", "60kB"), "bob", BOB)
        assert "Duplicate this Space" in refusal.value.hint
        assert end(desk, desk.submit(JobRequest(small, name, "60kB"), "alice", ALICE)).state == "done"


@pytest.mark.parametrize(
    ("change", "family"),
    [
        ({"source": "alice/no-such-model"}, SourceError),
        ({"source": "./small"}, SourceError),
        ({"source": "/etc"}, SourceError),
        ({"source": "~"}, SourceError),
        ({"source": "--help"}, SourceError),
        ({"destination": "./out"}, ShardingError),
        ({"destination": "/tmp/out"}, ShardingError),
        ({"destination": "alice/x@main"}, ShardingError),
        ({"max_shard_size": "10 apples"}, UsageError),
        ({"strategy": "magic"}, UsageError),
        ({"order": "random"}, UsageError),
    ],
)
def test_what_cannot_be_planned_is_refused_before_a_job_is_made(
    desk: Desk, small: str, change: dict[str, str], family: type[ShardingError]
) -> None:
    with pytest.raises(family) as refusal:
        desk.submit(replace(JobRequest(small, "alice/x", "60kB"), **change), "alice", ALICE)
    assert refusal.value.hint
    assert desk.queue_length == 0


def test_nobody_submits_without_a_login(desk: Desk, small: str) -> None:
    with pytest.raises(Refused, match="signed in"):
        desk.submit(JobRequest(small, "alice/x", "60kB"), "alice", "")


def test_a_folder_of_this_machine_is_never_taken_for_a_repo(
    desk: Desk, small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path / small, {"model.safetensors": random_tensors(3)}, False)
    monkeypatch.chdir(tmp_path)
    checkpoint, _ = desk.plan(small, "60kB")
    assert (checkpoint.source.kind, len(checkpoint.tensors)) == ("hub", 14)


# --- Cancelling ---------------------------------------------------------------------------------------------


def test_cancel_in_mid_job_leaves_no_branch_and_no_repo(hub: Server, desk: Desk, large: str, name: str) -> None:
    job_id = desk.submit(JobRequest(large, name, SLOW), "alice", ALICE)
    until(desk, job_id, 3)
    assert STAGING_BRANCH in branches(hub, name)
    desk.cancel(job_id, "alice")
    view = end(desk, job_id)
    assert (view.state, view.remark, view.published) == ("cancelled", "", None)
    assert not hub.api().repo_exists(name)
    assert desk.unfinished(name, ALICE) is None


def test_cancel_says_so_where_the_login_may_not_delete_the_empty_repo(
    hub: Server, desk: Desk, large: str, name: str
) -> None:
    token = hub.login("alice", "openid profile contribute-repos")["access_token"]
    job_id = desk.submit(JobRequest(large, name, SLOW), "alice", token)
    until(desk, job_id, 3)
    desk.cancel(job_id, "alice")
    view = end(desk, job_id)
    assert view.state == "cancelled"
    assert f"{hub.address}/{name}/settings" in view.remark
    assert branches(hub, name) == {"main"}


def test_a_cancel_that_comes_too_late_changes_nothing(hub: Server, desk: Desk, small: str, name: str) -> None:
    job_id = desk.submit(JobRequest(small, name, "60kB"), "alice", ALICE)
    done = end(desk, job_id)
    desk.cancel(job_id, "alice")
    assert desk.view(job_id, "alice") == done
    assert hub.api().repo_exists(name)


# --- Jobs and desks that die --------------------------------------------------------------------------------


def test_a_killed_job_fails_and_goes_on_where_it_was(
    hub: Server, desk: Desk, settings: Settings, large: str, name: str
) -> None:
    job_id = desk.submit(JobRequest(large, name, SLOW), "alice", ALICE)
    until(desk, job_id, 3)
    os.kill(process_of(settings, job_id), signal.SIGKILL)
    view = end(desk, job_id)
    assert view.state == "failed"
    assert view.error and "signal 9" in view.error[0]
    assert view.error[1]
    again = end(desk, desk.submit(view.request, "alice", ALICE))
    assert again.state == "done"
    assert len([shard for shard in again.shards if shard["kept"]]) >= 3


def test_a_desk_closed_in_mid_job_leaves_it_resumable_to_an_identical_result(
    hub: Server, settings: Settings, large: str, name: str
) -> None:
    with Desk(settings) as desk:
        job_id = desk.submit(JobRequest(large, name, SLOW, private=False), "alice", ALICE)
        until(desk, job_id, 3)
    with Desk(settings) as desk:
        view = desk.view(job_id, "alice")
        assert view and (view.state, len(view.shards) >= 3) == ("interrupted", True)
        assert view.error and view.error[1]
        assert desk.view(job_id, "bob") is None
    # Another machine, which knows the link only.
    with Desk(replace(settings, folder=settings.folder / "elsewhere")) as desk:
        assert desk.view(job_id, "alice") is None
        destination = destination_of(job_id)
        assert destination
        request = desk.unfinished(destination, ALICE)
        assert request == replace(view.request, confirmed=True)
        resumed = end(desk, desk.submit(request, "alice", ALICE))
        assert resumed.state == "done"
        assert [shard for shard in resumed.shards if shard["kept"]]
        whole = end(desk, desk.submit(replace(request, destination=f"{name}-whole"), "alice", ALICE))
        assert whole.state == "done"
    assert hub.api().model_info(name).private is False
    assert sha256s(hub, name) == sha256s(hub, f"{name}-whole")
    assert is_identical(hub, large, name)


def test_what_is_staged_can_be_discarded_after_a_restart(
    hub: Server, settings: Settings, large: str, name: str
) -> None:
    with Desk(settings) as desk:
        job_id = desk.submit(JobRequest(large, name, SLOW), "alice", ALICE)
        until(desk, job_id, 1)
    with Desk(settings) as desk:
        assert desk.unfinished(name, ALICE)
        assert desk.discard(name, ALICE) == ""
        assert desk.unfinished(name, ALICE) is None
    assert not hub.api().repo_exists(name)


def test_a_desk_killed_in_mid_job_leaves_no_process_and_an_interrupted_job(
    settings: Settings, large: str, name: str
) -> None:
    script = (
        "import sys, time; from pathlib import Path; from sharding.desk import *\n"
        f"desk = Desk(Settings(Path({str(settings.folder)!r}), {settings.endpoint!r}))\n"
        f"id = desk.submit(JobRequest({large!r}, {name!r}, {SLOW!r}), 'alice', sys.stdin.readline())\n"
        "next(view for view in desk.watch(id, 'alice') if view.shards); print(id, flush=True); time.sleep(600)\n"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
    ) as program:
        assert program.stdin and program.stdout
        program.stdin.write(ALICE)
        program.stdin.close()
        job_id = program.stdout.readline().strip()
        child = psutil.Process(process_of(settings, job_id))
        child.suspend()  # it would notice that nobody listens any more
        program.kill()
    with Desk(settings) as desk:
        child.wait(30)
        view = desk.view(job_id, "alice")
        assert view and view.state == "interrupted"
        assert desk.queue_length == 0


def test_a_process_that_has_only_the_number_of_an_old_one_is_left_alone() -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as stranger:
        started = psutil.Process(stranger.pid).create_time()
        kill_stray((stranger.pid, started - 1))
        assert stranger.poll() is None
        kill_stray((stranger.pid, started))
        assert stranger.wait(30) == -signal.SIGKILL
    kill_stray((stranger.pid, started))


def test_two_desks_do_not_share_a_folder(desk: Desk, settings: Settings) -> None:
    with pytest.raises(Refused, match="Another desk"):
        Desk(settings)


def test_jobs_are_kept_for_a_day_and_then_swept(settings: Settings, small: str, name: str) -> None:
    now = [1_800_000_000.0]
    with Desk(settings, clock=lambda: now[0]) as desk:
        job_id = desk.submit(JobRequest(small, name, "60kB"), "alice", ALICE)
        end(desk, job_id)
        now[0] += settings.keep_seconds - 1
        desk.sweep()
        assert desk.view(job_id, "alice")
        assert {path.name for path in (settings.folder / job_id.split("/")[0]).iterdir()} == {
            "job.json",
            "events.jsonl",
        }
        now[0] += 2
        desk.sweep()
        assert desk.view(job_id, "alice") is None
    assert listing(settings.folder) == {"desk.lock": b""}


# --- Processes that misbehave ---------------------------------------------------------------------------------


@pytest.fixture
def impostor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let jobs run a script of ours in the place of the command line."""

    def impostor(code: str) -> None:
        script = tmp_path / "impostor"
        script.write_text(f"#!{sys.executable}\nimport json, os, signal, sys, time\n{code}")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr("sharding.desk.child.sys.executable", str(script))

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


@pytest.mark.parametrize("code", GARBAGE.values(), ids=GARBAGE)
def test_a_job_that_talks_nonsense_fails_with_a_hint_and_the_next_one_runs(
    desk: Desk, small: str, name: str, impostor: Callable[[str], None], code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.desk.child.EVENT_BYTES", 100_000)
    executable = sys.executable
    impostor(code)
    view = end(desk, desk.submit(JobRequest(small, name, "60kB"), "alice", ALICE))
    assert view.state == "failed"
    assert view.error and view.error[0].startswith("The job's process ") and view.error[1]
    assert len(view.error[0]) < 10_000
    monkeypatch.setattr("sharding.desk.child.sys.executable", executable)
    monkeypatch.setattr("sharding.desk.child.EVENT_BYTES", 64_000_000)
    assert end(desk, desk.submit(JobRequest(small, name, "60kB"), "alice", ALICE)).state == "done"


def test_a_disk_that_is_full_ends_the_job_and_not_the_queue(
    desk: Desk, settings: Settings, large: str, small: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    job_id = desk.submit(JobRequest(large, name, SLOW), "alice", ALICE)
    until(desk, job_id, 1)
    child = psutil.Process(process_of(settings, job_id))
    with monkeypatch.context() as context:
        context.setattr("sharding.desk.shelf.Shelf.note", full)
        context.setattr("sharding.desk.shelf.Shelf.save", full)
        child.wait(60)
        view = end(desk, job_id)
    assert view.state == "interrupted"
    assert view.error and view.error[1]
    assert end(desk, desk.submit(JobRequest(small, f"{name}-next", "60kB"), "alice", ALICE)).state == "done"


def test_a_job_that_says_too_much_is_ended(
    desk: Desk, small: str, name: str, impostor: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.desk.runner.EVENTS_BYTES", 10_000)
    event = {"event": "shard-finished", "file": "x", "bytes": 1, "number": 1, "shards": 1, "kept": False}
    impostor(f"while True: print({json.dumps(json.dumps(event))})")
    view = end(desk, desk.submit(JobRequest(small, name, "60kB"), "alice", ALICE))
    assert view.state == "failed"
    assert view.error and "more than any job" in view.error[0]


def test_a_job_that_hangs_is_ended(settings: Settings, small: str, name: str, impostor: Callable[[str], None]) -> None:
    impostor("time.sleep(600)")
    now = [1_800_000_000.0]
    with Desk(settings, clock=lambda: now[0]) as desk:
        job_id = desk.submit(JobRequest(small, name, "60kB"), "alice", ALICE)
        next(view for view in desk.watch(job_id, "alice") if view.state == "running")
        desk.sweep()
        view = desk.view(job_id, "alice")
        assert view and view.state == "running"
        now[0] += 3600
        desk.sweep()
        view = end(desk, job_id)
    assert view.state == "failed"
    assert view.error and "silent" in view.error[0]


def test_a_job_that_runs_for_too_long_is_stopped(
    settings: Settings, small: str, name: str, impostor: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.desk.desk.JOB_SECONDS", 7200)
    monkeypatch.setattr("sharding.desk.desk.SILENT_SECONDS", 36_000)
    impostor("time.sleep(600)")
    now = [1_800_000_000.0]
    with Desk(settings, clock=lambda: now[0]) as desk:
        job_id = desk.submit(JobRequest(small, name, "60kB"), "alice", ALICE)
        next(view for view in desk.watch(job_id, "alice") if view.state == "running")
        now[0] += 7100
        desk.sweep()
        view = desk.view(job_id, "alice")
        assert view and view.state == "running"
        now[0] += 200
        desk.sweep()
        view = end(desk, job_id)
    assert view.state == "failed"
    assert view.error and "ran for 2 hours" in view.error[0] and view.error[1]


def test_a_queue_that_is_full_takes_nobody_more(
    desk: Desk, small: str, name: str, impostor: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.desk.desk.MAX_ACTIVE_JOBS", 1)
    executable = sys.executable
    impostor("time.sleep(600)")
    first = desk.submit(JobRequest(small, name, "60kB"), "alice", ALICE)
    monkeypatch.setattr("sharding.desk.child.sys.executable", executable)
    with pytest.raises(Refused, match="waiting here already") as refusal:
        desk.submit(JobRequest(small, f"bob/copy-{next(NUMBERS)}", "60kB"), "bob", BOB)
    assert "duplicate this Space" in refusal.value.hint
    desk.cancel(first, "alice")
    end(desk, first)


def test_a_job_that_does_not_want_to_end_is_killed(
    desk: Desk, small: str, name: str, impostor: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.desk.child.STOP_SECONDS", 0.2)
    shard = {"event": "shard-finished", "file": "x", "bytes": 1, "number": 1, "shards": 1, "kept": False}
    impostor(
        "if 'discard' in sys.argv: print(json.dumps({'repo_deleted': True, 'remark': ''})); sys.exit()\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"print({json.dumps(json.dumps(shard))}, flush=True)\n"
        "time.sleep(600)"
    )
    job_id = desk.submit(JobRequest(small, name, "60kB"), "alice", ALICE)
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
    job_id = desk.submit(JobRequest(large, name, SLOW), "alice", token)
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
    view = end(desk, job_id)
    assert view.state == "done"
    assert token not in repr(view)
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
    view = end(desk, desk.submit(JobRequest(small, name, "60kB"), "alice", ALICE))
    assert view.error == ("no [token]", "[token]")
    assert not [path for path, data in listing(settings.folder).items() if ALICE.encode() in data]
