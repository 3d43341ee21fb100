"""What a job says becomes what its owner sees, whatever it says."""

import json
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.core.events import Planned, ShardFinished, Verified
from sharding.core.options import Options
from sharding.core.origin import Place
from sharding.core.values import Content, FileEntry, Shard
from sharding.core.verification import Evidence, Verification
from sharding.desk.jobs import LOG_LINES, History, JobRecord, JobRequest, status_of
from sharding.planning.plan import plan_shards
from sharding.report.report import event_json
from sharding.report.schema import to_json
from tests.desk.actors import PROGRESS
from tests.tensors import stored_tensor

NOON = 12 * 3600.0
KEYS = st.sampled_from([*PROGRESS, "plan", "source", "ref", "place", "error", "file", "bytes", "number", "kept"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=5,
)
EVENTS = st.sampled_from(["planned", "progress", "shard-finished", "verified", "published", "report", "error", "x"])


@settings(max_examples=20)
@given(st.dictionaries(KEYS, ANYTHING), st.none() | EVENTS)
def test_an_event_is_taken_or_refused_whatever_it_is(event: dict[str, object], name: str | None) -> None:
    if name:
        event["event"] = name
    history = History()
    try:
        history.take(event, NOON)
    except ValueError:
        assert not history.told.log


@pytest.mark.parametrize(
    "said",
    [
        *({"event": None}, {"stage": None}, {"bytes_done": None}, {"bytes_total": None}),
        *({key: number} for key in ("bytes_per_second", "seconds_left") for number in (float("nan"), -1.0, 2**63)),
        *({"files": {name: 3}} for name in ("", "../up", "a/../b", "<b>", "a\nb", "x" * 1001)),
    ],
)
def test_an_event_without_what_it_is_about_or_with_what_no_job_says_is_refused(said: dict[str, object]) -> None:
    whole = {**PROGRESS, "bytes_per_second": 1e6, "seconds_left": 1e6, "files": {"unet/model-00001.safetensors": 3}}
    History().take(dict(whole), NOON)
    with pytest.raises(ValueError, match="no event"):
        History().take({key: value for key, value in {**whole, **said}.items() if value is not None}, NOON)


def test_the_log_says_when_a_stage_begins_and_not_each_step_of_it() -> None:
    history = History()
    for stage in ("check", "transfer", "transfer", "verify"):
        history.take({**PROGRESS, "stage": stage}, NOON)
    assert [line.split()[1] for line in history.told.log] == ["Checking", "Writing", "Verifying."]
    assert history.told.log[0].startswith("12:00:00 ")


def test_the_log_tells_the_time_in_utc_wherever_the_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "XYZ-5:30")
    time.tzset()
    try:
        history = History()
        history.take({**PROGRESS, "stage": "check"}, NOON)
        history.say("Said.", NOON + 61)
        history.close(replace(record(1, None, "failed"), ended=86_399.0, error=("It failed.", "")))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert [line.split()[0] for line in history.told.log] == ["12:00:00", "12:01:01", "23:59:59"]


@pytest.mark.parametrize(
    ("state", "said", "error", "remark", "log"),
    [
        ("failed", "It is away.", "It is away.", "", ["It is away."]),
        ("failed", "", "It was silent.", "", ["It was silent."]),
        ("failed", "It is away.", "It was silent.", "", ["It is away.", "It was silent."]),
        ("interrupted", "", "It was restarted.", "", ["It was restarted."]),
        ("done", "", "", "Look at it.", []),
        ("cancelled", "", "", "", []),
        ("cancelled", "", "", "Look at it.", ["Look at it."]),
    ],
)
def test_the_log_ends_with_how_the_job_ended_and_says_it_once(
    state: str, said: str, error: str, remark: str, log: list[str]
) -> None:
    history = History()
    if said:
        history.take({"error": {"kind": "E", "message": said, "hint": "Later."}}, NOON)
    ended = (error, "Later.") if error else None
    history.close(replace(record(1, None, state), ended=NOON, error=ended, remark=remark))
    assert [line.partition(" ")[2] for line in history.told.log] == log


def planned_job(*sizes: int) -> History:
    """A history of a job that will write so many files of `sizes`, called 0.safetensors and so on."""
    tensors = [stored_tensor(f"t{number}", "U8", (size,), "f", 0, size) for number, size in enumerate(sizes)]
    shards = tuple(Shard(f"{number}.safetensors", (tensor,), tensor.bytes) for number, tensor in enumerate(tensors))
    plan = replace(plan_shards(tensors, Options("1MB")), shards=shards)
    checkpoint = Content(Place("hub", "a/b", "c" * 40), tuple(tensors), (), (FileEntry("f", sum(sizes)),), (), ())
    history = History()
    history.take(event_json(Planned(checkpoint, plan)), NOON)
    return history


def finished(number: int, shards: int) -> dict[str, object]:
    return event_json(ShardFinished(f"{number}.safetensors", 999, "0" * 64, number + 1, shards))


def moved(stage: str, **files: int) -> dict[str, object]:
    return {**PROGRESS, "stage": stage, "files": {f"{name[1:]}.safetensors": size for name, size in files.items()}}


def test_bytes_of_each_file_are_summed_for_each_phase_and_never_exceed_the_file() -> None:
    history = planned_job(10, 20)
    for event in (moved("check", f1=3), moved("transfer", f0=4), moved("transfer", f0=4, f1=1)):
        history.take(event, NOON)
    history.take({**PROGRESS, "files": {"elsewhere": 9}}, NOON)  # no file of the copy
    assert (history.told.written, history.told.reread) == ({"0.safetensors": 8, "1.safetensors": 1}, {})
    history.take(moved("transfer", f0=40), NOON)
    assert history.told.written["0.safetensors"] == 10
    # A finished file is whole, also if the events of its last bytes are missing.
    before = status_of(record(30, None), history.told)
    history.take(finished(1, 2), NOON)
    assert before.written["1.safetensors"] == 1 and not before.shards, "a status is a snapshot"
    for begun in ("verify", "check", "verify"):
        history.take(moved(begun, f1=7), NOON)
    status = status_of(record(30, None), history.told)
    assert status.written == {"0.safetensors": 10, "1.safetensors": 20} and status.reread == {"1.safetensors": 7}
    proof = Verification(2, 30, 1.0, Evidence("hub"), ())
    history.take(event_json(Verified(proof)), NOON)
    assert history.told.reread == {"0.safetensors": 10, "1.safetensors": 20}
    assert status.reread == {"1.safetensors": 7}, "a status is a snapshot"


def test_a_phase_that_begins_again_starts_with_what_is_finished() -> None:
    history = planned_job(10, 20)
    history.take(moved("transfer", f0=4, f1=5), NOON)
    history.take(finished(0, 2), NOON)
    for stage in ("verify", "transfer"):
        history.take(moved(stage, f1=1), NOON)
    assert history.told.written == {"0.safetensors": 10, "1.safetensors": 1}


def test_the_times_say_when_each_phase_began_and_what_was_done_when() -> None:
    history = planned_job(10, 20)
    events = [moved("check"), finished(0, 2), moved("transfer"), finished(1, 2), moved("verify"), moved("verify")]
    for seconds, event in enumerate([*events, event_json(Verified(Verification(2, 30, 1.0, Evidence("hub"), ())))], 1):
        history.take(event, NOON + seconds)
    assert {name: seconds - NOON for name, seconds in history.told.times.items()} == {
        "planned": 0, "check": 1, "transfer": 2, "written": 4, "verify": 5, "verified": 7,
    }  # fmt: skip


def test_the_log_is_bounded() -> None:
    history = History()
    for number in range(3 * LOG_LINES):
        history.take({**PROGRESS, "stage": ("check", "transfer")[number % 2]}, NOON)
    assert len(history.told.log) == LOG_LINES


def test_the_weight_map_is_left_out_since_the_shards_say_it() -> None:
    tensor = stored_tensor("wte", "U8", (6,), "f", 0, 6)
    checkpoint = Content(Place("hub", "a/b", "c" * 40), (tensor,), (), (FileEntry("f", 6),), (), ())
    line = event_json(Planned(checkpoint, plan_shards([tensor], Options("6B"))))
    assert json.dumps(line).count('"wte"') == 2
    history = History()
    history.take(line, NOON)
    assert json.dumps(to_json(status_of(record(6, None), history.told))).count('"wte"') == 1


def record(size: int, seconds: float | None, state: str = "done") -> JobRecord:
    request = JobRequest("a/b", "c/d", Options("1MB"))
    return JobRecord("id", "alice", request, size, NOON, state, seconds=seconds)  # type: ignore[arg-type]
