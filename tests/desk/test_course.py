"""The course of a job: its turn, what is said of it meanwhile, and what ends it."""

from dataclasses import replace
from threading import Event, Thread

import psutil
import pytest

from sharding import job
from sharding.core.options import Options
from sharding.desk import Desk, JobRequest, JobStatus, Settings
from sharding.report.events import event_json
from sharding.storage.hub_lookup import Person
from sharding.storage.hub_staging import STAGING_BRANCH
from tests.desk.actors import Actor, Stage, is_gone, until
from tests.desk.conftest import ALICE, AS_ALICE, branches, process_of, state
from tests.inhouse import InHouse

SIZE = Options("60kB")
NOON = 1_800_000_000.0
HOUR = 3600


@pytest.fixture
def now() -> list[float]:
    return [NOON]


@pytest.fixture(scope="module")
def told(hub: InHouse, small: str) -> dict[str, dict[str, object]]:
    """What a job that was done has said, the last of each kind."""
    events = job.shard(small, "alice/told", SIZE, endpoint=hub.address, token=ALICE)
    return {str(line["event"]): line for line in map(event_json, events)}  # type: ignore[arg-type]


def submit(desk: Desk, source: str, who: str, **more: object) -> tuple[str, str]:
    """Hand in a job of `who`, who has an organisation of the same name; return its id and where it writes."""
    request = replace(JobRequest(source, f"alice/of-{who}", SIZE), **more)  # type: ignore[arg-type]
    return desk.submit(request, Person(who, ("alice",)), ALICE), request.destination


def children() -> set[int]:
    """The processes that this one has started and that have not ended."""
    return {child.pid for child in psutil.Process().children() if not is_gone(child.pid)}


# --- Turns ----------------------------------------------------------------------------------------------------


def test_jobs_have_their_turns_in_the_order_in_which_they_came(desk: Desk, stage: Stage, small: str) -> None:
    """Each sees how many are before it, the running one too; who leaves the queue lets the others move up."""
    people = ["a", "b", "c", "d"]
    ids, actors = {}, {}
    for who in people:
        ids[who], destination = submit(desk, small, who)
        actors[who] = stage(destination)
    state(desk, ids["a"], "running", "a")

    def places() -> list[tuple[str, int]]:
        seen = [desk.status(ids[who], who) for who in people]
        return [(status.state, status.position) for status in seen if status]

    assert places() == [("running", 0), ("queued", 1), ("queued", 2), ("queued", 3)] and desk.queue_length == 4
    desk.cancel(ids["b"], "b")
    assert places() == [("running", 0), ("cancelled", 0), ("queued", 1), ("queued", 2)] and desk.queue_length == 3
    actors["a"].exit()
    state(desk, ids["c"], "running", "c")
    assert places() == [("failed", 0), ("cancelled", 0), ("running", 0), ("queued", 1)]
    actors["c"].exit()
    state(desk, ids["d"], "running", "d")
    actors["d"].exit()
    state(desk, ids["d"], "failed", "d")
    assert desk.queue_length == 0 and not actors["b"].has_begun


def test_so_many_jobs_run_side_by_side_as_the_settings_say(settings: Settings, stage: Stage, small: str) -> None:
    """The next begins where one of them ends; when it may begin follows from those before it."""
    with Desk(replace(settings, jobs_at_once=2)) as desk:
        ids = {}
        for who in ("a", "b", "c", "d"):
            ids[who], destination = submit(desk, small, who)
            stage(destination)
        for who, seconds in (("a", 30.0), ("b", 10.0)):
            state(desk, ids[who], "running", who)
            stage(f"of-{who}").progress(seconds_left=seconds)
            until(lambda who=who: (s := desk.status(ids[who], who)) and s.progress)

        def start(who: str) -> tuple[str, int, float | None]:
            status = desk.status(ids[who], who)
            assert status
            return status.state, status.position, status.seconds_until_start

        assert start("c") == ("queued", 2, 10.0)
        assert start("d") == ("queued", 3, None)  # how long the third takes nobody knows
        stage("of-b").exit()
        state(desk, ids["c"], "running", "c")
        assert start("a")[0] == "running" and start("d") == ("queued", 2, None)
        stage("of-a").exit()
        state(desk, ids["d"], "running", "d")
        for who in ("c", "d"):
            stage(f"of-{who}").exit()
            state(desk, ids[who], "failed", who)


def full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_full_disk_ends_a_job_and_its_process_and_the_next_has_its_turn(
    desk: Desk, settings: Settings, stage: Stage, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, destination = submit(desk, small, "a")
    after, next_destination = submit(desk, small, "b")
    actor, following = stage(destination), stage(next_destination)
    state(desk, job_id, "running", "a")
    process = process_of(settings, job_id)
    with monkeypatch.context() as context:
        context.setattr("sharding.desk.job_store.Shelf.note", full)
        actor.shard(1)
        status = state(desk, job_id, "failed", "a")
    assert is_gone(process)
    assert status.error and "No space left" in status.error[0] and status.error[1]
    state(desk, after, "running", "b")
    following.exit()
    state(desk, after, "failed", "b")
    assert desk.queue_length == 0


def test_where_not_even_an_end_can_be_noted_nothing_runs_on_and_the_next_has_its_turn(
    desk: Desk, stage: Stage, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what was running nor what has its turn meanwhile."""
    before = children()
    ids = {who: submit(desk, small, who)[0] for who in ("a", "b", "c")}
    actors = {who: stage(f"of-{who}") for who in ids}
    state(desk, ids["a"], "running", "a")
    with monkeypatch.context() as context:
        for method in ("note", "save"):
            context.setattr(f"sharding.desk.job_store.Shelf.{method}", full)
        actors["a"].shard(1)
        for who in ids:
            status = state(desk, ids[who], "interrupted", who)
            assert status.error and status.error[1]
        assert children() == before
    again, destination = submit(desk, small, "a", destination="alice/of-a-again")
    stage(destination).exit()
    state(desk, again, "failed", "a")


# --- What is told meanwhile -----------------------------------------------------------------------------------


def test_who_watches_is_told_of_each_change_and_of_the_end(
    desk: Desk, stage: Stage, small: str, told: dict[str, dict[str, object]]
) -> None:
    job_id, destination = submit(desk, small, "a")
    actor = stage(destination)
    state(desk, job_id, "running", "a")
    seen: list[JobStatus] = []
    watcher = Thread(target=lambda: seen.extend(desk.watch(job_id, "a")))
    watching = desk.watch(job_id, "a")
    assert next(watching).state == "running"  # at once
    watcher.start()
    actor.progress()
    assert next(watching).progress
    actor.progress(bytes_done=2)
    assert next(watching).progress.bytes_done == 2  # type: ignore[union-attr]
    for number in (1, 2):
        actor.shard(number)
        assert [shard.number for shard in next(watching).shards] == list(range(1, number + 1))
    actor.say(told["planned"])
    assert next(watching).planned
    actor.exit(3)
    last = next(watching)
    assert last.state == "failed" and list(watching) == []
    watcher.join(30)
    assert not watcher.is_alive() and seen[-1] == last
    assert all(one != other for one, other in zip(seen, seen[1:], strict=False))
    assert list(desk.watch(job_id, "a")) == [last]


def test_the_last_that_a_watcher_is_told_has_how_the_job_ended_in_its_log(
    desk: Desk, stage: Stage, small: str, told: dict[str, dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, also where the desk has not yet cleared the job away, and as it is told later on."""
    looked, cleared, settle = Event(), Event(), desk._settle
    monkeypatch.setattr(desk, "_settle", lambda taken: (looked.wait(30), settle(taken), cleared.set()))
    ends = {}
    for who in ("failed", "cancelled"):
        looked.clear()
        cleared.clear()
        job_id, destination = submit(desk, small, who)
        actor = stage(destination)
        actor.will_discard({"repo_deleted": False, "remark": "Look at it."})
        state(desk, job_id, "running", who)
        actor.say(told["planned"])
        until(lambda job_id=job_id, who=who: _status(desk, job_id, who).planned)
        if who == "cancelled":
            desk.cancel(job_id, who)
        else:
            actor.exit(3)
        *_, ends[who] = desk.watch(job_id, who)
        looked.set()
        assert cleared.wait(30)
        assert _status(desk, job_id, who) == ends[who]
    assert [line.split(" ", 1)[1] for line in ends["cancelled"].log] == [
        "Planned: 240.1 kB in 5 shards.", "What it had staged is discarded.", "Look at it."
    ]  # fmt: skip
    assert [line.split(" ", 1)[1] for line in ends["failed"].log] == [
        "Planned: 240.1 kB in 5 shards.", "The job's process ended with status 3."
    ]  # fmt: skip


def test_who_watches_when_the_desk_closes_is_let_go(settings: Settings, stage: Stage, small: str) -> None:
    with Desk(settings) as desk:
        job_id, destination = submit(desk, small, "a")
        other, _ = submit(desk, small, "b")
        stage(destination)
        state(desk, job_id, "running", "a")
        watchers = [Thread(target=lambda each=each, who=who: list(desk.watch(each, who))) for each, who in
                    ((job_id, "a"), (other, "b"))]  # fmt: skip
        for watcher in watchers:
            watcher.start()
    for watcher in watchers:
        watcher.join(30)
        assert not watcher.is_alive()


# --- Jobs that hang -------------------------------------------------------------------------------------------


def test_a_job_that_speaks_goes_on_and_one_that_is_silent_for_too_long_is_ended(
    settings: Settings, stage: Stage, small: str, now: list[float]
) -> None:
    with Desk(settings, clock=lambda: now[0]) as desk:
        job_id, destination = submit(desk, small, "a")
        actor = stage(destination)
        state(desk, job_id, "running", "a")
        for number in range(1, 4):
            now[0] += HOUR / 2
            desk.sweep()
            actor.shard(number)
            assert until(lambda number=number: len(_status(desk, job_id).shards) == number)
        desk.sweep()
        now[0] += HOUR / 2
        desk.sweep()
        assert _status(desk, job_id).state == "running"
        now[0] += 1
        desk.sweep()
        status = state(desk, job_id, "failed", "a")
        assert status.error and "was silent for 30 minutes" in status.error[0] and status.error[1]


def test_a_job_may_run_as_long_as_any_however_long_it_has_waited(
    settings: Settings, stage: Stage, small: str, now: list[float]
) -> None:
    with Desk(settings, clock=lambda: now[0]) as desk:
        first, destination = submit(desk, small, "a")
        second, next_destination = submit(desk, small, "b")
        actor, waiting = stage(destination), stage(next_destination)
        state(desk, first, "running", "a")
        now[0] += 23 * HOUR
        actor.exit()
        state(desk, second, "running", "b")
        started = now[0]
        for number in range(1, 50):
            now[0] = min(now[0] + HOUR / 2, started + 24 * HOUR)
            waiting.shard(number)
            until(lambda number=number: len(_status(desk, second, "b").shards) == number)
        desk.sweep()
        assert _status(desk, second, "b").state == "running"
        now[0] += 1
        desk.sweep()
        status = state(desk, second, "failed", "b")
        assert status.error and "ran for 24 hours" in status.error[0] and status.error[1]


def _status(desk: Desk, job_id: str, viewer: str = "a") -> JobStatus:
    status = desk.status(job_id, viewer)
    assert status
    return status


# --- The end --------------------------------------------------------------------------------------------------


def test_a_desk_is_closed_when_all_its_jobs_have_ended_and_it_starts_no_other(
    settings: Settings, stage: Stage, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a job does not want to end."""
    monkeypatch.setattr("sharding.desk.process.STOP_SECONDS", 1.3)
    with Desk(replace(settings, jobs_at_once=2)) as desk:
        ids = {}
        for who in ("a", "b", "c"):
            ids[who], destination = submit(desk, small, who)
            stage(destination)
        processes = []
        for who in ("a", "b"):
            state(desk, ids[who], "running", who)
            stage(f"of-{who}").do("trap '' TERM")
            stage(f"of-{who}").shard(1)
            until(lambda who=who: _status(desk, ids[who], who).shards)
            processes.append(process_of(settings, ids[who]))
    assert [is_gone(process) for process in processes] == [True, True]
    assert not stage("of-c").has_begun
    with Desk(settings) as later:
        for who, job_id in ids.items():
            status = _status(later, job_id, who)
            assert (status.state, len(status.shards)) == ("interrupted", int(who != "c"))
            assert status.error and status.error[1]
            (record,) = later.jobs_of(who)
            assert record.state == "interrupted" and record.process is None


def test_a_job_that_has_published_is_done_however_it_is_stopped(
    hub: InHouse, desk: Desk, stage: Stage, small: str, told: dict[str, dict[str, object]]
) -> None:
    """What is cancelled too late is there, is named, and nothing of it is discarded."""
    commit = hub.api().model_info("alice/told").sha
    for who, stop in (("a", "cancel"), ("b", "exit"), ("c", "kill")):
        job_id, destination = submit(desk, small, who)
        actor = stage(destination)
        actor.do("trap '' TERM")
        state(desk, job_id, "running", who)
        for kind in ("planned", "verified"):
            actor.say(told[kind])
        until(lambda job_id=job_id, who=who: _status(desk, job_id, who).verification)
        if stop == "cancel":
            desk.cancel(job_id, who)
            state(desk, job_id, "cancelling", who)
        actor.say(told["published"])
        if stop == "kill":
            actor.do("kill -9 $$")
        else:
            actor.exit(3)
        status = state(desk, job_id, "done", who)
        assert status.published and status.error is None and actor.discarded == 0
        (record,) = desk.jobs_of(who)
        assert record.result == f"alice/told@{commit}"


@pytest.mark.parametrize("end", ["done", "failed", "killed", "cancelled", "interrupted"])
def test_what_a_process_left_in_its_folder_is_gone_with_the_end_of_its_job(
    settings: Settings, stage: Stage, small: str, told: dict[str, dict[str, object]], end: str
) -> None:
    def leave(actor: Actor) -> None:
        actor.do('mkdir -p "$HOME/more" && echo much > "$HOME/more/left" && echo much > "$TMPDIR/left" && echo > left')
        actor.say(told["published" if end == "done" else "planned"])

    with Desk(settings) as desk:
        job_id, destination = submit(desk, small, "a")
        actor = stage(destination)
        state(desk, job_id, "running", "a")
        leave(actor)
        folder = settings.folder / job_id.split("/")[0]
        until(lambda: (folder / "events.jsonl").exists())
        assert len([path for path in folder.rglob("left") if path.is_file()]) == 3
        if end in ("done", "failed"):
            actor.exit(3 * (end == "failed"))
        elif end == "killed":
            actor.do("kill -9 $$")
        elif end == "cancelled":
            desk.cancel(job_id, "a")
        else:
            desk.close()
        until(lambda: _status(desk, job_id).ended)
    assert {path.name for path in folder.rglob("*")} == {"job.json", "events.jsonl"}


# --- Cancelling -----------------------------------------------------------------------------------------------


def test_a_job_that_is_cancelled_before_it_has_a_plan_discards_nothing(
    hub: InHouse, desk: Desk, stage: Stage, small: str
) -> None:
    """What is staged there is another's."""
    job_id, destination = submit(desk, small, "a")
    actor = stage(destination)
    state(desk, job_id, "running", "a")
    actor.progress()
    until(lambda: _status(desk, job_id).progress)
    desk.cancel(job_id, "a")
    status = state(desk, job_id, "cancelled", "a")
    assert (actor.discarded, status.remark, status.error) == (0, "", None)
    assert not [line for line in status.log if "discarded" in line]


def test_a_job_that_is_cancelled_discards_once_and_says_what_is_left_to_do(
    hub: InHouse, desk: Desk, stage: Stage, small: str, told: dict[str, dict[str, object]]
) -> None:
    hub.api().create_repo("alice/of-empty")
    page = f"{hub.address}/alice/of-empty/settings"
    failed = "What it staged in alice/of-{} could not be removed"
    answers: dict[str, tuple[dict[str, object] | None, int, str]] = {
        "all": ({"repo_deleted": True, "remark": ""}, 0, ""),
        "told": ({"repo_deleted": False, "remark": "Look at it."}, 0, "Look at it."),
        "empty": ({"repo_deleted": False, "remark": ""}, 0, page),
        "error": ({"error": {"kind": "E", "message": "The Hub is away.", "hint": ""}}, 3, "The Hub is away."),
        "nothing": (None, 1, failed.format("nothing")),
        "strange": ({"a": 1}, 0, failed.format("strange")),
    }
    for who, (said, status, remark) in answers.items():
        job_id, destination = submit(desk, small, who)
        actor = stage(destination)
        actor.will_discard(said, status)
        state(desk, job_id, "running", who)
        actor.say(told["planned"])
        until(lambda job_id=job_id, who=who: _status(desk, job_id, who).planned)
        desk.cancel(job_id, who)
        ended = state(desk, job_id, "cancelled", who)
        assert (actor.discarded, ended.error) == (1, None), who
        assert ended.remark == remark if who in ("all", "told") else remark in ended.remark, (who, ended.remark)
        assert failed.format(who) in ended.remark if status else True
    assert desk.queue_length == 0


def test_a_check_that_is_cancelled_discards_nothing(
    hub: InHouse, desk: Desk, stage: Stage, told: dict[str, dict[str, object]]
) -> None:
    job_id = desk.submit_check("alice/told", *AS_ALICE)
    request = state(desk, job_id, "running").request
    actor = stage(request.destination)
    actor.say(told["planned"])
    until(lambda: _status(desk, job_id, "alice").planned)
    desk.cancel(job_id, "alice")
    status = state(desk, job_id, "cancelled")
    assert (actor.discarded, status.remark) == (0, "")
    (record,) = desk.jobs_of("alice")
    assert record.result == "" and STAGING_BRANCH not in branches(hub, "alice/told")


def test_what_a_job_may_say_in_all_is_bounded(
    desk: Desk, stage: Stage, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.desk.runner.EVENTS_BYTES", 2000)
    for who, count, says in (("a", 10, "ended with status 0"), ("b", 40, "more than any job has to say")):
        job_id, destination = submit(desk, small, who)
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
        job_id, destination = submit(desk, small, who)
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
