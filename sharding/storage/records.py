"""Write down what a job has staged, read it back, and read what a result holds: JSON from anybody. Pure."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from pydantic import TypeAdapter, ValidationError

from sharding.core.errors import UsageError
from sharding.core.text import source_name
from sharding.core.values import ShardRecord, StagedJob

_JOB = TypeAdapter(StagedJob)
_RECORD = TypeAdapter(ShardRecord)


def job_line(job: StagedJob) -> bytes:
    """Return `job` as one line of JSON."""
    return json.dumps(asdict(job)).encode()


def record_line(record: ShardRecord) -> bytes:
    """Return `record` as one line of JSON."""
    return json.dumps(asdict(record)).encode()


def parse_job(text: bytes) -> StagedJob | None:
    """Return what `job_line` wrote; None if it did not: a kill may have cut it short."""
    try:
        return _JOB.validate_json(text)
    except (ValidationError, UsageError):
        return None


def parse_record(text: bytes) -> ShardRecord | None:
    """Return what `record_line` wrote; None if it did not."""
    try:
        return _RECORD.validate_json(text)
    except ValidationError:
        return None


def staged_line(record: ShardRecord, job: StagedJob) -> bytes:
    """Return `record` as one line of JSON that says of which job and plan it is."""
    return json.dumps({"job": job.id, "plan": job.plan_id, "record": asdict(record)}).encode()


def parse_staged(text: bytes, job: StagedJob) -> ShardRecord | None:
    """Return what `staged_line` wrote of this very `job`; None if it did not."""
    try:
        document = json.loads(text)
        is_own = (document["job"], document["plan"]) == (job.id, job.plan_id)
        return _RECORD.validate_python(document["record"]) if is_own else None
    except (ValueError, RecursionError, LookupError, TypeError):
        return None


def whole(records: Mapping[str, ShardRecord], is_there: Callable[[ShardRecord], bool]) -> dict[str, ShardRecord]:
    """Return those of `records` whose shards are there.

    None where one is gone that says what was read: the others may be made of that too.
    """
    present = {file: record for file, record in records.items() if is_there(record)}
    return {} if any(record.reads for file, record in records.items() if file not in present) else present


@dataclass(frozen=True, slots=True)
class Earlier:
    """What a result that stands somewhere says of itself: its files, what it is a copy of, and the plan it follows.

    `source` is as `text.source_name` has it.
    """

    files: tuple[str, ...]
    source: str
    plan_id: str


def parse_earlier(report: bytes) -> Earlier | None:
    """Return what a `sharding_report.json` says, most of all to remove its files; None if it is none of ours."""
    try:
        document = json.loads(report)
        files = tuple(file for file in document["files"] if isinstance(file, str))
        name, plan_id = str(document["source"]["repo_id"]), str(document.get("plan_id", ""))
        source = source_name(str(document["source"].get("kind", "hub")), name)
        return Earlier(files, source, plan_id) if document["schema"] else None
    except (ValueError, RecursionError, LookupError, TypeError):
        return None
