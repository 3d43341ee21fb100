"""A folder that machines share belongs to one job at a time, without a lock."""

import fcntl
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sharding import job
from sharding.core.errors import DestinationError
from sharding.core.limits import LEASE_SECONDS
from sharding.formats.names import STAGING_FOLDER
from sharding.storage.journal import JOURNAL_NAME
from sharding.storage.lease import LEASE_NAME, Lease
from tests.fleet.hands import Hands, led
from tests.folders import reshard

__all__ = ["led"]


def of_another_machine(folder: Path, seconds_old: float) -> Path:
    lease = folder / LEASE_NAME
    lease.write_text("elsewhere 17 1.0 abc")
    then = lease.stat().st_mtime - seconds_old
    os.utime(lease, (then, then))
    return lease


def test_one_holds_it_until_it_lets_go(tmp_path: Path) -> None:
    first, second = Lease(tmp_path), Lease(tmp_path)
    first.take()
    with pytest.raises(BlockingIOError):
        second.take()
    first.release()
    second.take()
    first.release()  # what is not its own any more it leaves
    assert (tmp_path / LEASE_NAME).exists()
    second.release()
    assert list(tmp_path.iterdir()) == []


def test_of_a_process_that_has_ended_here_it_is_taken_over_at_once(tmp_path: Path) -> None:
    script = (
        "import os; from pathlib import Path; from sharding.storage.lease import Lease\n"
        f"Lease(Path({str(tmp_path)!r})).take(); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 9
    assert (tmp_path / LEASE_NAME).read_text().startswith(socket.gethostname())
    lease = Lease(tmp_path)
    lease.take()
    lease.release()


def test_a_process_id_that_was_given_anew_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / LEASE_NAME).write_text(f"{socket.gethostname()} {os.getpid()} 1.0 abc")
    lease = Lease(tmp_path)
    lease.take()
    lease.release()


def test_of_another_machine_it_is_taken_over_once_it_is_not_renewed(tmp_path: Path) -> None:
    of_another_machine(tmp_path, LEASE_SECONDS / 2)
    lease = Lease(tmp_path)
    with pytest.raises(BlockingIOError):
        lease.take()
    of_another_machine(tmp_path, LEASE_SECONDS + 5)
    lease.take()
    assert [path.name for path in tmp_path.iterdir()] == [LEASE_NAME]
    lease.release()


def test_it_is_renewed_and_one_that_was_lost_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sharding.storage.lease.LEASE_SECONDS", 0.06)
    lease = Lease(tmp_path)
    lease.take()
    file = tmp_path / LEASE_NAME
    os.utime(file, (0, 0))
    waited = threading.Event()
    for _ in range(500):
        if file.stat().st_mtime > 0:
            break
        waited.wait(0.01)
    else:
        pytest.fail("It is not renewed.")
    lease.refuse_lost()
    of_another_machine(tmp_path, 0)
    with pytest.raises(OSError, match="taken it over"):
        lease.refuse_lost()
    lease.release()
    assert file.read_text().startswith("elsewhere")


def test_who_finds_a_new_lease_in_the_place_of_a_dead_one_leaves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_another_machine(tmp_path, LEASE_SECONDS + 5)
    lease = Lease(tmp_path)

    def another_is_quicker(text: str) -> bool:
        (tmp_path / LEASE_NAME).write_text("new 1 1.0 def")
        return False

    monkeypatch.setattr(lease, "_is_alive", another_is_quicker)
    with pytest.raises(BlockingIOError):
        lease.take()
    assert [path.read_text() for path in tmp_path.iterdir()] == ["new 1 1.0 def"]


def test_a_job_of_many_machines_locks_nothing_and_keeps_others_out(
    checkpoint: Path, tmp_path: Path, led: Callable[[Hands], Hands], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    led(Hands())
    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", lambda *_: pytest.fail("A lock on a folder that machines share."))
        events = job.shard(str(checkpoint), str(out), "50kB", workers="ray")
        while not (out / STAGING_FOLDER / LEASE_NAME).exists():
            next(events)
        for workers in ("ray", None):
            patched.undo()
            with pytest.raises(DestinationError, match="Another job is writing"):
                reshard(checkpoint, out, workers=workers)
        with pytest.raises(DestinationError, match="Another job is writing"):
            job.discard(str(out))
        *_, _ = events
    assert not (out / STAGING_FOLDER).exists()


def test_what_a_killed_job_of_another_machine_left_is_discarded(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    events = job.shard(str(checkpoint), str(out), "50kB")
    while not any(out.rglob("*.part")) or not (out / STAGING_FOLDER / JOURNAL_NAME).read_bytes():
        next(events)
    events.close()
    of_another_machine(out / STAGING_FOLDER, LEASE_SECONDS + 5)
    job.discard(str(out))
    assert not (out / STAGING_FOLDER).exists()
