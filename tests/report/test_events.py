"""What a job says in lines of JSON is what its reader hears."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from sharding import job
from sharding.core.events import Planned, Verified
from sharding.loading.costs import Compared, Comparison, LoadCost, Probed
from sharding.report.comparison import summarize_comparison
from sharding.report.report import JobEvent, PlanMade, event_json, parse_event, summarize_plan, summarize_source
from tests.conftest import random_tensors, write_checkpoint
from tests.report.test_schema import COMPARISONS, LOADS


def heard(event: job.Event) -> JobEvent:
    return parse_event(json.loads(json.dumps(event_json(event))))


def test_every_event_of_a_job_is_heard_as_it_was_said(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "in", {"model.safetensors": random_tensors()}, False)
    events = list(job.shard(str(source), str(tmp_path / "out"), "60kB"))
    for event in events:
        match event:
            case Planned():
                plan = PlanMade(summarize_source(event.checkpoint), summarize_plan(event.plan))
                assert heard(event) == plan
            case Verified():
                assert heard(event) == event.verification
            case _:
                assert heard(event) == event
    names = {event_json(event)["event"] for event in events}
    assert names == {"planned", "progress", "shard-finished", "verified", "published", "report"}


@settings(max_examples=25)
@given(LOADS, COMPARISONS)
def test_a_comparison_is_heard_as_it_was_said_but_for_most_curves(cost: LoadCost, comparison: Comparison) -> None:
    assert heard(Probed("sharded", 1, 2, cost)) == Probed("sharded", 1, 2, replace(cost, curve=()))
    assert heard(Compared(comparison)) == summarize_comparison(comparison)


@pytest.mark.parametrize("line", [{}, {"event": "unknown"}, {"event": []}, {"event": "published"}, {"error": "no"}])
def test_what_no_job_says_is_refused(line: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="no event of a job"):
        parse_event(line)
