"""Write the events of a job as lines of JSON, and read them. Pure."""

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from sharding.core.errors import Remedy
from sharding.core.events import Planned, Progress, Published, ShardFinished, Verified
from sharding.core.values import Verification
from sharding.loading.costs import Compared, Probed
from sharding.report.comparison import ComparisonSummary, summarize_comparison
from sharding.report.report import summarize_plan, summarize_source
from sharding.report.schema import Inspection, Json, PlanSummary, Proof, Report, adapter, first_problem, to_json


@dataclass(frozen=True, slots=True)
class PlanMade:
    """The content of a `planned` event."""

    source: Inspection
    plan: PlanSummary


@dataclass(frozen=True, slots=True)
class Problem:
    """An error: its class, its message, and its hint. `remedy` is the hint as a value for programs."""

    kind: str
    message: str
    hint: str
    remedy: Remedy | None = None


JobEvent = (
    PlanMade | Progress | ShardFinished | Verification | Probed | ComparisonSummary | Published | Report | Problem
)
"""What `parse_event` returns."""

_NAMES: dict[type, str] = {
    PlanMade: "planned",
    Progress: "progress",
    ShardFinished: "shard-finished",
    Verification: "verified",
    Probed: "probed",
    ComparisonSummary: "compared",
    Published: "published",
    Report: "report",
}
_KINDS: dict[str, Any] = {name: kind for kind, name in _NAMES.items()} | {"verified": Proof}


def event_json(event: Planned | Progress | ShardFinished | Verified | Probed | Compared | Published | Report) -> Json:
    """Return one line of `--events`: the name of the event under the key `event`, and its fields."""
    payload: Any = event
    match event:
        case Planned():
            payload = PlanMade(summarize_source(event.checkpoint), summarize_plan(event.plan))
        case Verified():
            payload = event.verification
        case Compared():
            payload = summarize_comparison(event.comparison)
    name = _NAMES[type(payload)]
    line = {"event": name, **to_json(payload, _KINDS[name])}
    if isinstance(event, Probed):
        del line["cost"]["curve"]  # the report has a curve for each side
    return line


def parse_event(line: Json) -> JobEvent:
    """Return the event in a line of a job. Raises ValueError if the line is no event of a job."""
    kind, payload = (Problem, line["error"]) if "error" in line else (_KINDS.get(str(line.get("event"))), line)
    if kind is None:
        raise ValueError("no event of a job: its name is unknown")
    try:
        event: JobEvent = adapter(kind).validate_python(payload)
    except ValidationError as error:
        raise ValueError(f"no event of a job: {first_problem(error)}") from error
    return event
