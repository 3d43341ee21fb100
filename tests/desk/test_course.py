"""The course of a job: its turn, what is said of it meanwhile, and what ends it."""

from dataclasses import replace
from threading import Event

import pytest

from sharding.desk.desk import Desk
from sharding.desk.jobs import Settings
from tests.desk.actors import Stage, Told, until
from tests.desk.conftest import begin, end, hand_in, seen, state

NOON = 1_800_000_000.0
HOUR = 3600


@pytest.fixture
def now() -> list[float]:
    return [NOON]


def test_jobs_have_their_turns_in_the_order_in_which_they_came(desk: Desk, stage: Stage, small: str) -> None:
    """Each sees how many are before it, the running one too; who leaves the queue lets the others move up."""
    ids = {"a": begin(desk, stage, small)[0]}
    ids |= {who: hand_in(desk, small, who)[0] for who in "bcd"}
    actors = {who: stage(f"of-{who}") for who in ids}

    def places() -> list[tuple[str, int]]:
        return [(status.state, status.position) for who in ids for status in [seen(desk, ids[who], who)]]

    assert places() == [("running", 0), ("queued", 1), ("queued", 2), ("queued", 3)] and desk.queue_length == 4
    desk.cancel(ids["b"], "b")
    assert places() == [("running", 0), ("cancelled", 0), ("queued", 1), ("queued", 2)] and desk.queue_length == 3
    actors["a"].exit()
    state(desk, ids["c"], "running", "c")
    assert places() == [("failed", 0), ("cancelled", 0), ("running", 0), ("queued", 1)]
    for who in "cd":
        actors[who].exit()
        state(desk, ids[who], "failed", who)
    assert desk.queue_length == 0 and not actors["b"].has_begun and actors["b"].discarded == 0


def test_so_many_jobs_run_side_by_side_as_the_settings_say(settings: Settings, stage: Stage, small: str) -> None:
    """The next begins where one of them ends; when it may begin follows from those before it."""
    with Desk(replace(settings, jobs_at_once=2)) as desk:
        ids = {}
        for who, seconds in (("a", 30.0), ("b", 10.0)):
            ids[who], actor = begin(desk, stage, small, who)
            actor.progress(seconds_left=seconds)
            until(lambda who=who: seen(desk, ids[who], who).progress)
        ids |= {who: hand_in(desk, small, who)[0] for who in "cd"}
        actors = {who: stage(f"of-{who}") for who in ids}

        def start(who: str) -> tuple[str, int, float | None]:
            status = seen(desk, ids[who], who)
            return status.state, status.position, status.seconds_until_start

        assert start("c") == ("queued", 2, 10.0)
        follows = start("d")  # the third is expected to take a few seconds
        assert follows[:2] == ("queued", 3) and follows[2] and 10 < follows[2] <= 30
        actors["b"].exit()
        state(desk, ids["c"], "running", "c")
        assert start("a")[0] == "running" and start("d")[:2] == ("queued", 2)
        actors["a"].exit()
        state(desk, ids["d"], "running", "d")
        for who in "cd":
            actors[who].exit()
            state(desk, ids[who], "failed", who)


def test_the_last_that_a_watcher_is_told_has_how_the_job_ended_in_its_log(
    desk: Desk, stage: Stage, small: str, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, also where the desk has not yet cleared the job away, and as it is told later on."""
    looked, cleared, settle = Event(), Event(), desk._settle
    monkeypatch.setattr(desk, "_settle", lambda taken: (looked.wait(60), settle(taken), cleared.set()))
    ends = {}
    for who in ("failed", "cancelled"):
        looked.clear()
        cleared.clear()
        job_id, actor = begin(desk, stage, small, who)
        actor.will_discard({"repo_deleted": False, "remark": "Look at it."})
        actor.say(told["planned"])
        until(lambda job_id=job_id, who=who: seen(desk, job_id, who).planned)
        if who == "cancelled":
            desk.cancel(job_id, who)
        else:
            actor.exit(3)
        ends[who] = end(desk, job_id, who)
        looked.set()
        assert cleared.wait(60)
        assert seen(desk, job_id, who) == ends[who]
    said = {who: [line.split(" ", 1)[1] for line in status.log] for who, status in ends.items()}
    planned = "Planned: 240.1 kB in 5 shards."
    assert said["cancelled"] == [planned, "Its unfinished files were deleted.", "Look at it."]
    assert said["failed"] == [planned, "The job's process ended with status 3."]


def test_a_job_that_speaks_goes_on_and_one_that_is_silent_for_too_long_is_ended(
    settings: Settings, stage: Stage, small: str, now: list[float]
) -> None:
    with Desk(settings, clock=lambda: now[0]) as desk:
        job_id, actor = begin(desk, stage, small)
        for number in range(1, 4):
            now[0] += HOUR / 2
            desk.sweep()
            actor.shard(number)
            assert until(lambda number=number: len(seen(desk, job_id).shards) == number)
        desk.sweep()
        now[0] += HOUR / 2
        desk.sweep()
        assert seen(desk, job_id).state == "running"
        now[0] += 1
        desk.sweep()
        status = state(desk, job_id, "failed", "a")
        assert status.error and "reported nothing for 30 minutes" in status.error[0] and status.error[1]


def test_a_job_may_run_as_long_as_any_however_long_it_has_waited(
    settings: Settings, stage: Stage, small: str, now: list[float]
) -> None:
    with Desk(settings, clock=lambda: now[0]) as desk:
        _, actor = begin(desk, stage, small)
        second, destination = hand_in(desk, small, "b")
        waiting = stage(destination)
        now[0] += 23 * HOUR
        actor.exit()
        state(desk, second, "running", "b")
        started = now[0]
        for number in range(1, 50):
            now[0] = min(now[0] + HOUR / 2, started + 24 * HOUR)
            waiting.shard(number)
            until(lambda number=number: len(seen(desk, second, "b").shards) == number)
        desk.sweep()
        waiting.shard(50)  # who has been stopped says nothing more
        until(lambda: len(seen(desk, second, "b").shards) == 50)
        assert seen(desk, second, "b").state == "running"
        now[0] += 1
        desk.sweep()
        status = state(desk, second, "failed", "b")
        assert status.error and "reached the limit of 24 hours" in status.error[0] and status.error[1]
