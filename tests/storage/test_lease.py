"""A folder that machines share belongs to one job at a time, without a lock."""

import fcntl
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sharding import job
from sharding.core.errors import DestinationError
from sharding.core.events import ShardFinished
from sharding.core.limits import LEASE_SECONDS
from sharding.formats.names import STAGING_FOLDER
from sharding.storage import journal as room
from sharding.storage.journal import JOURNAL_NAME, LEASE_NAME, Lease
from tests.conftest import listing
from tests.fleet.hands import Hands, led
from tests.folders import finish, reshard

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


def of_this_machine(folder: Path, **words: object) -> Path:
    """The lease of a process of this machine that has not let go; some of its `words` are others."""
    lease = Lease(folder)
    lease.take()
    file = folder / LEASE_NAME
    known = dict(zip(("host", "pid", "began", "id", "boot", "namespace"), file.read_text().split(), strict=True))
    lease.release()
    file.write_text(" ".join(map(str, (known | words).values())).strip())
    return file


def ended_process() -> int:
    with subprocess.Popen(["true"]) as process:
        return process.pid


@pytest.mark.parametrize("holder", ["has ended", "had its number before", "has ended and there is no /proc"])
def test_that_of_an_ended_process_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holder: str) -> None:
    if "no /proc" in holder:
        for place in ("_BOOT_ID", "_NAMESPACE"):
            monkeypatch.setattr(f"sharding.storage.journal.{place}", tmp_path / "no such place")
    file = of_this_machine(tmp_path, **{"pid": ended_process()} if "ended" in holder else {"began": 1.0})
    assert file.read_text().startswith(socket.gethostname())
    lease = Lease(tmp_path)
    lease.take()
    with pytest.raises(BlockingIOError):
        Lease(tmp_path).take()
    lease.release()
    assert list(tmp_path.iterdir()) == []


ELSEWHERE = {
    "another machine of this name": {"boot": "9e0d5f3c-0000-4000-8000-000000000000"},
    "another container": {"namespace": "pid:[1]"},
    "an earlier version": {"boot": "", "namespace": ""},
}


@pytest.mark.parametrize("where", ELSEWHERE)
def test_where_a_process_cannot_be_asked_about_its_leases_age_counts(checkpoint: Path, out: Path, where: str) -> None:
    staging = out / STAGING_FOLDER
    for pid in (ended_process(), os.getpid()):
        staging.mkdir(parents=True)
        (staging / JOURNAL_NAME).touch()
        lease = of_this_machine(staging, pid=pid, **ELSEWHERE[where])
        before = listing(out)
        with pytest.raises(DestinationError, match=f"right now: process {pid} on {socket.gethostname()}") as refused:
            reshard(checkpoint, out)
        assert listing(out) == before and "could not be removed" not in refused.value.hint
        long_ago = lease.stat().st_mtime - LEASE_SECONDS - 5
        os.utime(lease, (long_ago, long_ago))
        reshard(checkpoint, out)
        shutil.rmtree(out)


def test_a_process_of_a_container_of_the_same_name_is_not_taken_for_one_that_has_ended_here(tmp_path: Path) -> None:
    script = (
        "import os; from pathlib import Path; from sharding.storage.journal import Lease\n"
        f"Lease(Path({str(tmp_path)!r})).take(); os._exit(9)"
    )
    apart = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    try:
        subprocess.run([*apart, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no right to make a namespace here")
    assert subprocess.run([*apart, sys.executable, "-c", script]).returncode == 9
    host, *_, namespace = (tmp_path / LEASE_NAME).read_text().split()
    assert host == socket.gethostname() and namespace != os.readlink("/proc/self/ns/pid")
    with pytest.raises(BlockingIOError):
        Lease(tmp_path).take()


@pytest.mark.skipif(not Path("/proc/self/ns/pid").is_symlink(), reason="no /proc here")
def test_a_lease_says_the_boot_and_the_namespace_of_its_process(tmp_path: Path) -> None:
    *_, boot, namespace = of_this_machine(tmp_path).read_text().split()
    assert boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert namespace == os.readlink("/proc/self/ns/pid")


def test_who_finds_a_new_lease_where_a_dead_one_was_leaves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    checkpoint: Path, out: Path, led: Callable[[Hands], Hands], monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_job_of_one_machine_keeps_many_out(checkpoint: Path, out: Path, led: Callable[[Hands], Hands]) -> None:
    led(Hands())
    events = job.shard(str(checkpoint), str(out), "50kB")
    next(event for event in events if isinstance(event, ShardFinished))
    who = f"process {os.getpid()} on {socket.gethostname()}"
    with pytest.raises(DestinationError, match=f"Another job is writing to {out} right now: {who}"):
        reshard(checkpoint, out, size="60kB", workers="ray")
    assert finish(events).verification.identical and not (out / STAGING_FOLDER).exists()


@pytest.mark.parametrize("left", ["+elsewhere 17 1.0 abc boot pid:[1]", "+elsew", ""])
def test_who_has_the_lock_of_a_folder_waits_for_nobody_who_had_it(checkpoint: Path, tmp_path: Path, left: str) -> None:
    staging = tmp_path / "out" / STAGING_FOLDER
    staging.mkdir(parents=True)
    (staging / LEASE_NAME).write_text(left)
    with pytest.raises(BlockingIOError):
        Lease(staging).take()
    reshard(checkpoint, tmp_path / "out")
    assert not staging.exists()


# --- By the clock of the folder ---------------------------------------------------------------------------

THEIRS = "new 1 1.0 def"


@pytest.mark.parametrize("ahead", [-86_400.0, 86_400.0])
def test_age_is_told_by_the_clock_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: float) -> None:
    usual = time.time
    monkeypatch.setattr(time, "time", lambda: usual() + ahead)
    monkeypatch.setattr(time, "time_ns", lambda: int((usual() + ahead) * 1e9))
    fresh = of_another_machine(tmp_path, LEASE_SECONDS / 2)
    with pytest.raises(BlockingIOError, match="elsewhere holds"):
        Lease(tmp_path).take()
    assert [path.name for path in tmp_path.iterdir()] == [fresh.name]
    of_another_machine(tmp_path, LEASE_SECONDS + 5)
    lease = Lease(tmp_path)
    lease.take()
    assert [path.name for path in tmp_path.iterdir()] == [LEASE_NAME] and not lease.is_lost
    lease.release()
    assert list(tmp_path.iterdir()) == []


def test_of_two_that_find_no_lease_one_takes_it_and_the_other_leaves_it(tmp_path: Path) -> None:
    class Slow(Lease):
        """Another is quicker, after this one has found nothing."""

        def clear(self) -> None:
            super().clear()
            (tmp_path / LEASE_NAME).write_text(THEIRS)

    lease = Slow(tmp_path)
    with pytest.raises(BlockingIOError):
        lease.take()
    assert not lease.is_lost
    lease.release()
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(LEASE_NAME, THEIRS)]


@pytest.mark.parametrize("seconds_old", [0, LEASE_SECONDS + 5])
def test_to_let_go_leaves_a_lease_that_is_anothers_by_now(tmp_path: Path, seconds_old: float) -> None:
    lease = Lease(tmp_path)
    lease.take()
    theirs = of_another_machine(tmp_path, seconds_old)
    with pytest.raises(OSError, match="taken it over"):
        lease.refuse_lost()
    lease.release()
    assert theirs.read_text() == "elsewhere 17 1.0 abc"
    lease.release()
    assert theirs.exists()


class Periods:
    """The waits between two renewals: each ends when the test says so."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self._begun, self._ended = threading.Semaphore(0), threading.Semaphore(0)
        self._is_over = False

    def wait(self, seconds: float) -> bool:
        self.asked.append(seconds)
        self._begun.release()
        self._ended.acquire()
        return self._is_over

    def set(self) -> None:
        self._is_over = True
        self._ended.release()

    def begin(self) -> bool:
        """Return whether the first wait has begun."""
        return self._begun.acquire(timeout=60)

    def next(self) -> None:
        """Return when one more renewal has been made, or not."""
        self._ended.release()
        assert self._begun.acquire(timeout=60)


@pytest.fixture
def periods(monkeypatch: pytest.MonkeyPatch) -> Periods:
    periods = Periods()
    monkeypatch.setattr(room, "Event", lambda: periods)
    return periods


def of_long_ago(file: Path) -> float:
    os.utime(file, (1000, 1000))
    return file.stat().st_mtime


def test_the_holder_renews_its_own_lease_in_time(tmp_path: Path, periods: Periods) -> None:
    lease = Lease(tmp_path)
    lease.take()
    assert periods.begin()
    for _ in range(3):
        then = of_long_ago(tmp_path / LEASE_NAME)
        periods.next()
        assert (tmp_path / LEASE_NAME).stat().st_mtime > then
    lease.release()
    assert max(periods.asked) <= LEASE_SECONDS / 3, "one that fails once is made up for"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("theirs", [THEIRS, ""])
def test_no_lease_but_ones_own_is_renewed(tmp_path: Path, periods: Periods, theirs: str) -> None:
    lease, file = Lease(tmp_path), tmp_path / LEASE_NAME
    lease.take()
    assert periods.begin()
    file.write_text(theirs)
    then = of_long_ago(file)
    for _ in range(2):
        periods.next()
        assert file.stat().st_mtime == then and lease.is_lost
    file.unlink()
    periods.next()
    assert not file.exists() and lease.is_lost
    lease.release()
