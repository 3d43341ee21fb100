"""What ends a job: nothing of it runs on, nothing is left, and what is said of it is true."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psutil
import pytest

from sharding.core.options import Options
from sharding.desk.desk import Desk
from sharding.desk.jobs import Settings
from sharding.report.schema import to_json
from sharding.storage.hub.staging import STAGING_BRANCH
from tests.desk.actors import PROBED, Stage, Told, is_gone, until
from tests.desk.conftest import AS_ALICE, begin, hand_in, player, process_of, seen, state
from tests.hubs import branches
from tests.inhouse import InHouse


def children() -> set[int]:
    """The processes that this one has started and that have not ended."""
    return {child.pid for child in psutil.Process().children() if not is_gone(child.pid)}


def test_a_desk_is_closed_when_all_its_jobs_have_ended_and_it_starts_no_other(
    settings: Settings, stage: Stage, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one of them does not want to end."""
    monkeypatch.setattr("sharding.desk.runner.STOP_SECONDS", 1.3)
    with Desk(replace(settings, jobs_at_once=2)) as desk:
        ids, processes = {}, []
        for who in ("a", "b"):
            ids[who], actor = begin(desk, stage, small, who)
            if who == "b":
                actor.do("trap '' TERM")
            actor.shard(1)
            until(lambda who=who: seen(desk, ids[who], who).shards)
            processes.append(process_of(settings, ids[who]))
        ids["c"], _ = hand_in(desk, small, "c")
    assert [is_gone(process) for process in processes] == [True, True]
    assert not stage("of-c").has_begun
    with Desk(settings) as later:
        for who, job_id in ids.items():
            status = seen(later, job_id, who)
            assert (status.state, len(status.shards)) == ("interrupted", int(who != "c"))
            assert status.error and status.error[1]
            (record,) = later.jobs_of(who)
            assert record.state == "interrupted" and record.process is None


def test_a_job_that_has_published_is_done_however_it_is_stopped(
    hub: InHouse, desk: Desk, stage: Stage, small: str, told: Told
) -> None:
    """What is cancelled too late is there, is named, and nothing of it is discarded."""
    commit = hub.api().model_info("alice/told").sha
    for who, stop in (("a", "cancel"), ("b", "exit"), ("c", "kill")):
        job_id, actor = begin(desk, stage, small, who)
        actor.do("trap '' TERM")
        for kind in ("planned", "verified"):
            actor.say(told[kind])
        until(lambda job_id=job_id, who=who: seen(desk, job_id, who).verification)
        if stop == "cancel":
            desk.cancel(job_id, who)
            state(desk, job_id, "cancelling", who)
        actor.say(told["published"])
        actor.do("kill -9 $$" if stop == "kill" else "exit 3")
        status = state(desk, job_id, "done", who)
        assert status.published and status.error is None and actor.discarded == 0
        (record,) = desk.jobs_of(who)
        assert record.result == f"alice/told@{commit}"


def test_what_helps_is_told_and_kept_of_the_error_that_ended_the_job(
    settings: Settings, stage: Stage, small: str
) -> None:
    said = {"kind": "OverflowRefused", "message": "It is too large.", "hint": "Do that."}
    remedy = {"kind": "allow_overflow", "value": ""}
    with Desk(settings) as desk:
        job_id, actor = begin(desk, stage, small)
        actor.say({"error": {**said, "remedy": remedy}})
        actor.exit(3)
        state(desk, job_id, "failed", "a")
        other, actor = begin(desk, stage, small, "b")
        actor.say({"error": {**said, "remedy": remedy}})
        actor.say({"event": "nonsense"})
        assert state(desk, other, "failed", "b").remedy is None
    with Desk(settings) as later:
        document = to_json(seen(later, job_id, "a"))
        assert (document["error"], document["remedy"]) == (["It is too large.", "Do that."], remedy)


@pytest.mark.parametrize("end", ["done", "killed", "cancelled", "interrupted"])
def test_what_a_process_left_in_its_folder_is_gone_with_the_end_of_its_job(
    settings: Settings, stage: Stage, small: str, told: Told, end: str
) -> None:
    with Desk(settings) as desk:
        job_id, actor = begin(desk, stage, small)
        actor.do('mkdir -p "$HOME/more" && echo much > "$HOME/more/left" && echo much > "$TMPDIR/left" && echo > left')
        actor.say(told["published" if end == "done" else "planned"])
        folder = settings.folder / job_id.split("/")[0]
        until(lambda: (folder / "events.jsonl").exists())
        assert len([path for path in folder.rglob("left") if path.is_file()]) == 3
        ends: dict[str, Callable[[], None]] = {
            **{"done": actor.exit, "killed": lambda: actor.do("kill -9 $$")},
            **{"cancelled": lambda: desk.cancel(job_id, "a"), "interrupted": desk.close},
        }
        ends[end]()
        until(lambda: seen(desk, job_id).ended)
    assert {path.name for path in folder.rglob("*")} == {"job.json", "events.jsonl"}


def full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_full_disk_ends_a_job_and_its_process_and_the_next_has_its_turn(
    desk: Desk, settings: Settings, stage: Stage, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, actor = begin(desk, stage, small)
    after, destination = hand_in(desk, small, "b")
    following = stage(destination)
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
    running, actor = begin(desk, stage, small)
    ids = {"a": running, **{who: hand_in(desk, small, who)[0] for who in "bc"}}
    for who in "bc":
        stage(f"of-{who}")
    with monkeypatch.context() as context:
        for method in ("note", "save"):
            context.setattr(f"sharding.desk.job_store.Shelf.{method}", full)
        actor.shard(1)
        for who in ids:
            status = state(desk, ids[who], "interrupted", who)
            assert status.error and status.error[1]
        assert children() == before
    again, destination = hand_in(desk, small, "a", destination="alice/of-a-again")
    stage(destination).exit()
    state(desk, again, "failed", "a")


def test_a_forecast_counts_whole_jobs_only(
    desk: Desk, settings: Settings, stage: Stage, small: str, told: Told
) -> None:
    """Of one that went on where another had stopped nobody knows how long it would have taken in all."""
    ends = {
        "whole": ([False, False], 0),
        "partly": ([True, False], 0),
        "kept": ([True, True], 0),
        "failed": ([False], 3),
    }
    for who, (shards, status) in ends.items():
        job_id, destination = hand_in(desk, small, who)
        actor = stage(destination)
        for number, is_kept in enumerate(shards, 1):
            actor.shard(number, kept=is_kept)
        if not status:
            actor.say(told["published"])
            actor.say(told["report"])
        actor.exit(status)
        state(desk, job_id, "failed" if status else "done", who)
    costs = {who: desk.jobs_of(who)[0] for who in ends}
    said = told["report"]["resources"]
    assert {who for who, record in costs.items() if record.seconds is not None} == {"whole"}
    whole = costs["whole"]
    assert (whole.seconds, whole.peak_anon_bytes) == (whole.whole_seconds, said["peak_anon_bytes"])
    planned = desk.models.plan(small, Options("60kB"))
    until(lambda: "from 1 job done" in desk.forecast(*planned).basis)
    desk.close()
    with Desk(settings) as later:
        assert "from 1 job done" in later.forecast(*planned).basis


def test_the_time_of_a_job_counts_all_of_it_and_a_forecast_all_but_the_comparison(
    settings: Settings, stage: Stage, small: str, told: Told
) -> None:
    now = [1000.0]
    with Desk(settings, clock=lambda: now[0]) as desk:
        job_id, actor = begin(desk, stage, small)

        def after(seconds: float, event: dict[str, Any]) -> None:
            now[0] += seconds
            lines = len(seen(desk, job_id).log)
            actor.say(event)
            until(lambda: len(seen(desk, job_id).log) > lines)

        after(3, told["verified"])
        after(40, PROBED)
        after(60, PROBED)
        after(7, told["published"])
        actor.say(told["report"])
        actor.exit()
        status = state(desk, job_id, "done", "a")
        record = desk.jobs_of("a")[0]
        assert status.whole_seconds == record.whole_seconds == 110
        assert record.seconds == 10


def test_a_job_that_is_cancelled_before_it_has_a_plan_discards_nothing(desk: Desk, stage: Stage, small: str) -> None:
    """What is staged there is another's."""
    job_id, actor = begin(desk, stage, small)
    actor.progress()
    until(lambda: seen(desk, job_id).progress)
    desk.cancel(job_id, "a")
    status = state(desk, job_id, "cancelled", "a")
    assert (actor.discarded, status.remark, status.error) == (0, "", None)
    assert not [line for line in status.log if "discarded" in line]


def test_a_job_that_is_cancelled_discards_once_and_says_what_is_left_to_do(
    hub: InHouse, desk: Desk, stage: Stage, small: str, told: Told
) -> None:
    hub.api().create_repo("alice/of-empty")
    page = f"{hub.address}/alice/of-empty/settings"
    failed = "Its staged files in alice/of-{} could not be removed"
    answers: dict[str, tuple[dict[str, object] | None, int, str]] = {
        "all": ({"repo_deleted": True, "remark": ""}, 0, ""),
        "empty": ({"repo_deleted": False, "remark": ""}, 0, page),
        "error": ({"error": {"kind": "E", "message": "The Hub is away.", "hint": ""}}, 3, "The Hub is away."),
        "nothing": (None, 1, failed.format("nothing")),
        "strange": ({"a": 1}, 0, failed.format("strange")),
    }
    for who, (said, status, remark) in answers.items():
        job_id, actor = begin(desk, stage, small, who)
        actor.will_discard(said, status)
        actor.say(told["planned"])
        until(lambda job_id=job_id, who=who: seen(desk, job_id, who).planned)
        desk.cancel(job_id, who)
        ended = state(desk, job_id, "cancelled", who)
        assert (actor.discarded, ended.error) == (1, None), who
        assert ended.remark == remark if who == "all" else remark in ended.remark, (who, ended.remark)
        assert failed.format(who) in ended.remark if status else True
    assert desk.queue_length == 0


def test_a_check_that_is_cancelled_discards_nothing(hub: InHouse, desk: Desk, stage: Stage, told: Told) -> None:
    job_id = desk.submit_about("verify", "alice/told", *AS_ALICE)
    actor = player(desk, stage, job_id)
    actor.say(told["planned"])
    until(lambda: seen(desk, job_id, "alice").planned)
    desk.cancel(job_id, "alice")
    status = state(desk, job_id, "cancelled")
    assert (actor.discarded, status.remark) == (0, "")
    (record,) = desk.jobs_of("alice")
    assert record.result == "" and STAGING_BRANCH not in branches(hub, "alice/told")
