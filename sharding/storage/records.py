"""Write and parse the JSON of jobs, records and reports, which may come from anybody. Pure."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from pydantic import TypeAdapter, ValidationError

from sharding.core.errors import UsageError
from sharding.core.origin import Place
from sharding.core.values import ShardRecord, StagedJob

_JOB = TypeAdapter(StagedJob)
_RECORD = TypeAdapter(ShardRecord)


def line_of(value: StagedJob | ShardRecord) -> bytes:
    """Return a job or a record as one line of JSON."""
    return json.dumps(asdict(value)).encode()


def parse_job(text: bytes) -> StagedJob | None:
    """Return the job that `line_of` wrote. None for any other text: a kill may have cut it short."""
    try:
        return _JOB.validate_json(text)
    except (ValidationError, UsageError):
        return None


def parse_record(text: bytes) -> ShardRecord | None:
    """Return the record that `line_of` wrote, None for any other text."""
    try:
        return _RECORD.validate_json(text)
    except ValidationError:
        return None


def staged_line(record: ShardRecord, job: StagedJob) -> bytes:
    """Return `record` as one line of JSON, with the ids of its job and plan."""
    return json.dumps({"job": job.id, "plan": job.plan_id, "record": asdict(record)}).encode()


def parse_staged(text: bytes, job: StagedJob) -> ShardRecord | None:
    """Return the record that `staged_line` wrote for this same `job`, None for any other text."""
    try:
        document = json.loads(text)
        is_own = (document["job"], document["plan"]) == (job.id, job.plan_id)
        return _RECORD.validate_python(document["record"]) if is_own else None
    except (ValueError, RecursionError, LookupError, TypeError):
        return None


def whole(records: Mapping[str, ShardRecord], is_there: Callable[[ShardRecord], bool]) -> dict[str, ShardRecord]:
    """Return those of `records` whose shards are there; none if one that is missing says what was read for all."""
    present = {file: record for file, record in records.items() if is_there(record)}
    return {} if any(record.reads for file, record in records.items() if file not in present) else present


@dataclass(frozen=True, slots=True)
class Earlier:
    """The contents of a result's report: its files, what it is a copy of (as by `Place.words`), and its plan."""

    files: tuple[str, ...]
    source: str
    plan_id: str


def parse_earlier(report: bytes) -> Earlier | None:
    """Return the contents of a `sharding_report.json`, None if this tool did not write it."""
    try:
        document = json.loads(report)
        files = tuple(file for file in document["files"] if isinstance(file, str))
        told, plan_id = document["source"], str(document.get("plan_id", ""))
        repo_id = str(told["repo_id"])
        source = Place(told.get("store", "hub"), repo_id, inside=str(told.get("inside", ""))).words
        return Earlier(files, source, plan_id) if document["schema"] else None
    except (ValueError, RecursionError, LookupError, TypeError):
        return None
