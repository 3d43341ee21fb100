"""Turn the events of a job into the status that its owner sees."""

from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime

from sharding.core.errors import Remedy
from sharding.core.events import Progress, Published, ShardFinished
from sharding.core.limits import MAX_FILES
from sharding.core.text import duration, format_bytes, undecided_sentence, within_words
from sharding.core.values import Verification
from sharding.desk.jobs import JobRecord, JobStatus
from sharding.loading.costs import Probed
from sharding.report.comparison import ComparisonSummary
from sharding.report.report import JobEvent, PlanMade, Problem, parse_event
from sharding.report.schema import Json, Report

LOG_LINES = 500
"""Most lines of a job's log. The oldest are dropped first."""


class History:
    """What the events of a job have reported so far. The attributes are those of `jobs.JobStatus`.

    `comparing_seconds` is the time from the proof to the end of a comparison of loads, 0 if there is none.
    """

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
        self.report: Report | None = None
        self.published: Published | None = None
        self.error: tuple[str, str] | None = None
        self.remedy: Remedy | None = None
        self.comparing_seconds = 0.0
        self.log: deque[str] = deque(maxlen=LOG_LINES)
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
        self.log.append(f"{datetime.fromtimestamp(seconds, UTC):%H:%M:%S} {line}")

    def close(self, record: JobRecord) -> None:
        """Add to the log how the job ended, from its `record`, unless the job has logged it already."""
        lines = [record.error[0]] if record.error and record.error != self.error else []
        if record.state == "cancelled":
            lines += ["Its staged files were discarded."] * bool(self.planned) + [record.remark] * bool(record.remark)
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
                return _PHASES[event.phase] if begins else ""
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
                if event.holds:
                    self.reread = dict(self._sizes)
                    if event.within:
                        return f"Verified: {within_words(event.tensors, event.within)}."
                    how = "dequantized" if event.dequantized else "cast"
                    cast = "" if event.dtype == "keep" else f", {how} to {event.dtype}"
                    same = (
                        "match what was read from the source" if event.unstated else "are bit-identical to the source's"
                    )
                    adapter = f", with {event.merged.path} merged" if event.merged else ""
                    return f"Verified: all {event.tensors:,} tensors {same}{adapter}{cast}."
                if event.is_undecided:
                    return undecided_sentence(event.undecided)
                return f"Verification found {len(event.mismatches):,} differences, so the copy is not published."
            case Probed():
                # The first round only warms up both.
                self.loads = ((self.loads or (0, 0))[0] + 1, 2 * (event.rounds + 1))
                name = "the original" if event.side == "original" else "the copy"
                size = format_bytes(event.cost.peak_anon_bytes)
                return f"Loaded {name}, {event.cost.outcome}: at most {size} of anonymous memory."
            case ComparisonSummary():
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
        """Note when something happened first, and the last load."""
        if isinstance(event, Probed):
            self.times["loaded"] = seconds
        elif name := event.phase if isinstance(event, Progress) else _NOTED.get(type(event)):
            self.times.setdefault(name, seconds)
        if isinstance(event, ShardFinished) and len(self.shards) >= event.shards:
            self.times.setdefault("written", seconds)


def status_of(
    record: JobRecord, history: History, position: int = 0, seconds_until_start: float | None = None
) -> JobStatus:
    """Return the status of a job that its owner sees."""
    return JobStatus(
        id=record.id,
        state=record.state,
        request=record.request,
        owner=record.owner,
        created=record.created,
        started=record.started,
        ended=record.ended,
        position=position,
        seconds_until_start=seconds_until_start,
        planned=history.planned,
        progress=history.progress,
        shards=tuple(history.shards),
        written=dict(history.written),
        reread=dict(history.reread),
        times=dict(history.times),
        log=tuple(history.log),
        verification=history.verification,
        loads=history.loads,
        report=history.report,
        published=history.published,
        error=record.error,
        remedy=record.remedy,
        remark=record.remark,
        unreached=record.unreached,
    )


_PHASES = {
    "check": "Checking the files that an earlier run finished.",
    "transfer": "Writing the files.",
    "verify": "Reading the copy again to verify it.",
    "numbers": "Comparing the numbers that differ.",
}

_NOTED: dict[type[JobEvent], str] = {
    PlanMade: "planned",
    ShardFinished: "transfer",
    Verification: "verified",
    ComparisonSummary: "compared",
    Published: "published",
}
