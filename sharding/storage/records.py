"""Write and parse the JSON of jobs, records and reports, which may come from anybody. Pure."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from sharding.core.errors import UsageError
from sharding.core.origin import Place
from sharding.core.values import ShardRecord, StagedJob

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Noted:
    """A record on a staging branch, with the ids of its job and plan."""

    job: str
    plan: str
    record: ShardRecord


_LINES: dict[Any, TypeAdapter[Any]] = {kind: TypeAdapter(kind) for kind in (StagedJob, ShardRecord, Noted)}


def line_of(value: StagedJob | ShardRecord | Noted) -> bytes:
    """Return a job or a record as one line of JSON."""
    return json.dumps(asdict(value)).encode()


def parse_line(kind: type[_T], text: bytes) -> _T | None:
    """Return the job or record that `line_of` wrote. None for any other text: a kill may have cut it short."""
    try:
        value: _T = _LINES[kind].validate_json(text)
    except (ValidationError, UsageError):
        return None
    return value


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
