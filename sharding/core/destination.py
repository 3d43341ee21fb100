"""What a destination can do: shards go there, and show only once all are there."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from sharding.core.events import Published
from sharding.core.lent import LentDestination
from sharding.core.protocols import ShardSink, Source
from sharding.core.repo import Repo
from sharding.core.values import Discarded, FileEntry, Finding, RepoRef, ShardRecord, StagedJob


class Destination(ShardSink, Protocol):
    """A place that shards are streamed into and that shows them only once all are there."""

    ref: RepoRef
    findings: tuple[Finding, ...]
    """What a person should know before anything is written."""

    @property
    def disk_bytes_written(self) -> int:
        """Bytes that this job has written to this machine's disk."""
        ...

    @property
    def has_finished_shards(self) -> bool:
        """Whether a later run would find something to go on from."""
        ...

    def check(self, source: RepoRef) -> None:
        """Raise DestinationError where a copy of `source` may not be written. Changes nothing; comes first of all.

        ReplaceRefused where a copy of another model stands there and nobody said that it may go.
        """
        ...

    def done(self, plan_id: str) -> dict[str, ShardRecord]:
        """Return the shards of plan `plan_id` that an earlier run finished, by file name. Changes nothing.

        Raises DestinationError where an unfinished job of another plan is in the way.
        """
        ...

    def prepare(
        self,
        job: StagedJob,
        keep: Iterable[ShardRecord],
        new_bytes: int,
        ours: Iterable[str] = (),
        beside: Iterable[str] = (),
    ) -> None:
        """Make ready for `new_bytes` of `job`; forget what an earlier run left, but for the shards in `keep`.

        The result will have the files `ours`, which this tool writes, and those of the source `beside` them. Raises
        DestinationError, before a byte moves, where it cannot be written.
        """
        ...

    def lend(self) -> LentDestination:
        """Return what another machine needs to write shards of the job that was prepared; none are opened here then.

        Raises DestinationError where that would take a login.
        """
        ...

    def open_finished(self, file: str) -> Source | None:
        """Return where a shard that this job has finished can be read at once; None where that had better wait."""
        ...

    def open_staged(self, files: Iterable[str]) -> Source:
        """Return a source that reads the finished `files` before they are published."""
        ...

    def publish(
        self,
        records: Mapping[str, ShardRecord],
        side_files: Iterable[FileEntry],
        origin: Repo,
        written: Mapping[str, bytes],
    ) -> Published:
        """Show the shards of `records`, `side_files` copied from `origin`, and the files `written`; the index last."""
        ...

    def unfinished(self) -> StagedJob | None:
        """Return the job whose shards are staged here, if there is one. Changes nothing."""
        ...

    def discard(self) -> Discarded:
        """Remove what this job or, before `prepare`, an earlier one has staged."""
        ...
