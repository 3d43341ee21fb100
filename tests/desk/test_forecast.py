"""Estimates of time are narrow ranges that grow with the work, follow what was measured, and learn from jobs."""

from dataclasses import replace
from math import sqrt
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharding.core.events import Progress
from sharding.core.options import Options
from sharding.core.text import time_range
from sharding.desk.desk import Desk
from sharding.desk.forecast import (
    HUB_JOB_ANON_BYTES,
    MOST_SECONDS,
    Forecast,
    Machine,
    Work,
    correction,
    forecast,
    measure_machine,
    range_around,
    seconds_left,
    seconds_until_start,
    this_machine,
)
from sharding.desk.jobs import JobRecord, JobRequest, Settings, State
from tests.desk.conftest import ALICE
from tests.inhouse import InHouse

NOON = 12 * 3600.0
WORK = Work(14_500_000_000, 2, 66, Machine(1.0, 200e6), 0.05)

machines = st.none() | st.builds(Machine, start_seconds=st.floats(0, 20), bytes_per_second=st.floats(1e5, 1e10))
files = st.integers(1, 5000)
works = st.builds(Work, st.integers(1, 10**13), files, files, machine=machines, answer_seconds=st.floats(0, 30))
factors = st.lists(st.floats(0.01, 100), max_size=5)


def record(seconds: float | None, expected: float | None = 1.0, state: State = "done", **costs: int) -> JobRecord:
    """A job that took `seconds`, of which `expected` were expected."""
    asked, costs = JobRequest("a/b", "c/d", Options("1MB")), {"peak_anon_bytes": 1, "disk_bytes_written": 0, **costs}
    return JobRecord("id", "alice", asked, 100, NOON, state, expected_seconds=expected, seconds=seconds, **costs)


def middle(estimate: Forecast) -> float:
    return (estimate.lower_seconds + estimate.upper_seconds) / 2


@given(works, factors)
def test_a_range_surrounds_what_is_expected_and_its_upper_end_is_at_most_twice_the_lower(
    work: Work, taken: list[float]
) -> None:
    """Rounding takes away at most a fifth at either end, or a second."""
    expected = min(work.expected_seconds * median([1.0, *taken]), MOST_SECONDS)
    estimate = forecast(work, [record(seconds) for seconds in taken])
    assert 1 <= estimate.lower_seconds <= estimate.upper_seconds <= 2 * estimate.lower_seconds
    assert estimate.lower_seconds <= max(1.3 * expected / sqrt(2), expected / sqrt(2) + 1)
    assert estimate.upper_seconds >= min(expected * sqrt(2) / 1.3, expected * sqrt(2) - 1)
    assert estimate.lower_seconds >= expected / sqrt(2) and estimate.upper_seconds <= max(expected * sqrt(2), 1)


@given(st.floats(min_value=0, allow_nan=False))
def test_a_time_of_any_size_has_a_range_and_none_is_longer_than_a_job_can_take(seconds: float) -> None:
    lower, upper = range_around(seconds)
    assert 1 <= lower <= upper <= 2 * lower <= 2 * MOST_SECONDS
    assert upper <= 2 * MOST_SECONDS and time_range(lower, upper)
    assert seconds < MOST_SECONDS or (lower, upper) == range_around(MOST_SECONDS)


@given(works, works, factors)
def test_more_bytes_or_files_never_take_less_time(one: Work, other: Work, taken: list[float]) -> None:
    done = [record(seconds) for seconds in taken]
    most = {name: max(getattr(one, name), getattr(other, name)) for name in ("bytes", "source_files", "files")}
    less, estimate = forecast(one, done), forecast(replace(one, **most), done)
    assert less.lower_seconds <= estimate.lower_seconds and less.upper_seconds <= estimate.upper_seconds


@given(works, st.floats(0.01, 30))
def test_a_hub_that_answers_slowly_makes_a_job_longer(work: Work, more: float) -> None:
    slower = replace(work, answer_seconds=work.answer_seconds + more)
    assert slower.expected_seconds - work.expected_seconds > 40 * more


def test_each_part_of_the_work_and_a_slow_machine_count() -> None:
    for more in ({"bytes": 2 * WORK.bytes}, {"source_files": 3000}, {"files": 1000}):
        assert replace(WORK, **more).expected_seconds > 1.3 * WORK.expected_seconds
    slow = replace(WORK, machine=Machine(1.0, 100e6)).expected_seconds
    assert slow - WORK.expected_seconds == pytest.approx(WORK.bytes / 200e6)


@pytest.mark.parametrize("seconds", [1, 19, 121, 599, 7199, 10**6])
def test_a_range_reads_as_two_numbers_with_one_unit_and_says_no_more_than_is_known(seconds: float) -> None:
    estimate = forecast(Work(1, 1, 1, Machine(0.0, 1 / seconds), 0.0), [])
    text = time_range(estimate.lower_seconds, estimate.upper_seconds)
    digits = [word for word in text.split() if word[0].isdigit()]
    assert 1 <= len(digits) <= 4 and all(len(word.replace(".", "")) <= 3 for word in digits)


def test_before_the_first_job_an_estimate_follows_from_what_was_measured_and_says_so() -> None:
    estimate = forecast(WORK, [record(1000, 1, "failed"), record(None), record(5, None)])
    assert estimate.lower_seconds <= WORK.expected_seconds <= estimate.upper_seconds
    assert (estimate.peak_anon_bytes, estimate.disk_bytes) == (HUB_JOB_ANON_BYTES, 0)
    assert "No job has been done here yet" in estimate.basis
    assert "200.0 MB a second" in estimate.basis and "within 50 ms" in estimate.basis


def test_a_machine_that_cannot_be_measured_counts_as_another_one_and_the_estimate_says_so() -> None:
    estimate = forecast(replace(WORK, machine=None), [])
    assert "could not be measured. Another one copied 250.0 MB a second" in estimate.basis
    assert estimate.lower_seconds <= 14_500 / 250 <= estimate.upper_seconds


def test_an_estimate_learns_from_the_jobs_that_were_done_here() -> None:
    finished = [
        record(30, 10, peak_anon_bytes=5),
        record(20, 10, peak_anon_bytes=9, disk_bytes_written=3),
        record(900, 10),
        record(30, 10),
    ]
    estimate = forecast(WORK, finished)
    expected = 3 * WORK.expected_seconds
    assert estimate.lower_seconds <= expected <= estimate.upper_seconds
    assert middle(estimate) == pytest.approx(expected, rel=0.15)
    assert (estimate.peak_anon_bytes, estimate.disk_bytes) == (9, 3)
    assert "4 jobs done here lately" in estimate.basis


@given(st.floats(30, 3000), st.integers(2, 9))
def test_the_estimate_for_the_same_job_again_is_the_time_that_it_took(seconds: float, times: int) -> None:
    done = record(seconds, WORK.expected_seconds)
    assert middle(forecast(WORK, [done] * times)) == pytest.approx(seconds, rel=0.2)


def test_a_single_job_counts_as_much_as_what_was_measured() -> None:
    assert correction([record(3)]) == 2
    assert correction([record(0.5)]) == 0.75
    assert correction([record(3), record(3)]) == 3


def test_only_jobs_that_were_done_whole_count() -> None:
    finished = [record(10), record(20), record(20), record(90)]
    states: tuple[State, ...] = ("failed", "cancelled", "interrupted")
    others = [record(10_000, 1, state) for state in states] + [record(None), record(10_000, None)]
    assert correction(finished) == correction([*others, *finished, *others]) == 20
    assert correction(others) is correction([]) is None
    assert forecast(WORK, [*others, *finished]) == forecast(WORK, finished)


def test_a_desk_takes_the_answers_of_its_hub_into_account(
    hub: InHouse, settings: Settings, small: str, tmp_path: Path
) -> None:
    def asked(*rules: str) -> Forecast:
        with Desk(replace(settings, folder=tmp_path / str(len(rules)))) as desk, hub.failing(*rules):
            return desk.forecast(*desk.models.plan(small, Options("60kB"), ALICE))

    quick, slow = asked(), asked("delay:0.3@GET /api/models")
    assert slow.lower_seconds >= 40 * 0.3 / sqrt(2) > quick.lower_seconds


@pytest.mark.parametrize(
    ("left", "slots", "expected"),
    [([], 1, 0), ([5.0], 1, 5), ([5.0, 7.0], 1, 12), ([5.0, 7.0], 2, 5), ([5.0], 2, 0), ([5.0, None], 1, None)],
)
def test_a_job_starts_when_those_before_it_leave_a_place(
    left: list[float | None], slots: int, expected: float | None
) -> None:
    assert seconds_until_start(left, slots) == expected


@pytest.mark.parametrize(
    ("started", "own", "expected", "factor", "left"),
    [
        *((None, None, 10.0, None, 10.0), (None, None, 5.0, 2.0, 10.0), (None, None, None, 2.0, None)),  # it waits
        *((NOON, None, None, None, None), (NOON, None, 10.0, None, 7.0), (NOON, 5.0, 5.0, 2.0, 7.0)),
        *((NOON, 8.0, 10.0, None, 8.0), (NOON, 8.0, None, None, 8.0)),
        *((NOON, 0.0, 1.0, None, 0.0), (NOON, None, 1.0, None, 0.0), (NOON, 2.0, 1.0, None, 2.0)),  # it takes longer
    ],
)
def test_the_time_left_is_the_longer_of_two_estimates_and_never_below_nothing(
    started: float | None, own: float | None, expected: float | None, factor: float | None, left: float | None
) -> None:
    progress = Progress("transfer", 1, 2, seconds_left=own)
    running = replace(record(None, expected, "running"), started=started)
    assert seconds_left(running, progress if started else None, factor, NOON + 3) == left
    if own is None:
        assert seconds_left(running, None, factor, NOON + 3) == left


def test_this_machine_is_measured_once_in_a_process_of_its_own() -> None:
    machine = this_machine().result()
    assert machine and machine.bytes_per_second > 1e6 and machine.start_seconds > 0
    assert this_machine() is this_machine()


@pytest.mark.parametrize("command", ["echo", "echo [1.0]", "echo nonsense", "sleep 600"])
def test_a_machine_whose_measurement_breaks_off_or_hangs_is_not_known(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.desk.forecast.child_command", lambda *_: command.split())
    monkeypatch.setattr("sharding.desk.forecast.GAUGE_SECONDS", 0.05 if "sleep" in command else 30)
    assert measure_machine() is None
