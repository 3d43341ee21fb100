"""Define the values of a job, and turn its events into the status that its owner sees."""

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from sharding.core.environment import desk_folder, hub_endpoint, jobs_at_once, max_job_bytes, space_owner
from sharding.core.errors import Remedy
from sharding.core.events import PHASES, Progress, Published, ShardFinished
from sharding.core.limits import MAX_FILES
from sharding.core.options import Request
from sharding.core.text import duration, format_bytes, without_revision
from sharding.core.verification import Outcome, Verification
from sharding.loading.costs import Probed
from sharding.report.comparison import ComparisonSummary
from sharding.report.report import JobEvent, PlanMade, Problem, parse_event
from sharding.report.schema import Json, Proof, Report

KEEP_SECONDS = 24 * 3600  # Time that the output of a job is kept, so that its link works the next day.
State = Literal["queued", "running", "cancelling", "done", "failed", "cancelled", "interrupted"]

_JOB_ID = re.compile(r"[\w-]{22}/([\w.-]+/[\w.-]+)", re.ASCII)

ACTIVE: tuple[State, ...] = ("queued", "running", "cancelling")  # States of a job that has not ended.


@dataclass(frozen=True, slots=True)
class Settings:
    """The folder, Hub and limits of a desk. `max_job_bytes` does not apply to `host`, the owner of the machine."""

    folder: Path
    endpoint: str
    jobs_at_once: int = 1
    max_job_bytes: int | None = None
    keep_seconds: float = KEEP_SECONDS
    host: str | None = None

    @classmethod
    def from_environment(cls) -> "Settings":
        """Return the settings of the environment. Raises UsageError if one makes no sense."""
        return cls(desk_folder(), hub_endpoint(), jobs_at_once(), max_job_bytes(), host=space_owner())


@dataclass(frozen=True, slots=True)
class JobRequest(Request):
    """What a visitor asks for, with repos of the Hub only: to copy, to read both, or to load both in turn. `of_result`
    says that the second is a result, whose report names the first."""

    kind: Literal["shard", "verify", "compare"] = "shard"
    of_result: bool = False
    goal: str = ""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What is kept of a job in its folder, so that it outlives this process. Times are seconds since 1970. `process` is
    the id and the start time of its process, which together are unique. `result` is the commit that the job published,
    or compared with its source; if the state is "failed", the two differ. No time counts a comparison of loads."""

    id: str
    owner: str
    request: JobRequest
    bytes: int
    created: float
    state: State = "queued"
    started: float | None = None
    ended: float | None = None
    process: tuple[int, float] | None = None
    error: tuple[str, str] | None = None
    remedy: Remedy | None = None
    remark: str = ""
    result: str = ""
    expected_seconds: float | None = None
    seconds: float | None = None
    peak_anon_bytes: int | None = None
    disk_bytes_written: int | None = None
    unreached: tuple[str, ...] = ()
    outcome: Outcome | None = None

    @property
    def can_resume(self) -> bool:
        """Whether the same job can be started again: it was interrupted or failed, and has found no difference."""
        return self.state in ("interrupted", "failed") and not self.result

    @property
    def is_undecided(self) -> bool:
        """Whether it found nothing wrong, but bits that nobody can judge."""
        return self.outcome is not None and self.outcome.kind == "undecided"

    @property
    def factor(self) -> float | None:
        """How many times as long as expected the job took. None unless it was done whole."""
        if self.state == "done" and self.seconds and self.expected_seconds:
            return self.seconds / self.expected_seconds
        return None

    @property
    def whole_seconds(self) -> float | None:
        """The time from the start of the job to its end, with any comparison. None until it has ended."""
        return None if self.started is None or self.ended is None else self.ended - self.started


@dataclass(frozen=True, slots=True)
class JobStatus(JobRecord):
    """A snapshot of a job for its owner. `position` counts the jobs before it, running ones included. `written` and
    `reread` are bytes by file. `times` says when a phase began first, or the job was "planned", "written", "verified",
    "fetched", "compared" or "published"; "loading" and "loaded" are the first and last of `loads` (done, and all)."""

    position: int = 0
    seconds_until_start: float | None = None
    planned: PlanMade | None = None
    progress: Progress | None = None
    shards: Sequence[ShardFinished] = ()
    written: Mapping[str, int] = field(default_factory=dict)
    reread: Mapping[str, int] = field(default_factory=dict)
    times: Mapping[str, float] = field(default_factory=dict)
    log: tuple[str, ...] = ()
    verification: Proof | None = None
    loads: tuple[int, int] | None = None
    costs: ComparisonSummary | None = None
    report: Report | None = None
    published: Published | None = None


def newest_of(records: Iterable[JobRecord]) -> list[JobRecord]:
    """Return the newest job of each copy, whatever its source, and of each comparison. `records` are newest first."""
    newest: dict[tuple[str, ...], JobRecord] = {}
    for record in records:
        copy, source = (without_revision(name) for name in (record.request.destination, record.request.source))
        kind = record.request.kind
        newest.setdefault((copy,) if kind == "shard" else (kind, copy, source), record)
    return [*newest.values()]


def new_job_id(destination: str) -> str:
    """Return an id that nobody can guess. It names the destination, where an unfinished job is found again."""
    return f"{secrets.token_urlsafe(16)}/{destination}"


def destination_of(job_id: str) -> str | None:
    """Return the repo id in a job id, or None if `job_id` is not a job id.

    >>> destination_of("k3J9a0bcdefghijklmnopq/alice/model"), destination_of("nonsense")
    ('alice/model', None)
    """
    match = _JOB_ID.fullmatch(job_id)
    return match[1] if match else None


LOG_LINES = 500  # Most lines of a job's log. The oldest are dropped first.


class History:
    """What the events of a job have reported so far. The attributes are those of `JobStatus`."""

    def __init__(self, events: Iterable[tuple[float, Json]] = ()) -> None:
        """Start with `events`, each with the time at which it arrived, in seconds since 1970."""
        self.planned: PlanMade | None = None
        self.progress: Progress | None = None
        self.shards: list[ShardFinished] = []
        self.written: dict[str, int] = {}
        self.reread: dict[str, int] = {}
        self.times: dict[str, float] = {}
        self._sizes: dict[str, int] = {}
        self.verification: Verification | None = None
        self.loads: tuple[int, int] | None = None
        self.costs: ComparisonSummary | None = None
        self.report: Report | None = None
        self.published: Published | None = None
        self.error: tuple[str, str] | None = None
        self.remedy: Remedy | None = None
        self.comparing_seconds = 0.0
        self.log: tuple[str, ...] = ()
        for seconds, event in events:
            self.take(event, seconds)

    def take(self, event: Json, seconds: float) -> None:
        """Add an event that arrived at the time `seconds`. Raises ValueError if it is not an event of a job."""
        added = parse_event(event)
        if line := self._add(added):
            self.say(line, seconds)
        self._time(added, seconds)
        if isinstance(added, Probed | ComparisonSummary):
            self.comparing_seconds = seconds - self.times.get("verified", 0.0)

    def say(self, line: str, seconds: float) -> None:
        """Add a line to the log."""
        self.log = (*self.log, f"{datetime.fromtimestamp(seconds, UTC):%H:%M:%S} {line}")[-LOG_LINES:]

    def close(self, record: JobRecord) -> None:
        """Add to the log how the job ended, from its `record`, unless the job has logged it already."""
        lines = [record.error[0]] if record.error and record.error != self.error else []
        if record.state == "cancelled":
            lines += ["Its unfinished files were deleted."] * bool(self.planned) + [record.remark] * bool(record.remark)
        for line in lines:
            self.say(line, record.ended or record.created)

    def _add(self, event: JobEvent) -> str:
        """Keep an event. Return its line for the log, or "" for none."""
        match event:
            case PlanMade():
                self.planned = event
                self._sizes = {shard.file: shard.bytes for shard in event.plan.shards}
                return f"Planned: {format_bytes(event.plan.total_bytes)} in {len(event.plan.shards)} shards."
            case Progress():
                begins = self.progress is None or self.progress.phase != event.phase
                self.progress = event
                self._sum(event, begins)
                return f"{PHASES[event.phase].capitalize()}." if begins else ""
            case ShardFinished():
                if len(self.shards) >= MAX_FILES:
                    raise ValueError("more shards than a repo may have")
                self.shards.append(event)
                if event.file in self._sizes:
                    self.written[event.file] = self._sizes[event.file]
                how = "kept from an earlier run" if event.kept else "finished"
                return f"Shard {event.number} of {event.shards} {how}: {event.file}, {format_bytes(event.bytes)}."
            case Verification():
                self.verification = event
                kind = event.outcome.kind
                if event.holds and kind != "stated":
                    self.reread = dict(self._sizes)
                is_kept_back = kind == "different" and self.planned  # a comparison has no plan
                return event.sentence + " The copy is not published." * bool(is_kept_back)
            case Probed():
                self.loads = ((self.loads or (0, 0))[0] + 1, event.loads)
                name = "the original" if event.side == "original" else "the copy"
                size = format_bytes(event.cost.peak_anon_bytes)
                return f"Loaded {name}, {event.cost.outcome}: at most {size} of memory."
            case ComparisonSummary():
                self.costs = event
                return f"Compared: {event.verdict.sentence}"
            case Published():
                self.published = event
                return f"Published: {event.place} {event.remark}".rstrip()
            case Report():
                self.report = event
                return f"Done. Copying and verifying took {duration(event.resources.seconds)}."
            case Problem():
                self.error, self.remedy = (event.message, event.hint), event.remedy
                return event.message

    def _sum(self, event: Progress, begins: bool) -> None:
        """Add the bytes of each file. Some events are missing after a restart of the desk, so sums can be too small."""
        if event.phase not in ("transfer", "verify"):
            return
        if begins and event.phase == "transfer":
            self.written = {shard.file: self._sizes[shard.file] for shard in self.shards if shard.file in self._sizes}
        elif begins:
            self.reread = {}
        sums = self.written if event.phase == "transfer" else self.reread
        for file, size in event.files.items():
            if file in self._sizes:
                sums[file] = min(sums.get(file, 0) + size, self._sizes[file])

    def _time(self, event: JobEvent, seconds: float) -> None:
        if isinstance(event, Probed):
            self.times.setdefault("loading", seconds)
            self.times["loaded"] = seconds
        elif isinstance(event, Progress) and event.phase == "fetch" and event.bytes_done >= event.bytes_total:
            self.times.setdefault("fetched", seconds)
        elif name := event.phase if isinstance(event, Progress) else _NOTED.get(type(event)):
            self.times.setdefault(name, seconds)
        if isinstance(event, ShardFinished) and len(self.shards) >= event.shards:
            self.times.setdefault("written", seconds)


def status_of(
    record: JobRecord, history: History, position: int = 0, seconds_until_start: float | None = None
) -> JobStatus:
    """Return the status of a job that its owner sees."""
    known = {one.name: copy(getattr(history, one.name)) for one in fields(JobStatus) if hasattr(history, one.name)}
    known |= {one.name: getattr(record, one.name) for one in fields(record)}
    return JobStatus(**known, position=position, seconds_until_start=seconds_until_start)


_NOTED: dict[type[JobEvent], str] = {
    PlanMade: "planned",
    ShardFinished: "transfer",
    Verification: "verified",
    ComparisonSummary: "compared",
    Published: "published",
}
