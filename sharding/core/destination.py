"""The protocol of a destination, where shards are written and shown only when all are complete."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from sharding.core.events import Published
from sharding.core.lent import LentDestination
from sharding.core.protocols import ShardSink, Source
from sharding.core.repo import Repo
from sharding.core.values import FileEntry, Finding, RepoRef, ShardRecord, StagedJob


@dataclass(frozen=True, slots=True)
class Discarded:
    """What was removed of an unfinished job. `remark` says what could not be removed, and what you still have to do."""

    found: bool
    repo_deleted: bool = False
    remark: str = ""


class Destination(ShardSink, Protocol):
    """A place for the shards of a result. It shows them only when all are complete."""

    ref: RepoRef
    findings: tuple[Finding, ...]
    """Findings that a person should read before anything is written."""

    @property
    def disk_bytes_written(self) -> int:
        """Bytes that this job has written to the disk of this machine."""

    @property
    def has_finished_shards(self) -> bool:
        """Whether there are finished shards that a later run can keep."""

    def check(self, source: RepoRef) -> None:
        """Raise DestinationError if a copy of `source` may not be written here. It is called first and changes nothing.

        Raises ReplaceRefused if a copy of another model is here and nobody allowed its replacement.
        """

    def done(self, plan_id: str) -> dict[str, ShardRecord]:
        """Return the shards of plan `plan_id` that an earlier run finished, by file name. Changes nothing.

        Raises DestinationError if an unfinished job of another plan is here.
        """

    def prepare(
        self,
        job: StagedJob,
        keep: Iterable[ShardRecord],
        new_bytes: int,
        ours: Iterable[str] = (),
        beside: Iterable[str] = (),
    ) -> None:
        """Prepare for `new_bytes` of `job`. Delete what an earlier run left, except the shards in `keep`.

        The result will consist of the files `ours`, which this tool writes, and the files `beside` them, which it
        copies from the source. Raises DestinationError before a byte moves if the result cannot be written.
        """

    def lend(self) -> LentDestination:
        """Return all that another machine needs to write shards of the prepared job. This machine then opens none.

        Raises DestinationError if that machine would need a login.
        """

    def open_finished(self, file: str) -> Source | None:
        """Return a source that reads the finished shard `file` at once; None if it is better to read it later."""

    def open_staged(self, files: Iterable[str]) -> Source:
        """Return a source that reads the finished `files` before they are published."""

    def publish(
        self,
        records: Mapping[str, ShardRecord],
        side_files: Iterable[FileEntry],
        origin: Repo,
        written: Mapping[str, bytes],
    ) -> Published:
        """Show the shards of `records`, the `side_files` of `origin` and the files `written`. The index comes last."""

    def unfinished(self) -> StagedJob | None:
        """Return the unfinished job whose shards are staged here, or None. Changes nothing."""

    def discard(self) -> Discarded:
        """Remove what this job has staged or, before `prepare`, what an earlier job has staged."""
