"""The protocols of sources and sinks, which `transfer` and `verify` use."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from sharding.core.lent import LentSource
from sharding.core.values import FileEntry, RepoRef, ShardRecord


class Files(Protocol):
    """The files of a checkpoint that does not change while it is read."""

    ref: RepoRef
    folder: Path | None
    """Its folder on this disk, or None."""
    is_private: bool | None
    """Whether the repo is private or gated. None for a folder."""
    unreached: tuple[str, ...]
    """Its commits ("owner/name@commit") that no known branch or tag of their repo contains."""
    links_out: tuple[str, ...]
    """Links in it that are not followed: links that lead outside and, ending in "/", links to folders."""
    ranges_at_once: int
    """How many ranges to request side by side."""
    files: tuple[FileEntry, ...]
    """The files. A stated hash is the hash of the bytes that `read` yields."""

    def read(self, file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        """Yield exactly the bytes `[start_byte, end_byte)` of `file`, in order, in chunks of limited size.

        Several threads may call it at once. Raises SourceError if the bytes cannot be read.
        """

    def path(self, file: str) -> Path | None:
        """Return the path of `file` on this disk, or None."""

    def closed(self) -> str:
        """Return a repo that was public when it was opened and may not be public now; "" if there is none."""


class Source(Files, Protocol):
    """A single place to read files from: a folder, or a repo of a Hub."""

    batch_bytes: int
    """How many bytes to request at once."""
    join_gap_bytes: int
    """The largest gap in bytes between two ranges that are read as one."""

    @property
    def requests(self) -> int:
        """Number of requests so far."""

    @property
    def bytes_read(self) -> int:
        """Number of bytes read so far."""

    def lend(self, files: Iterable[str]) -> LentSource:
        """Return what another machine needs to read `files` for a limited time without a login. Raises SourceError."""


class ShardWriter(Protocol):
    """One shard that is being written to a sink."""

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes. The caller may change them after the call."""

    def finish(self) -> str:
        """Store all bytes so that they survive a crash; return the SHA-256 of the file, in hex."""

    def abort(self) -> None:
        """Give up an unfinished shard. Any thread may call it, and it ends a `write` that waits for a network."""


class ShardSink(Protocol):
    """The place that shards are written to."""

    @property
    def shards_at_once(self) -> int:
        """How many shards may be open at once."""

    @property
    def bytes_uploaded(self) -> int:
        """Bytes that this machine has sent to a store."""

    @property
    def bytes_deduplicated(self) -> int:
        """Bytes that the store already had."""

    def finished(self, file: str) -> ShardRecord | None:
        """Return the record of a complete shard, no matter which run wrote it; None if that is not known."""

    def open_shard(self, file: str) -> ShardWriter:
        """Start a shard."""

    def note(self, record: ShardRecord) -> None:
        """Remember a finished shard. Several shards together make one commit on a Hub: see `staging.COMMIT_SECONDS`.

        Several threads may call it at once.
        """

    def close(self) -> None:
        """Close the sink. Unfinished shards are lost."""
