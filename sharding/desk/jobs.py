"""Define the values of a job: the request, the record that is kept, and the status that its owner sees."""

import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sharding.core.environment import desk_folder, hub_endpoint, jobs_at_once, max_job_bytes, space_owner
from sharding.core.errors import Remedy
from sharding.core.events import Progress, Published, ShardFinished
from sharding.core.options import Request, TargetDtype
from sharding.core.text import without_revision
from sharding.core.values import RepoRef
from sharding.report.report import PlanMade
from sharding.report.schema import Proof, Report, SourceSummary

KEEP_SECONDS = 24 * 3600
"""Time that the output of a job is kept, so that its link works the next day."""


State = Literal["queued", "running", "cancelling", "done", "failed", "cancelled", "interrupted"]

_JOB_ID = re.compile(r"[\w-]{22}/([\w.-]+/[\w.-]+)", re.ASCII)

ACTIVE: tuple[State, ...] = ("queued", "running", "cancelling")
"""States of a job that has not ended."""


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
    """What a visitor asks for, with repos of the Hub only.

    A job of the kind "verify" reads every byte of two repos. Its destination is the second, at a commit. `of_result`
    says that the second is a result, whose report names the first.
    """

    kind: Literal["shard", "verify"] = "shard"
    of_result: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """All that decides which numbers a job held a copy to: its inputs, each at its state, and what was done to them.

    `adapter` is the repo and the weight file of an adapter. `dtype` is the option, not what it made.
    """

    original: RepoRef
    base: RepoRef | None
    adapter: tuple[RepoRef, str] | None
    variant: str
    dtype: TargetDtype
    dequantizes: bool


def reading_of(
    source: SourceSummary, dtype: TargetDtype, adapter: tuple[RepoRef, str] | None = None, *, dequantizes: bool = False
) -> Reading:
    """Return how a job reads `source`. A record proves only a report that gives the same."""
    return Reading(source.ref, source.base, adapter, source.variant, dtype, dequantizes)


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What is kept of a job in its folder, so that it outlives this process. Times are seconds since 1970.

    `process` is the id and the start time of its process, which together are unique. `result` is the commit
    ("owner/name@revision") that the job published, or compared with its source. If it is set and the state is "failed",
    the two differ. `expected_seconds` is the time that measured rates let expect when the job was handed in. `seconds`
    is the time of a job that was done whole. Neither counts a comparison of loads. `unreached` is that of the
    `Checkpoint`, or of both checkpoints that were compared. `unstated` and `within` are those of the `Verification`.
    With `is_undecided`, nothing that was compared is wrong, but some bits differ that nobody can judge. `read` is what
    the job reads.
    """

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
    unstated: bool = False
    within: int = 0
    is_undecided: bool = False
    read: Reading | None = None

    @property
    def can_resume(self) -> bool:
        """Whether the same job can be started again: it was interrupted or failed, and has found no difference."""
        return self.state in ("interrupted", "failed") and not self.result

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
class JobStatus:
    """A snapshot of a job for its owner. `created`, `started` and `ended` are seconds since 1970.

    `request` is the owner's, with the source pinned to the commit that was planned.
    `position` counts the jobs before it, running ones included. It is 0 once the job runs or has ended.
    `seconds_until_start` is an estimate from those jobs, None if unknown.
    `planned`, `progress` (the newest), `shards`, `verification`, `report` and `published` come from the job's events.
    `written` and `reread` are the bytes of each file of the copy that are written, and read again. A finished shard
    counts as whole. `times` says when something happened first, in seconds since 1970: a phase began, or the job was
    "planned", "written", "verified", "compared" or "published". "loaded" is the time of the last load.
    `loads` is the number of loads done and their total, if the job compares what loading costs.
    `log` has the events as readable lines with the time (UTC).
    `error` is a sentence and a hint. `remedy` is the hint for programs and front ends. `remark` is what is left to do.
    `unreached` is that of the record.
    """

    id: str
    state: State
    request: JobRequest
    owner: str
    created: float
    started: float | None
    ended: float | None
    position: int
    seconds_until_start: float | None
    planned: PlanMade | None
    progress: Progress | None
    shards: tuple[ShardFinished, ...]
    written: Mapping[str, int]
    reread: Mapping[str, int]
    times: Mapping[str, float]
    log: tuple[str, ...]
    verification: Proof | None
    loads: tuple[int, int] | None
    report: Report | None
    published: Published | None
    error: tuple[str, str] | None
    remedy: Remedy | None
    remark: str
    unreached: tuple[str, ...]

    @property
    def whole_seconds(self) -> float | None:
        """The time from the start of the job to its end, with any comparison. None until it has ended."""
        return None if self.started is None or self.ended is None else self.ended - self.started


def newest_of(records: Iterable[JobRecord]) -> list[JobRecord]:
    """Return the newest job of each copy, and of each pair of repos that was compared. `records` are newest first.

    A copy is the same whatever its source and choices: a later job continues or replaces it.
    """
    newest: dict[tuple[str, ...], JobRecord] = {}
    for record in records:
        copy, source = (without_revision(name) for name in (record.request.destination, record.request.source))
        newest.setdefault((copy, source) if record.request.kind == "verify" else (copy,), record)
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
