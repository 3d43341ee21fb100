"""Define the values of a job, and turn its events into the status that its owner sees."""

import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

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


@dataclass(frozen=True)
class Told:
    """What the events of a job have told so far. `written` and `reread` are bytes by file. `times` says when a phase
    began first, or the job was "planned", "written", "verified", "fetched", "compared" or "published"; "loading" and
    "loaded" are the first and last of `loads` (done, and all)."""

    planned: PlanMade | None = None
    progress: Progress | None = None
    shards: list[ShardFinished] = field(default_factory=list)
    written: dict[str, int] = field(default_factory=dict)
    reread: Mapping[str, int] = field(default_factory=dict)
    times: Mapping[str, float] = field(default_factory=dict)
    log: tuple[str, ...] = ()
    verification: Proof | None = None
    loads: tuple[int, int] | None = None
    costs: ComparisonSummary | None = None
    report: Report | None = None
    published: Published | None = None


@dataclass(frozen=True, slots=True)
class JobStatus(Told, JobRecord):
    """A snapshot of a job for its owner. `position` counts the jobs before it, running ones included."""

    position: int = 0
    seconds_until_start: float | None = None


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


@dataclass(eq=False)
class History:
    """What the events of a job have reported so far: `told`, the `error` that it ended with, if any, and more."""

    told: Told = field(default_factory=Told)
    error: tuple[str, str] | None = None
    remedy: Remedy | None = None
    comparing_seconds: float = 0.0
    _sizes: Mapping[str, int] = field(default_factory=dict)

    def take(self, event: Json, seconds: float) -> None:
        """Add an event that arrived at `seconds` since 1970. Raises ValueError if it is not an event of a job."""
        added = parse_event(event)
        if line := self._add(added):
            self.say(line, seconds)
        self._keep(times=self._times(added, seconds))
        if isinstance(added, Probed | ComparisonSummary):
            self.comparing_seconds = seconds - self.told.times.get("verified", 0.0)

    def say(self, line: str, seconds: float) -> None:
        """Add a line to the log."""
        self._keep(log=(*self.told.log, f"{datetime.fromtimestamp(seconds, UTC):%H:%M:%S} {line}")[-LOG_LINES:])

    def close(self, record: JobRecord) -> None:
        """Add to the log how the job ended, from its `record`, unless the job has logged it already."""
        lines = [record.error[0]] if record.error and record.error != self.error else []
        if record.state == "cancelled":
            lines += ["Its unfinished files were deleted."] * bool(self.told.planned)
            lines += [record.remark] * bool(record.remark)
        for line in lines:
            self.say(line, record.ended or record.created)

    def _keep(self, **told: Any) -> None:
        self.told = replace(self.told, **told)

    def _add(self, event: JobEvent) -> str:
        """Keep an event. Return its line for the log, or "" for none."""
        told = self.told
        match event:
            case PlanMade():
                self._keep(planned=event)
                self._sizes = {shard.file: shard.bytes for shard in event.plan.shards}
                return f"Planned: {format_bytes(event.plan.total_bytes)} in {len(event.plan.shards)} shards."
            case Progress():
                begins = told.progress is None or told.progress.phase != event.phase
                self._keep(progress=event, **self._sums(event, begins))
                return f"{PHASES[event.phase].capitalize()}." if begins else ""
            case ShardFinished():
                if len(told.shards) >= MAX_FILES:
                    raise ValueError("more shards than a repo may have")
                told.shards.append(event)  # in place: there may be many
                if event.file in self._sizes:
                    told.written[event.file] = self._sizes[event.file]
                how = "kept from an earlier run" if event.kept else "finished"
                return f"Shard {event.number} of {event.shards} {how}: {event.file}, {format_bytes(event.bytes)}."
            case Verification():
                kind = event.outcome.kind
                is_read = event.holds and kind != "stated"
                self._keep(verification=event, reread=self._sizes if is_read else told.reread)
                is_kept_back = kind == "different" and told.planned  # a comparison has no plan
                return event.sentence + " The copy is not published." * bool(is_kept_back)
            case Probed():
                self._keep(loads=((told.loads or (0, 0))[0] + 1, event.loads))
                name = "the original" if event.side == "original" else "the copy"
                size = format_bytes(event.cost.peak_anon_bytes)
                return f"Loaded {name}, {event.cost.outcome}: at most {size} of memory."
            case ComparisonSummary():
                self._keep(costs=event)
                return f"Compared: {event.verdict.sentence}"
            case Published():
                self._keep(published=event)
                return f"Published: {event.place} {event.remark}".rstrip()
            case Report():
                self._keep(report=event)
                return f"Done. Copying and verifying took {duration(event.resources.seconds)}."
            case Problem():
                self.error, self.remedy = (event.message, event.hint), event.remedy
                return event.message

    def _sums(self, event: Progress, begins: bool) -> dict[str, dict[str, int]]:
        """Return the bytes of each file. Some events are missing after a restart of the desk, so sums can be small."""
        if event.phase not in ("transfer", "verify"):
            return {}
        name, sizes = "written" if event.phase == "transfer" else "reread", self._sizes
        sums: dict[str, int] = {} if begins else dict(getattr(self.told, name))
        if begins and event.phase == "transfer":
            sums = {shard.file: sizes[shard.file] for shard in self.told.shards if shard.file in sizes}
        for file, size in event.files.items():
            if file in sizes:
                sums[file] = min(sums.get(file, 0) + size, sizes[file])
        return {name: sums}

    def _times(self, event: JobEvent, seconds: float) -> dict[str, float]:
        told, times = self.told, dict[str, float]()
        if isinstance(event, Probed):
            return {"loading": seconds, **told.times, "loaded": seconds}
        if isinstance(event, Progress) and event.phase == "fetch" and event.bytes_done >= event.bytes_total:
            times["fetched"] = seconds
        elif name := event.phase if isinstance(event, Progress) else _NOTED.get(type(event)):
            times[name] = seconds
        if isinstance(event, ShardFinished) and len(told.shards) >= event.shards:
            times["written"] = seconds
        return {**times, **told.times}


def status_of(record: JobRecord, told: Told, position: int = 0, seconds_until_start: float | None = None) -> JobStatus:
    """Return the status of a job that its owner sees."""
    kept = {one.name: getattr(record, one.name) for one in fields(record)}
    kept |= vars(told) | {"shards": [*told.shards], "written": {**told.written}}
    return JobStatus(**kept, position=position, seconds_until_start=seconds_until_start)


_NOTED: dict[type[JobEvent], str] = {
    PlanMade: "planned",
    ShardFinished: "transfer",
    Verification: "verified",
    ComparisonSummary: "compared",
    Published: "published",
}
