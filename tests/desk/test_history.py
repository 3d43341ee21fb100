"""What a job says becomes what its owner sees, whatever it says."""

import json
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharding.core.events import Planned
from sharding.core.limits import LOG_LINES
from sharding.core.options import Options
from sharding.core.values import Checkpoint, FileEntry, RepoRef
from sharding.desk.forecast import bytes_per_second, forecast, measure_hashing, seconds_left, seconds_until_start
from sharding.desk.history import History, status_of
from sharding.desk.jobs import JobRecord, JobRequest
from sharding.planning.plan import plan_shards
from sharding.report.events import event_json
from sharding.report.schema import to_json
from tests.tensors import stored_tensor

NOON = 12 * 3600.0
PROGRESS = {
    "event": "progress",
    "stage": "transfer",
    "bytes_done": 1,
    "bytes_total": 2,
    "file": "f",
    "bytes_per_second": 0.0,
    "seconds_left": None,
    "anon_bytes": 1,
    "bytes_uploaded": 1,
    "bytes_deduplicated": 1,
}

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
EVENTS = st.sampled_from(["planned", "progress", "shard-finished", "verified", "published", "report", "error", "x"])
KEYS = st.sampled_from([*PROGRESS, "plan", "source", "ref", "place", "error", "file", "bytes", "number", "kept"])


@given(st.dictionaries(KEYS, ANYTHING), st.none() | EVENTS)
def test_an_event_is_taken_or_refused_whatever_it_is(event: dict[str, object], name: str | None) -> None:
    if name:
        event["event"] = name
    history = History()
    try:
        history.take(event, NOON)
    except ValueError:
        assert not history.log


@pytest.mark.parametrize("key", ["event", "stage", "bytes_done", "bytes_total"])
def test_an_event_without_what_it_is_about_is_refused(key: str) -> None:
    History().take(dict(PROGRESS), NOON)
    with pytest.raises(ValueError, match="no event"):
        History().take({other: value for other, value in PROGRESS.items() if other != key}, NOON)


def test_the_log_says_when_a_stage_begins_and_not_each_step_of_it() -> None:
    history = History()
    for stage in ("check", "transfer", "transfer", "verify"):
        history.take({**PROGRESS, "stage": stage}, NOON)
    assert [line.split()[1] for line in history.log] == ["Checking", "Writing", "Reading"]
    assert history.log[0].startswith("12:00:00 ")


def test_the_log_tells_the_time_in_utc_wherever_the_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "XYZ-5:30")
    time.tzset()
    try:
        history = History([(NOON, {**PROGRESS, "stage": "check"})])
        history.say("Said.", NOON + 61)
        history.close(replace(record(1, None, "failed"), ended=86_399.0, error=("It failed.", "")))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert [line.split()[0] for line in history.log] == ["12:00:00", "12:01:01", "23:59:59"]


def test_the_log_ends_with_how_the_job_ended_and_says_it_once() -> None:
    def ends(
        state: str, error: tuple[str, str] | None, said: tuple[str, str] | None = None, remark: str = ""
    ) -> list[str]:
        history = History()
        if said:
            history.take({"error": {"kind": "E", "message": said[0], "hint": said[1]}}, NOON)
        history.close(replace(record(1, None, state), ended=NOON, error=error, remark=remark))
        return [line.partition(" ")[2] for line in history.log]

    assert ends("failed", ("It is away.", "Try later."), said=("It is away.", "Try later.")) == ["It is away."]
    assert ends("failed", ("It was silent.", "Again.")) == ["It was silent."]
    assert ends("failed", ("It was silent.", "Again."), said=("It is away.", "Later.")) == [
        "It is away.",
        "It was silent.",
    ]
    assert ends("interrupted", ("It was restarted.", "Again.")) == ["It was restarted."]
    assert ends("done", None, remark="Look at it.") == []
    assert ends("cancelled", None) == []
    assert ends("cancelled", None, remark="Look at it.") == ["Look at it."]


def test_the_loads_of_a_comparison_are_counted_with_both_warm_ups() -> None:
    cost = {"outcome": "loaded", "message": "", "method": "from_pretrained", "dtype_asked": None, "cache": "warm"}
    cost |= {
        "memory_limited_by": None,
        "seconds": {},
        "peak_anon_bytes": 1,
        "peak_file_bytes": 1,
        "peak_total_bytes": 2,
    }
    for rounds in (1, 3):
        history = History()
        assert history.loads is None
        seen = []
        for number in range(2 * (rounds + 1)):
            side = ("original", "sharded")[number % 2]
            history.take({"event": "probed", "side": side, "round": number // 2, "rounds": rounds, "cost": cost}, NOON)
            seen.append(history.loads)
        assert seen == [(number, 2 * rounds + 2) for number in range(1, 2 * rounds + 3)]
        assert status_of(record(1, None), history).loads == (2 * rounds + 2, 2 * rounds + 2)


def test_the_log_is_bounded() -> None:
    history = History()
    for number in range(3 * LOG_LINES):
        history.take({**PROGRESS, "stage": ("check", "transfer")[number % 2]}, NOON)
    assert len(history.log) == LOG_LINES


def test_the_weight_map_is_left_out_since_the_shards_say_it() -> None:
    tensor = stored_tensor("wte", "U8", (6,), "f", 0, 6)
    checkpoint = Checkpoint(RepoRef("hub", "a/b", "c" * 40), (tensor,), (), (FileEntry("f", 6),), (), ())
    line = event_json(Planned(checkpoint, plan_shards([tensor], Options("6"))))
    assert json.dumps(line).count('"wte"') == 2
    history = History()
    history.take(line, NOON)
    assert json.dumps(to_json(status_of(record(6, None), history))).count('"wte"') == 1


# --- Forecasts -------------------------------------------------------------------------------------------


def record(size: int, seconds: float | None, state: str = "done", peak: int = 1, disk: int = 0) -> JobRecord:
    return JobRecord(
        "id",
        "alice",
        JobRequest("a/b", "c/d", Options("1MB")),
        size,
        NOON,
        state,  # type: ignore[arg-type]
        seconds=seconds,
        peak_anon_bytes=peak,
        disk_bytes_written=disk,
    )


@pytest.mark.parametrize(
    ("left", "slots", "expected"),
    [([], 1, 0), ([5.0], 1, 5), ([5.0, 7.0], 1, 12), ([5.0, 7.0], 2, 5), ([5.0], 2, 0), ([5.0, None], 1, None)],
)
def test_a_job_starts_when_those_before_it_leave_a_place(
    left: list[float | None], slots: int, expected: float | None
) -> None:
    assert seconds_until_start(left, slots) == expected


def test_a_forecast_rests_on_the_jobs_that_were_done_here() -> None:
    finished = [record(100, 1, peak=5), record(100, 2, peak=9, disk=3), record(900, 3), record(1, None, "cancelled")]
    expected = forecast(1000, finished, 1e9)
    assert (expected.seconds, expected.at_least) == (10, False)
    assert (expected.peak_anon_bytes, expected.disk_bytes) == (9, 3)
    assert "From 3 jobs done" in expected.basis


def test_the_rate_of_jobs_is_that_of_those_that_were_done() -> None:
    """Not of those that failed, nor of those whose time says nothing of the whole."""
    finished = [record(100, 1), record(100, 2), record(900, 3)]
    others = [record(10_000, 1, state) for state in ("failed", "cancelled", "interrupted")] + [record(10_000, None)]
    assert bytes_per_second(finished) == bytes_per_second([*others, *finished, *others]) == 100
    assert bytes_per_second(finished[:2]) == 75
    assert bytes_per_second(others) is bytes_per_second([]) is None
    assert forecast(1000, [*others, *finished], 1e9) == forecast(1000, finished, 1e9)


@pytest.mark.parametrize(
    ("started", "own", "rate", "expected"),
    [
        (None, None, 10.0, 10.0),  # it waits
        (None, None, None, None),
        (NOON, None, None, None),
        (NOON, None, 10.0, 7.0),
        (NOON, 5.0, 10.0, 7.0),
        (NOON, 8.0, 10.0, 8.0),
        (NOON, 8.0, None, 8.0),
        (NOON, 0.0, 100.0, 0.0),  # longer than all others have taken
        (NOON, None, 100.0, 0.0),
        (NOON, 2.0, 100.0, 2.0),
    ],
)
def test_the_time_left_is_the_longer_of_two_estimates_and_never_below_nothing(
    started: float | None, own: float | None, rate: float | None, expected: float | None
) -> None:
    progress = replace(History([(NOON, dict(PROGRESS))]).progress, seconds_left=own)  # type: ignore[type-var]
    running = replace(record(100, None, "running"), started=started)
    assert seconds_left(running, progress if started else None, rate, NOON + 3) == expected
    if own is None:
        assert seconds_left(running, None, rate, NOON + 3) == expected


def test_before_the_first_job_a_forecast_says_that_it_is_a_lower_bound_and_why() -> None:
    expected = forecast(1000, [record(1, None, "failed")], 100.0)
    assert (expected.seconds, expected.at_least) == (10, True)
    assert "No job has been done here yet" in expected.basis


def test_hashing_is_measured() -> None:
    assert measure_hashing() > 1e6
