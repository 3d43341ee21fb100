"""Turn plans, events and reports into rows of a table and bars of a picture. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from sharding.core.values import Checkpoint, Plan
from sharding.report.events import PlanMade
from sharding.report.schema import Report

MOST_ROWS = 200
"""Rows of a table; nobody reads more, and every one costs the browser."""

MOST_BARS = 240
"""Bars of a picture: at 390 px some of them are a pixel wide."""

TINTS = 6
"""Shades that tell the source's files apart."""


@dataclass(frozen=True, slots=True)
class Row:
    """A weight file: `parts` are its bytes by the number of the source's file that they come from, in order."""

    file: str
    tensors: int
    bytes: int
    parts: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Bar:
    """A file in the picture, or several small ones; `parts` are (tint, bytes)."""

    title: str
    bytes: int
    parts: tuple[tuple[int, int], ...]
    is_done: bool = True


@dataclass(frozen=True, slots=True)
class Files:
    """The weight files of a checkpoint: rows for the table (the first MOST_ROWS), bars for the picture."""

    rows: tuple[Row, ...]
    bars: tuple[Bar, ...]
    count: int
    tensors: int
    bytes: int

    @property
    def largest_bytes(self) -> int:
        """Size of the largest file."""
        return max((row.bytes for row in self.rows), default=0)


def files_of_source(checkpoint: Checkpoint) -> Files:
    """Return the files that `checkpoint` has today."""
    tensors: dict[str, int] = {}
    for tensor in checkpoint.tensors:
        tensors[tensor.file] = tensors.get(tensor.file, 0) + 1
    return _files(
        Row(file.path, tensors.get(file.path, 0), file.bytes, ((number, file.bytes),))
        for number, file in enumerate(checkpoint.weight_files)
    )


def files_of_plan(plan: Plan, checkpoint: Checkpoint) -> Files:
    """Return the files that `plan` makes, each with the source's files that its bytes come from."""
    number = {file.path: index for index, file in enumerate(checkpoint.weight_files)}
    rows = []
    for shard in plan.shards:
        runs = groupby(shard.tensors, key=lambda tensor: number.get(tensor.file, 0))
        parts = tuple((source, sum(tensor.bytes for tensor in run)) for source, run in runs)
        rows.append(Row(shard.file, len(shard.tensors), shard.bytes, parts))
    return _files(rows)


def files_told(job: PlanMade | Report, done: Iterable[str] | None = None) -> tuple[Files, Files]:
    """Return the source's files and the result's, as a job tells them; those in `done` are finished, None for all."""
    old = (
        Row(file.file, file.tensors, file.bytes, ((number, file.bytes),))
        for number, file in enumerate(job.source.weight_files)
    )
    new = (Row(shard.file, len(shard.tensors), shard.bytes) for shard in job.plan.shards)
    return _files(old), _files(new, done if done is None else set(done))


def _files(rows: Iterable[Row], done: set[str] | None = None) -> Files:
    rows = tuple(rows)
    return Files(
        rows[:MOST_ROWS],
        _bars(rows, done),
        len(rows),
        sum(row.tensors for row in rows),
        sum(row.bytes for row in rows),
    )


def _bars(rows: Sequence[Row], done: set[str] | None) -> tuple[Bar, ...]:
    """Return a bar for each row, or for as many neighbours together as it takes to stay below MOST_BARS."""
    together = -(-len(rows) // MOST_BARS) or 1
    bars = []
    for start in range(0, len(rows), together):
        group = rows[start : start + together]
        title = group[0].file if len(group) == 1 else f"{group[0].file} to {group[-1].file}"
        parts = [(source % TINTS, size) for row in group for source, size in row.parts]
        merged = tuple((tint, sum(size for _, size in run)) for tint, run in groupby(parts, key=lambda part: part[0]))
        is_done = done is None or all(row.file in done for row in group)
        bars.append(Bar(title, sum(row.bytes for row in group), merged[:TINTS], is_done))
    return tuple(bars)
