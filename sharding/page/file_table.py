"""Turn plans and reports into rows of a table. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from sharding.core.values import Plan
from sharding.report.schema import Report

MOST_ROWS = 200
"""Rows of a table; nobody reads more, and every one costs the browser."""


@dataclass(frozen=True, slots=True)
class Row:
    """A weight file."""

    file: str
    tensors: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Files:
    """The weight files of a checkpoint: rows for the table (the first MOST_ROWS), and what they are together."""

    rows: tuple[Row, ...]
    count: int
    tensors: int
    bytes: int


def files_of(plan: Plan | Report) -> Files:
    """Return the files that a plan makes, or that a report tells of."""
    shards = plan.plan.shards if isinstance(plan, Report) else plan.shards
    return _files(Row(shard.file, len(shard.tensors), shard.bytes) for shard in shards)


def _files(rows: Iterable[Row]) -> Files:
    rows = tuple(rows)
    return Files(rows[:MOST_ROWS], len(rows), sum(row.tensors for row in rows), sum(row.bytes for row in rows))
