"""Processes that misbehave end as a failed job, and none tells the token."""

import stat
from collections.abc import Callable

import psutil
import pytest

from sharding.core.errors import Refused
from sharding.desk.desk import Desk
from sharding.desk.jobs import Settings
from sharding.formats.names import REPORT_NAME
from tests.conftest import listing
from tests.desk.actors import Actor, Stage, Told
from tests.desk.conftest import ALICE, begin, hand_in, process_of, state
from tests.inhouse import InHouse

GARBAGE: dict[str, Callable[[Actor], None]] = {
    "no JSON": lambda actor: actor.say("hello"),
    "no object": lambda actor: actor.say("[1, 2]"),
    "no event": lambda actor: actor.say({"a": 1}),
    "an unknown event": lambda actor: actor.say({"event": "party"}),
    "a wrong shape": lambda actor: actor.progress(bytes_done="many"),
    "a wrong error": lambda actor: actor.say({"error": "oops"}),
    "not a number": lambda actor: actor.say('{"event": "shard-finished", "number": NaN}'),
    "no text": lambda actor: actor.do("printf '\\377\\376\\n'"),
    "deep": lambda actor: actor.do("head -c 90000 /dev/zero | tr '\\0' '['; echo"),
    "a line beyond all bounds": lambda actor: actor.do("head -c 200000 /dev/zero | tr '\\0' x"),
    "exit 3": lambda actor: actor.exit(3),
    "exit 0 without a result": lambda actor: actor.exit(),
    "a crash": lambda actor: actor.do("kill -SEGV $$"),
    "much to say about it": lambda actor: actor.do("head -c 5000000 /dev/zero | tr '\\0' x >&2; exit 1"),
}


def test_a_job_that_talks_nonsense_fails_with_a_hint_and_the_next_one_runs(
    desk: Desk, stage: Stage, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.desk.runner.EVENT_BYTES", 100_000)
    for number, (kind, speak) in enumerate(GARBAGE.items()):
        job_id, destination = hand_in(desk, small, f"v{number}")
        speak(stage(destination))
        status = state(desk, job_id, "failed", f"v{number}")
        assert status.error and status.error[0].startswith("The job's process ") and status.error[1], kind
        assert len(status.error[0]) < 10_000, kind


def test_a_queue_that_is_full_takes_nobody_more(
    desk: Desk, stage: Stage, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.desk.desk.MAX_ACTIVE_JOBS", 1)
    hand_in(desk, small, "a")
    with pytest.raises(Refused, match="queue is full") as refusal:
        hand_in(desk, small, "b")
    assert "duplicate this Space" in refusal.value.hint


def test_the_token_is_nowhere_but_in_the_environment_of_the_job(
    hub: InHouse, desk: Desk, settings: Settings, stage: Stage, small: str, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret_of_the_space")
    monkeypatch.setenv("OPENAI_API_KEY", "another_secret_of_the_space")
    job_id, actor = begin(desk, stage, small)
    process = psutil.Process(process_of(settings, job_id))
    variables = process.environ()
    assert variables["HF_TOKEN"] == ALICE and ALICE not in " ".join(process.cmdline())
    assert "secret_of_the_space" not in repr(variables)
    assert variables["HF_HOME"].startswith(str(settings.folder))
    assert stat.S_IMODE(settings.folder.stat().st_mode) == 0o700
    actor.publish(told)
    assert ALICE not in repr(state(desk, job_id, "done", "a"))
    places = listing(settings.folder)
    places |= {path: hub.ask("GET", f"/alice/told/resolve/main/{path}").body for path in (REPORT_NAME, "README.md")}
    assert not [path for path, data in places.items() if ALICE.encode() in data]
