"""A lease is taken by one at most, renewed by its holder alone, and aged by the clock of the folder."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sharding.core.limits import LEASE_SECONDS
from sharding.storage import lease as room
from sharding.storage.lease import LEASE_NAME, Lease
from tests.storage.test_lease import of_another_machine

THEIRS = "new 1 1.0 def"


@pytest.mark.parametrize("ahead", [-86_400.0, -LEASE_SECONDS, LEASE_SECONDS, 86_400.0])
def test_age_is_told_by_the_clock_of_the_folder_whatever_this_machine_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
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
        return self._begun.acquire(timeout=30)

    def next(self) -> None:
        """Return when one more renewal has been made, or not."""
        self._ended.release()
        assert self._begun.acquire(timeout=30)


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


CHANGES: dict[str, Callable[[Path], object]] = {
    "another's": lambda file: file.write_text(THEIRS),
    "nobody's": lambda file: file.write_text(""),
}


@pytest.mark.parametrize("whose", CHANGES)
def test_no_lease_but_ones_own_is_renewed(tmp_path: Path, periods: Periods, whose: str) -> None:
    lease, file = Lease(tmp_path), tmp_path / LEASE_NAME
    lease.take()
    assert periods.begin()
    CHANGES[whose](file)
    then = of_long_ago(file)
    for _ in range(2):
        periods.next()
        assert file.stat().st_mtime == then and lease.is_lost
    file.unlink()
    periods.next()
    assert not file.exists() and lease.is_lost
    lease.release()


def test_another_is_told_which_machine_holds_it(tmp_path: Path) -> None:
    of_another_machine(tmp_path, 0)
    for ask in (Lease(tmp_path).take, Lease(tmp_path).clear):
        with pytest.raises(BlockingIOError, match=f"^elsewhere holds {tmp_path}$"):
            ask()
    assert [path.name for path in tmp_path.iterdir()] == [LEASE_NAME]


def test_a_dead_lease_is_removed_with_nothing_left_of_it(tmp_path: Path) -> None:
    of_another_machine(tmp_path, LEASE_SECONDS + 5)
    Lease(tmp_path).clear()
    assert list(tmp_path.iterdir()) == []
    Lease(tmp_path).clear()
    Lease(tmp_path / "not there").clear()
