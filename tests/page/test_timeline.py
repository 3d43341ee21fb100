"""A job is one timeline and one picture through all its phases, without a browser."""

import re
from dataclasses import replace
from html import unescape
from typing import Any

import pytest

from sharding.core.events import Planned, ShardFinished, Verified
from sharding.core.options import Options
from sharding.core.origin import Place
from sharding.core.values import Content, FileEntry, Shard
from sharding.core.verification import Difference, Evidence, Mismatch, Verification
from sharding.desk.jobs import History, JobRecord, JobRequest, JobStatus, status_of
from sharding.page.job_panels import files_of, has_outcome, job_panel, past_panel, timeline_of
from sharding.planning.cast import cast_change
from sharding.planning.plan import plan_shards
from sharding.report.report import event_json
from tests.report.results import LORA, MERGE
from tests.tensors import stored_tensor

MB = 1_000_000
FILES = 4
TOTAL = FILES * 10 * MB
PROOF = Verification(93, TOTAL, 4.2, Evidence("hub"), ())
CAST = (cast_change("bf16", 93, 93),)
Event = dict[str, Any]


def planned(dtype: Any = "keep") -> Event:
    tensors = [stored_tensor(f"t{number}", "U8", (10 * MB,), "f", 0, 10 * MB) for number in range(FILES)]
    shards = tuple(Shard(f"{number}.safetensors", (tensor,), tensor.bytes) for number, tensor in enumerate(tensors))
    plan = replace(plan_shards(tensors, Options("10MB")), shards=shards)
    plan = replace(plan, made=CAST * (dtype != "keep"))
    source = Content(Place("hub", "a/b", "c" * 40), tuple(tensors), (), (FileEntry("f", TOTAL),), (), ())
    return event_json(Planned(source, plan))


def progress(stage: str, done: int, total: int = TOTAL, rate: float = MB, **files: int) -> Event:
    moved = {f"{name[1:]}.safetensors": size for name, size in files.items()}
    counted = {"bytes_done": done, "bytes_total": total, "bytes_per_second": rate, "files": moved}
    return {"event": "progress", "stage": stage, **counted}


def finished(number: int) -> Event:
    return event_json(ShardFinished(f"{number}.safetensors", 10 * MB + 9, "0" * 64, number + 1, FILES))


def probed(side: str, number: int, loads: int = 4) -> Event:
    cost = {"outcome": "loaded", "message": "", "method": "from_pretrained", "dtype_asked": None, "cache": "warm"}
    cost |= {"memory_limited_by": None, "seconds": {}} | {f"peak_{kind}_bytes": 1 for kind in ("anon", "file", "total")}
    return {"event": "probed", "side": side, "round": number, "rounds": 1, "cost": cost, "loads": loads}


def status(*events: Event, state: str = "running", rounds: int = 0, kind: Any = "shard", **more: Any) -> JobStatus:
    """A job that began at 100 s and had one of `events` each 10 s."""
    history = History()
    for number, event in enumerate(events, 1):
        history.take(event, 100.0 + 10 * number)
    request = replace(JobRequest("a/b", "me/copy", Options("10MB"), compare_rounds=rounds), kind=kind)
    record = JobRecord("x", "me", request, TOTAL, 100.0, state, 100.0, **more)  # type: ignore[arg-type]
    return status_of(record, history.told)


def panel(of: JobStatus) -> str:
    return " ".join(unescape(job_panel(of, "http://hub/a/b", "http://page/?job=x")).replace("<wbr>", "").split())


def states(of: JobStatus) -> list[tuple[str, str, float | None]]:
    return [(step.title, step.state, step.seconds) for step in timeline_of(of).steps]


WRITTEN = [planned(), progress("transfer", TOTAL // 2), *map(finished, range(FILES))]


def test_all_phases_are_in_one_list_each_with_its_time_once_it_is_done() -> None:
    ahead = [("Write the files", "ahead", None), ("Read them again", "ahead", None), ("Publish", "ahead", None)]
    assert states(status()) == [("Plan", "current", None), *ahead]
    assert states(status(planned()))[:2] == [("Plan", "done", 10), ("Write the files", "current", None)]
    reading = states(status(*WRITTEN))
    assert reading[1:] == [("Write the files", "done", 50), ("Read them again", "current", None), ahead[2]]
    published = {
        "event": "published",
        "ref": {"store": "hub", "repo_id": "me/copy", "revision": "c" * 40},
        "place": "x",
    }
    over = status(*WRITTEN, event_json(Verified(PROOF)), published, state="done", ended=181.0)
    assert [step[1:] for step in states(over)] == [("done", 10), ("done", 50), ("done", 10), ("done", 10)]
    assert panel(status(planned())).count('aria-current="step"') == 1


def test_files_of_an_earlier_run_and_loads_are_phases_only_where_they_happen() -> None:
    checked = status(planned(), progress("check", 1), finished(0), rounds=1)
    assert [title for title, *_ in states(checked)] == [
        "Plan", "Check earlier files", "Write the files", "Read them again", "Measure loading", "Publish",
    ]  # fmt: skip
    assert [step[1:] for step in states(checked)[1:3]] == [("done", 20), ("current", None)]


def test_a_copy_that_is_only_sampled_has_a_phase_of_its_own_and_no_file_is_marked_as_read() -> None:
    """Its bar is nearly full once all is written, and what it says at the end is not that all was read."""
    proof = Verification(93, TOTAL, 4.2, Evidence("stated", sampled=TOTAL // 100, xet=True), ())
    events = [planned(), *map(finished, range(FILES)), event_json(Verified(proof))]
    running, verified = (with_proof(status(*some)) for some in (events[:-1], events))
    assert [title for title, *_ in states(running)] == ["Plan", "Write the files", "Compare the hashes", "Publish"]
    assert [state for _, state, _ in states(running)] == ["done", "done", "current", "ahead"]
    assert timeline_of(running).percent == 99 and "Comparing the Hub's hashes" in panel(running)
    assert files_of(verified).checked == "" and "400.0 kB (1.0%) read again" in verified.log[-1]


def with_proof(of: JobStatus) -> JobStatus:
    return replace(of, request=replace(of.request, proof="stated"))


def test_a_check_reads_both_and_compares_numbers_only_where_they_differ() -> None:
    same = status(progress("verify", 1), kind="verify")
    assert [title for title, *_ in states(same)] == ["Read the headers", "Read every byte of both"]
    differs = status(progress("verify", TOTAL), progress("numbers", 1), kind="verify")
    assert states(differs)[1:] == [
        ("Read every byte of both", "done", 10),
        ("Compare the numbers that differ", "current", None),
    ]
    figures = [timeline_of(one).percent for one in (same, status(progress("verify", TOTAL), kind="verify"), differs)]
    assert figures == [0, 90, 90]


def test_loads_alone_are_counted_and_end_with_their_costs_or_with_nothing() -> None:
    titles = ["Fetch the files", "Import the libraries", "Measure loading"]
    fetched = [progress("fetch", done, TOTAL) for done in (TOTAL // 2, TOTAL)]
    begun = [*fetched, *(probed("sharded", number, loads=3) for number in range(2))]
    told = [timeline_of(status(*begun[:number], kind="compare")) for number in range(len(begun) + 1)]
    assert [one.percent for one in told] == [0, 5, 10, 46, 73]
    assert [[step.title for step in one.steps if step.state == "current"] for one in told] == [
        [titles[number]] for number in (0, 0, 1, 2, 2)
    ]
    assert told[1].numbers[0] == ("Fetched", "20.0 MB of 40.0 MB") and told[1].left.endswith(" left, without the loads")
    assert told[2].headline == "Importing the libraries"
    assert (told[-1].left, told[-1].numbers[-1]) == ("about 8 to 14 s left", ("Loads", "2 of 3"))
    assert len({tuple(name for name, _ in one.numbers) for one in told}) == 1, "a row of numbers moves"
    for ended, words in {"done": "Done", "cancelled": "Nothing was measured to the end."}.items():
        said = panel(status(*begun, state=ended, kind="compare", ended=131.0))
        assert words in said and "staged" not in said and "Publish" not in said


@pytest.mark.parametrize(("dtype", "rounds"), [("keep", 0), ("bf16", 1)])
def test_the_bar_counts_all_phases_and_never_falls_back_or_stands_full_before_the_end(dtype: str, rounds: int) -> None:
    again = TOTAL if dtype == "keep" else 2 * TOTAL
    events = [planned(dtype), progress("check", 1), progress("check", TOTAL), progress("transfer", 0)]
    events += [progress("transfer", TOTAL // 2), progress("transfer", TOTAL), *map(finished, range(FILES))]
    events += [progress("verify", 0, again), progress("verify", again, again), event_json(Verified(PROOF))]
    events += [probed(side, number) for number in range(2) for side in ("original", "sharded")] * rounds
    figures = [timeline_of(status(*events[:number], rounds=rounds)).percent for number in range(len(events) + 1)]
    assert figures == sorted(figures) and figures[0] == 0 and figures[-1] == 99
    assert len({*figures}) > 4
    before_loads = timeline_of(status(*events[: events.index(event_json(Verified(PROOF))) + 1], rounds=rounds)).percent
    assert (before_loads == 99) == (rounds == 0)


def test_the_time_left_is_a_range_over_all_bytes_that_still_move_at_the_measured_rate() -> None:
    def left(event: Event, **more: Any) -> str:
        return timeline_of(status(planned(), event, **more)).left

    # 30 MB to write and 40 MB to read again, at 1 MB/s: about 70 s.
    assert left(progress("transfer", 10 * MB)) == "about 50 to 95 s left"
    assert left(progress("verify", 10 * MB)) == "about 22 to 42 s left"
    assert left(progress("transfer", 10 * MB), rounds=1) == "about 50 to 95 s left, without the loads"
    assert left(progress("verify", TOTAL - 1)) == "a few seconds left"
    assert left(progress("transfer", TOTAL - 1, rate=0)) == ""
    busy = progress("transfer", 10 * MB) | {"waiting_seconds": 85}
    assert left(busy) == "the Hub asks to wait about 70 to 120 s"
    # Two of four loads took 20 s.
    loading = [planned(), event_json(Verified(PROOF)), probed("original", 0), probed("sharded", 0)]
    assert timeline_of(status(progress("verify", 1), *loading, rounds=1)).left == "about 16 to 28 s left"
    assert timeline_of(status(planned(), progress("transfer", 1), state="cancelling")).left == ""


def test_the_files_say_what_is_finished_what_fills_and_what_was_read_again() -> None:
    writing = [planned(), finished(0), progress("transfer", 1, f1=4 * MB, f2=10 * MB, f3=99)]
    assert vars_of(status(*writing)) == ("0-0", "1:40,2:99", "")
    reading = [*map(finished, range(1, FILES)), progress("verify", 1, f0=10 * MB, f1=10 * MB, f3=10 * MB - 1)]
    assert vars_of(status(*writing, *reading)) == ("0-3", "", "0-1")
    assert 'data-filling="1:40,2:99"' in panel(status(*writing))
    assert "4 of 4 files finished, 2 read again" in panel(status(*writing, *reading))


def vars_of(of: JobStatus) -> tuple[str, str, str]:
    files = files_of(of)
    return files.finished, files.filling, files.checked


def test_a_job_that_is_done_is_folded_with_its_time_its_phases_and_its_log() -> None:
    over = status(planned(), event_json(Verified(PROOF)), state="done", ended=200.0)
    html = past_panel(over, "http://hub/a/b")
    assert html.startswith("<details") and "(1 min 40 s)" in html and 'class="timeline"' in html
    assert "Identical: all 93 tensors" in html and "progressbar" not in html


@pytest.mark.parametrize("state", ["running", "interrupted", "failed", "done"])
def test_a_job_has_no_outcome_before_it_has_ended(state: Any) -> None:
    wrong = Verification(93, TOTAL, 4.2, Evidence("both"), (Mismatch("w", "its bytes differ"),))
    wrong = replace(wrong, differences=(Difference("w", 0.5),))
    over = replace(status(event_json(Verified(wrong)), kind="verify"), state=state)
    assert has_outcome(over) == (state in ("failed", "done"))


def test_a_job_names_its_adapter_before_and_after_its_plan() -> None:
    queued, merged = status(), event_json(Verified(replace(PROOF, made=(MERGE,))))
    request = replace(queued.request, options=Options("10MB", adapter=LORA.text))
    assert "a/b</a>, with the adapter bob/lora/sub <span" in panel(replace(queued, request=request))
    assert "a/b</a>, with the adapter bob/lora/sub merged compared" in panel(status(merged, kind="verify"))


def test_a_failed_job_says_its_cause_and_nothing_of_a_success() -> None:
    failed = status(*WRITTEN, state="failed", ended=200.0, error=("It broke off.", "Start it again."))
    shown = panel(failed)
    assert "It broke off. Start it again." in shown and "Back to the plan" in shown
    for what in ("timeline", "numbers", "progressbar", "private", "finished</p>", "Memory"):
        assert what not in shown, what
    assert 'data-finished=""' in shown and 'data-checked=""' in shown
    wrong = Verification(93, TOTAL, 4.2, Evidence("hub"), (Mismatch("w", "its bytes differ"),))
    assert "read again" not in panel(status(*WRITTEN, event_json(Verified(wrong)), state="failed", ended=200.0))
    assert re.search("class=.timeline", panel(replace(failed, state="interrupted")))
