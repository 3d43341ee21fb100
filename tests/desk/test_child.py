"""The process of a job: what it may say, how it ends, and what ends with it."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from sharding.desk.desk import Desk
from sharding.desk.jobs import Settings
from sharding.desk.runner import Child, kill_stray
from tests.desk.actors import Actor, Stage, is_gone, until
from tests.desk.conftest import ALICE, hand_in, state

TOKEN = "hf_secret"


@pytest.fixture
def begun(stage: Stage, tmp_path: Path) -> Iterator[tuple[Child, Actor]]:
    """A process and who plays it."""
    (tmp_path / "work").mkdir()
    actor = stage("it")
    child = Child(["shard", "it"], tmp_path / "work", "http://hub", TOKEN)
    yield child, actor
    child.kill()
    child.wait()


@pytest.mark.parametrize("how", ["kill", "stop", "stubborn"])
def test_with_a_process_ends_all_that_it_has_started(
    begun: tuple[Child, Actor], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Whether it is killed, told to end, or killed since it does not."""
    monkeypatch.setattr("sharding.desk.runner.STOP_SECONDS", 0.1 if how == "stubborn" else 30)
    child, actor = begun
    if how == "stubborn":
        actor.do("trap '' TERM")
    actor.do("sleep 600 & echo $!")
    actor.do("sh -c 'sleep 600 & echo $!; wait' & echo $!")  # which starts another
    lines = child.lines()
    family = [int(next(lines)) for _ in range(3)]
    assert child.identity and not any(map(is_gone, family))
    child.kill() if how == "kill" else child.stop()
    until(lambda: all(map(is_gone, family)))
    assert child.wait() == -(signal.SIGTERM if how == "stop" else signal.SIGKILL)


def test_what_an_earlier_desk_left_behind_is_killed_with_its_session_and_nobody_else() -> None:
    """Another process with its number began at another time, before or after."""
    command = ["sh", "-c", "sleep 600 & echo $!; exec cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as stranger:
        assert stranger.stdin and stranger.stdout
        started, other = psutil.Process(stranger.pid).create_time(), int(stranger.stdout.readline())
        for wrong in (started - 1, started + 1, 0.0, started - 0.01):
            kill_stray((stranger.pid, wrong))
            stranger.stdin.write(b"alive\n")
            stranger.stdin.flush()
            assert stranger.stdout.readline() == b"alive\n" and not is_gone(other)
        kill_stray((stranger.pid, started))
        assert stranger.wait(60) == -signal.SIGKILL
        until(lambda: is_gone(other))
        with suppress(BrokenPipeError):
            stranger.stdin.close()
    kill_stray((stranger.pid, started))


def test_a_process_is_known_by_its_number_and_start_for_as_long_as_it_is_there(begun: tuple[Child, Actor]) -> None:
    child, actor = begun
    assert child.identity
    number, started = child.identity
    assert psutil.Process(number).create_time() == started
    assert os.getsid(number) == number  # what is in its session ends with it, and nothing else
    actor.exit(7)
    assert (child.wait(), child.wait(), child.identity) == (7, 7, None)
    child.stop()
    child.kill()


def test_the_last_line_on_standard_error_is_kept_however_much_there_is(begun: tuple[Child, Actor]) -> None:
    child, actor = begun
    actor.do('i=0; while [ $i -lt 3000 ]; do echo "line $i" >&2; i=$((i + 1)); done')
    for line in (f"it has {TOKEN} and {TOKEN}", "", "  "):
        actor.warn(line)
    actor.exit(3)
    assert list(child.lines()) == []
    assert (child.wait(), child.last_words) == (3, "it has [token] and [token]")


def test_a_line_has_a_bound(begun: tuple[Child, Actor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sharding.desk.runner.EVENT_BYTES", 1001)
    child, actor = begun
    for length in (1, 1000, 1001):
        actor.say("x" * length)
    actor.exit()
    lines = child.lines()
    assert [next(lines) for _ in range(2)] == [b"x\n", b"x" * 1000 + b"\n"]
    with pytest.raises(ValueError, match="too long"):
        next(lines)


def test_a_process_begins_where_nothing_is_and_knows_the_login_from_its_environment_only(
    begun: tuple[Child, Actor], tmp_path: Path
) -> None:
    child, actor = begun
    actor.do('echo "$HF_TOKEN|$HF_ENDPOINT|$HOME|$HF_HOME|$TMPDIR|$PWD|$(ls | wc -l)"')
    actor.exit()
    (line,) = child.lines()
    work = tmp_path / "work"
    places = [f"{work}/home", f"{work}/home", f"{work}/tmp", f"{work}/here"]
    assert line.decode().strip().split("|") == ["[token]", "http://hub", *places, "0"]
    assert TOKEN not in actor.arguments


def test_what_a_job_may_say_in_all_is_bounded(
    desk: Desk, stage: Stage, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.desk.runner.EVENTS_BYTES", 2000)
    for who, count, says in (("a", 10, "ended with status 0"), ("b", 40, "the events take too many bytes")):
        job_id, destination = hand_in(desk, small, who)
        actor = stage(destination)
        for number in range(1, count + 1):
            actor.shard(number)
        actor.exit()
        status = state(desk, job_id, "failed", who)
        assert status.error and says in status.error[0]
        assert len(status.shards) == 10 if who == "a" else 10 < len(status.shards) < 25


def test_a_login_that_a_process_prints_is_struck_out_wherever_it_does(
    desk: Desk, settings: Settings, stage: Stage, small: str
) -> None:
    """In events, in strange lines and in its last words on standard error; all but those last words is passed over."""
    said = {
        "a": lambda actor: actor.say({"error": {"kind": "E", "message": f"no {ALICE}{ALICE}", "hint": ALICE}}),
        "b": lambda actor: [actor.warn("first"), actor.warn(f"refused {ALICE} at {ALICE}")],
        "c": lambda actor: actor.say(f"{ALICE} is no event"),
        "d": lambda actor: actor.shard(1, file=f"{ALICE}.safetensors"),
    }
    seen = {}
    for who, speak in said.items():
        job_id, destination = hand_in(desk, small, who)
        actor = stage(destination)
        speak(actor)
        actor.exit(3)
        seen[who] = state(desk, job_id, "failed", who)
    assert seen["a"].error == ("no [token][token]", "[token]")
    assert seen["b"].error and seen["b"].error[0].endswith("ended with status 3: refused [token] at [token].")
    assert seen["d"].shards[0].file == "[token].safetensors"
    assert ALICE not in repr(seen)
    kept = [path for path in settings.folder.rglob("*") if path.is_file()]
    assert len(kept) == 7 and not [path for path in kept if ALICE.encode() in path.read_bytes()]
