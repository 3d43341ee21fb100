"""What a source and a destination can do: the two protocols that `transfer` and `verify` meet."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from sharding.core.lent import LentSource
from sharding.core.values import FileEntry, RepoRef, ShardRecord


class Files(Protocol):
    """The files of a checkpoint that does not change while it is read."""

    ref: RepoRef
    folder: Path | None
    """Where it lies on this disk, if it does."""
    is_private: bool | None
    """Whether it is hidden from some: private or gated. None for a folder."""
    unreached: tuple[str, ...]
    """Commits of it ("owner/name@commit") to which no branch and no tag of their repo is known to lead."""
    links_out: tuple[str, ...]
    """Links in it that are not followed: those that lead out of it and, ending in "/", those to folders."""
    ranges_at_once: int
    """How many ranges to ask for side by side."""
    files: tuple[FileEntry, ...]
    """Hashes that are stated are those of the bytes that `read` yields."""

    def read(self, file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        """Yield exactly the bytes `[start_byte, end_byte)` of `file`, in order, in bounded chunks.

        Safe to call from several threads. Raises SourceError when the bytes cannot be had.
        """
        ...

    def path(self, file: str) -> Path | None:
        """Return where `file` lies on this disk, if it does."""
        ...

    def closed(self) -> str:
        """Return a repo of it that was public when it was opened and is not known to be so now, "" if there is none."""
        ...


class Source(Files, Protocol):
    """One place that files are read from: a folder, or a repo of a Hub."""

    batch_bytes: int
    """How much to ask for at a time."""
    join_gap_bytes: int
    """Ranges closer than this are read as one."""

    @property
    def requests(self) -> int:
        """Requests made so far."""
        ...

    @property
    def bytes_read(self) -> int:
        """Bytes read so far."""
        ...

    def lend(self, files: Iterable[str]) -> LentSource:
        """Return what another machine needs to read `files`, for a while and without a login. Raises SourceError."""
        ...


class ShardWriter(Protocol):
    """One shard on its way to a sink."""

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes, which may change once it returns."""
        ...

    def finish(self) -> str:
        """Have all bytes where they survive a crash; return the SHA-256 of the file, in hex."""
        ...

    def abort(self) -> None:
        """Give up an unfinished shard: called from any thread, so that a write which waits for a network ends."""
        ...


class ShardSink(Protocol):
    """What shards are streamed into."""

    @property
    def shards_at_once(self) -> int:
        """How many may be open at a time."""
        ...

    @property
    def bytes_uploaded(self) -> int:
        """Bytes that were sent from here to a store."""
        ...

    @property
    def bytes_deduplicated(self) -> int:
        """Bytes that the store had already."""
        ...

    def finished(self, file: str) -> ShardRecord | None:
        """Return the record of a shard that is there whole, whoever has written it. None where that is not known."""
        ...

    def open_shard(self, file: str) -> ShardWriter:
        """Start a shard."""
        ...

    def note(self, record: ShardRecord) -> None:
        """Remember a shard whose writer has finished. A Hub is told of several together: see `limits.COMMIT_SECONDS`.

        Safe to call from several threads.
        """
        ...

    def close(self) -> None:
        """Let go of it: shards that are not finished are gone."""
        ...
