"""The protocols of sources, destinations and file formats, and what another machine gets of them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from typing_extensions import override

from sharding.core.events import Published
from sharding.core.limits import THREADS
from sharding.core.origin import Place, Role
from sharding.core.recipe import Extent
from sharding.core.values import (
    Component,
    FileEntry,
    Finding,
    Plan,
    Shard,
    ShardRecord,
    StagedJob,
    Tensor,
    TensorDigest,
)


@dataclass(frozen=True, slots=True)
class Grant:
    """Access to the store of a Hub at `endpoint`, until `expires` (seconds, as in `time.time`)."""

    endpoint: str
    token: str = field(repr=False)
    expires: int


@dataclass(frozen=True, slots=True)
class LentFile:
    """A file that another machine may read: from the store by `xet_hash`, else from `place`, an address or a path that
    all machines share. Another time than `modified_ns` means that the file has changed."""

    file: str
    bytes: int
    xet_hash: str | None = None
    place: str = field(default="", repr=False)
    modified_ns: int | None = None


@dataclass(frozen=True, slots=True)
class LentSource:
    """Some files of a source: a folder, or a repo of the Hub at `hub`."""

    ref: Place
    files: tuple[LentFile, ...]
    hub: str = ""
    grant: Grant | None = None


@dataclass(frozen=True, slots=True)
class LentDestination:
    """Where the shards of plan `plan_id` go: a folder that all machines share, or the store of the Hub at `hub`."""

    ref: Place
    plan_id: str
    folder: str = ""
    hub: str = ""
    grant: Grant | None = None


class Files(Protocol):
    """The files of a checkpoint that does not change while it is read."""

    ref: Place
    folder: Path | None  # Its folder on this disk, or None.
    is_private: bool | None  # Whether the repo is private or gated. None for a folder.
    unreached: tuple[str, ...]  # Its commits ("owner/name@commit") that no known branch or tag of their repo contains.
    links_out: tuple[str, ...]
    """Links in it that are not followed: links that lead outside and, ending in "/", links to folders."""
    ranges_at_once: int  # How many ranges to request side by side.
    files: tuple[FileEntry, ...]  # The files. A stated hash is the hash of the bytes that `read` yields.

    @property
    def places(self) -> tuple[Place, ...]:
        """The places that they come from, in the order of their numbers."""
        return (self.ref,)

    @property
    def by_path(self) -> dict[str, FileEntry]:
        """The files by their paths."""
        return {file.path: file for file in self.files}

    def read(self, file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        """Yield exactly the bytes `[start_byte, end_byte)` of `file`, in order, in chunks of limited size. Raises
        SourceError. Several threads may call it at once."""

    def path(self, file: str) -> Path | None:
        """Return the path of `file` on this disk, or None."""

    def closed(self) -> str:
        """Return a repo that was public when it was opened and may not be public now; "" if there is none."""


class Source(Files, Protocol):
    """A single place to read files from: a folder, or a repo of a Hub."""

    batch_bytes: int  # How many bytes to request at once.
    join_gap_bytes: int  # The largest gap in bytes between two ranges that are read as one.

    @property
    def requests(self) -> int:
        """Number of requests so far."""

    @property
    def bytes_read(self) -> int:
        """Number of bytes read so far."""

    def lend(self, files: Iterable[str]) -> LentSource:
        """Return what another machine needs to read `files` for a limited time without a login. Raises SourceError."""


class Inputs(Files):
    """All that a job reads, each source by its role, the model first. `files` are those to copy; weights are read from
    the sources directly."""

    def __init__(
        self,
        sources: Mapping[Role, Source],
        files: Iterable[FileEntry] | None = None,
        links_out: Sequence[str] | None = None,
    ) -> None:
        """Combine `files` and `links_out`. By default they are those of the model."""
        self.sources = tuple(sources.values())
        first = self.sources[0]
        self.ref, self.folder, self.ranges_at_once = first.ref, first.folder, first.ranges_at_once
        self.files = first.files if files is None else tuple(files)
        self.links_out = first.links_out if links_out is None else tuple(links_out)
        self.unreached = tuple(place for source in self.sources for place in source.unreached)
        hidden = {source.is_private for source in self.sources}
        self.is_private = True if True in hidden else None if None in hidden else False
        self._roles = tuple(sources)
        self._entries = {file.path: file for file in self.files}

    @property
    @override
    def places(self) -> tuple[Place, ...]:
        return tuple(replace(source.ref, role=role) for role, source in zip(self._roles, self.sources, strict=True))

    def of(self, role: Role) -> Source | None:
        """Return the source in `role`, None if the job has none."""
        return self.sources[self._roles.index(role)] if role in self._roles else None

    def through(self, sources: Sequence[Source]) -> "Inputs":
        """Return the same files, read through `sources`, which are views of the original sources."""
        return Inputs(dict(zip(self._roles, sources, strict=True)), self.files, self.links_out)

    @override
    def read(self, file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        entry = self._entries[file]
        return self.sources[entry.source].read(entry.at, start_byte, end_byte)

    @override
    def path(self, file: str) -> Path | None:
        entry = self._entries[file]
        return self.sources[entry.source].path(entry.at)

    @override
    def closed(self) -> str:
        return next(filter(None, (source.closed() for source in self.sources)), "")


class ShardWriter(Protocol):
    """One shard that is being written to a sink."""

    xet_hash: str | None = None  # The hash that hf-xet computed for the bytes it got, after `finish`.

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes. The caller may change them after the call."""

    def finish(self) -> str:
        """Store all bytes so that they survive a crash; return the SHA-256 of the file, in hex."""

    def abort(self) -> None:
        """Give up an unfinished shard. Any thread may call it, and it ends a `write` that waits for a network."""
        return  # as for a shard that keeps nothing


class ShardSink(Protocol):
    """The place that shards are written to."""

    writes_at_once: int = THREADS  # How many of the open shards may be written. The others are being finished.

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
        return None

    def expect(self, sources: Sequence[Source], unchanged: Iterable[Extent]) -> None:
        """Prepare for shards made of `sources`, which hold the bytes `unchanged` of these. By default, do nothing."""
        return

    def open_shard(self, file: str) -> ShardWriter:
        """Start a shard."""

    def note(self, record: ShardRecord) -> None:
        """Remember a finished shard. Several threads may call it at once."""
        return

    def close(self) -> None:
        """Close the sink. Unfinished shards are lost."""
        return


@dataclass(frozen=True, slots=True)
class Discarded:
    """What was removed of an unfinished job. `remark` says what could not be removed, and what you still have to do."""

    found: bool
    repo_deleted: bool = False
    remark: str = ""


class Destination(ShardSink, Protocol):
    """A place for the shards of a result. It shows them only when all are complete."""

    ref: Place
    findings: tuple[Finding, ...]  # Findings that a person should read before anything is written.

    @property
    def disk_bytes_written(self) -> int:
        """Bytes that this job has written to the disk of this machine."""

    @property
    def has_finished_shards(self) -> bool:
        """Whether there are finished shards that a later run can keep."""

    def check(self, source: Place) -> None:
        """Raise DestinationError if a copy of `source` may not be written here, ReplaceRefused if it needs permission
        to replace that of another model. It is called first and changes nothing."""

    def done(self, plan_id: str) -> dict[str, ShardRecord]:
        """Return the shards of plan `plan_id` that an earlier run finished, by file name. Changes nothing. Raises
        DestinationError if an unfinished job of another plan is here."""

    def prepare(
        self,
        job: StagedJob,
        keep: Iterable[ShardRecord],
        new_bytes: int,
        ours: Iterable[str] = (),
        beside: Iterable[str] = (),
    ) -> None:
        """Prepare for `new_bytes` of `job`: delete what an earlier run left, except the shards in `keep`. `ours` are
        the files that this tool writes, `beside` those that it copies. Raises DestinationError, before a byte moves, if
        the result cannot be written."""

    def lend(self) -> LentDestination:
        """Return what another machine needs to write shards of the prepared job; this one then opens none. Raises
        DestinationError if that machine would need a login."""

    def open_arriving(self, keep: Iterable[str]) -> Source | None:
        """Return a source of the shards in `keep` and of those to come, None if it is better to read them later.
        `files` are the finished ones; a read of another waits."""

    def open_staged(self, files: Iterable[str]) -> Source:
        """Return a source that reads the finished `files` before they are published."""

    def publish(
        self,
        records: Mapping[str, ShardRecord],
        side_files: Iterable[FileEntry],
        origin: Inputs,
        written: Mapping[str, bytes],
    ) -> Published:
        """Show the shards of `records`, the `side_files` of `origin` and the files `written`. The index comes last."""

    def unfinished(self) -> StagedJob | None:
        """Return the unfinished job whose shards are staged here, or None. Changes nothing."""

    def discard(self) -> Discarded:
        """Remove what this job has staged or, before `prepare`, what an earlier job has staged."""


class FileFormat(Protocol):
    """How weight files of one format are named, laid out and checked."""

    def name(self, component: Component, suffix: str = "") -> str:
        """Return the path of a weight file of `component` with the number `suffix`; "" for a single file."""

    def order(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        """Return `tensors` in the order of a file, by default as they are."""
        return list(tensors)

    def pieces(self, plan: Plan, shard: Shard) -> Iterator[bytes | Tensor]:
        """Yield what the file of `shard` consists of, in order: bytes as they are, and tensors to make."""

    def structure(self, path: Path, shard: Shard) -> tuple[dict[str, TensorDigest], dict[str, str] | None]:
        """Return dtypes and shapes (with empty digests) and the metadata that the format's library sees in the file at
        `path`. Raises HeaderError if it cannot open it."""

    def indexes(self, plan: Plan) -> list[str]:
        """Return the paths of the indexes of a copy, by default none."""
        return []

    def beside(self, plan: Plan) -> Mapping[str, bytes]:
        """Return the content of each of these indexes."""
        return {}
