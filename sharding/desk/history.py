"""Gather a job's events into what its owner sees of it."""

from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from sharding.core.limits import LOG_LINES, MAX_FILES
from sharding.core.text import format_bytes
from sharding.desk.jobs import JobRecord, JobView
from sharding.report.report import Json

_Count = Annotated[int, Field(ge=0)]


class _Model(BaseModel):
    """What the page reads of an event is there; what else it holds passes unseen."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _Shard(_Model):
    file: str
    bytes: _Count
    tensors: list[str]


class _Plan(_Model):
    shards: list[_Shard]
    total_bytes: _Count
    total_parameters: _Count


class _Planned(_Model):
    event: Literal["planned"]
    source: Json
    plan: _Plan


class _Progress(_Model):
    event: Literal["progress"]
    stage: str
    bytes_done: _Count
    bytes_total: _Count
    file: str
    bytes_per_second: float
    seconds_left: float | None
    anon_bytes: _Count
    bytes_uploaded: _Count
    bytes_deduplicated: _Count


class _ShardFinished(_Model):
    event: Literal["shard-finished"]
    file: str
    bytes: _Count
    number: _Count
    shards: _Count
    kept: bool


class _Mismatch(_Model):
    tensor: str
    problem: str


class _Verified(_Model):
    event: Literal["verified"]
    identical: bool
    tensors: _Count
    method: str
    seconds: float
    mismatches: list[_Mismatch]
    dtype: str


class _Ref(_Model):
    repo_id: str
    revision: str


class _Spent(_Model):
    outcome: str
    seconds: dict[str, float]
    peak_anon_bytes: _Count


class _Probed(_Model):
    event: Literal["probed"]
    side: Literal["original", "sharded"]
    round: _Count
    rounds: _Count
    cost: _Spent


class _Verdict(_Model):
    sentence: str


class _Compared(_Model):
    event: Literal["compared"]
    verdict: _Verdict


class _Published(_Model):
    event: Literal["published"]
    ref: _Ref
    place: str
    remark: str


class _Resources(_Model):
    seconds: float
    peak_anon_bytes: _Count
    disk_bytes_written: _Count


class _Report(_Model):
    event: Literal["report"]
    plan: _Plan
    resources: _Resources


class _Error(_Model):
    kind: str
    message: str
    hint: str


class _Failed(_Model):
    error: _Error


_EVENT: TypeAdapter[Any] = TypeAdapter(
    Annotated[
        _Planned | _Progress | _ShardFinished | _Verified | _Probed | _Compared | _Published | _Report,
        Field(discriminator="event"),
    ]
)


class History:
    """What a job has said so far; the names are those of `jobs.JobView`."""

    def __init__(self, events: Iterable[tuple[float, Json]] = ()) -> None:
        """Begin with `events`: each with the time it came, in seconds since 1970."""
        self.planned: Json | None = None
        self.progress: Json | None = None
        self.shards: list[Json] = []
        self.verification: Json | None = None
        self.loads: tuple[int, int] | None = None
        self.report: Json | None = None
        self.published: Json | None = None
        self.error: tuple[str, str] | None = None
        self.log: deque[str] = deque(maxlen=LOG_LINES)
        for seconds, event in events:
            self.take(event, seconds)

    def take(self, event: Json, seconds: float) -> None:
        """Add an event that came at the time `seconds`. Raises ValueError where it is none that jobs have."""
        try:
            if "error" in event:
                error = _Failed.model_validate(event).error
                self.error = (error.message, error.hint)
                return self.say(error.message, seconds)
            _EVENT.validate_python(event)
        except ValidationError as error:
            raise ValueError(f"no event of a job: {error.errors()[0]['msg']}") from error
        line = self._add(event)
        if line:
            self.say(line, seconds)

    def say(self, line: str, seconds: float) -> None:
        """Add a line to the log."""
        self.log.append(f"{datetime.fromtimestamp(seconds, UTC):%H:%M:%S} {line}")

    def close(self, record: JobRecord) -> None:
        """Add what the log should say of the end that `record` tells, where the job did not say it itself."""
        lines = [record.error[0]] if record.error and record.error != self.error else []
        if record.state == "cancelled":
            lines += ["What it had staged is discarded."] * bool(self.planned) + [record.remark] * bool(record.remark)
        for line in lines:
            self.say(line, record.ended or record.created)

    def _add(self, event: Json) -> str:
        """Keep an event; return what the log says of it."""
        match event["event"]:
            case "planned":
                event["plan"].pop("weight_map", None)
                self.planned = event
                count, size = len(event["plan"]["shards"]), format_bytes(event["plan"]["total_bytes"])
                return f"Planned: {size} in {count} shards."
            case "progress":
                begins = self.progress is None or self.progress["stage"] != event["stage"]
                self.progress = event
                return _STAGES.get(event["stage"], "") if begins else ""
            case "shard-finished":
                if len(self.shards) >= MAX_FILES:
                    raise ValueError("more shards than a repo may have")
                self.shards.append(event)
                how = "kept from an earlier run" if event["kept"] else "finished"
                size = format_bytes(event["bytes"])
                return f"Shard {event['number']} of {event['shards']} {how}: {event['file']}, {size}."
            case "verified":
                self.verification = event
                if event["identical"]:
                    cast = "" if event["dtype"] == "keep" else f", cast to {event['dtype']}"
                    return f"Verified: all {event['tensors']:,} tensors are bit-identical to the source's{cast}."
                return f"Verification found {len(event['mismatches']):,} differences; nothing is published."
            case "probed":
                # The first round is a warm-up of both.
                self.loads = ((self.loads or (0, 0))[0] + 1, 2 * (event["rounds"] + 1))
                name = "the original" if event["side"] == "original" else "the copy"
                size = format_bytes(event["cost"]["peak_anon_bytes"])
                return f"Loaded {name}, {event['cost']['outcome']}: at most {size} of anonymous memory."
            case "compared":
                return f"Compared: {event['verdict']['sentence']}"
            case "published":
                ref = event["ref"]
                self.published = {
                    "repo_id": ref["repo_id"],
                    "revision": ref["revision"],
                    "place": event["place"],
                    "remark": event["remark"],
                }
                return f"Published: {event['place']} {event['remark']}".rstrip()
            case _:
                event["plan"].pop("weight_map", None)
                self.report = event
                return f"Done in {event['resources']['seconds']:.1f} s."


def view(record: JobRecord, history: History, position: int = 0, seconds_until_start: float | None = None) -> JobView:
    """Return what the owner of a job sees of it."""
    return JobView(
        id=record.id,
        state=record.state,
        request=record.request,
        owner=record.owner,
        position=position,
        seconds_until_start=seconds_until_start,
        planned=history.planned,
        progress=history.progress,
        shards=tuple(history.shards),
        log=tuple(history.log),
        verification=history.verification,
        loads=history.loads,
        report=history.report,
        published=history.published,
        error=record.error,
        remark=record.remark,
    )


_STAGES = {
    "check": "Checking what an earlier run has finished.",
    "transfer": "Moving the bytes.",
    "verify": "Reading the result again to verify it.",
}
