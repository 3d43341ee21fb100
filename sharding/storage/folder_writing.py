"""Write shards, records and other files into a folder: what has been written is on the disk."""

import errno
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from threading import Lock
from urllib.parse import quote
from uuid import uuid4

from typing_extensions import override

from sharding.core.errors import DestinationError, Remedy
from sharding.core.limits import THREADS
from sharding.core.protocols import ShardSink, ShardWriter
from sharding.core.text import format_bytes
from sharding.core.values import ShardRecord
from sharding.formats.names import SAFETENSORS, STAGING_FOLDER
from sharding.storage.journal import CANNOT, Journal
from sharding.storage.records import line_of, parse_line

FLUSH_BYTES = 32 << 20
"""Unwritten bytes that start a write-back to the disk, so that the sync at the end of a shard is short."""

_LONGEST_NAME = 150  # Characters of a part's name. File systems take 255 bytes, and attempts and records add a suffix.
PART = ".part"  # The suffix of every file that is not published yet.
RECORD = f".record{PART}"  # The suffix of a record.


def staging_in(folder: Path) -> Path:
    """Return the folder for everything that is not published yet. No path of a source leads there."""
    return folder / STAGING_FOLDER


def part_path(folder: Path, file: str) -> Path:
    """Return where a shard lies until it is published."""
    name = quote(file, safe="")
    if len(name) > _LONGEST_NAME:
        name = f"{hashlib.sha256(file.encode()).hexdigest()}{SAFETENSORS}"
    return staging_in(folder) / (name + PART)


def record_path(folder: Path, file: str, plan_id: str) -> Path:
    """Return where the record of a finished shard lies."""
    return part_path(folder, file).with_suffix(f".{plan_id[:16]}{RECORD}")


class FolderShardWriter(ShardWriter):
    """One `.part` file."""

    def __init__(self, stream: FileIO, flusher: ThreadPoolExecutor) -> None:
        """Write to `stream`; start write-back in `flusher` now and then, so that `finish` has little to wait for."""
        self._stream, self._flusher = stream, flusher
        self._sha256 = hashlib.sha256()
        self._folder = Path(stream.name).parent
        self._dirty_bytes = 0
        self._flush: Future[None] | None = None

    @override
    def write(self, data: bytes | memoryview) -> None:
        self._sha256.update(data)
        view = memoryview(data)
        with explained(self._folder):
            try:
                while view:
                    view = view[self._stream.write(view) :]
            except OSError as error:
                if error.errno != errno.EFBIG:
                    raise
                most = self._stream.tell()
                message = f"The disk of {self._folder} takes no file larger than {format_bytes(most)}."
                raise DestinationError(message, f"Start again with a shard size of {_below(most)}.") from error
        self._dirty_bytes += len(data)
        if self._dirty_bytes >= FLUSH_BYTES and (self._flush is None or self._flush.done()):
            self._dirty_bytes = 0
            self._flush = self._flusher.submit(os.fsync, self._stream.fileno())

    @override
    def finish(self) -> str:
        with explained(self._folder):
            if self._flush:
                self._flush.result()
            os.fsync(self._stream.fileno())
            self._stream.close()
        return self._sha256.hexdigest()

    @override
    def abort(self) -> None:
        """Do nothing: a disk keeps nobody waiting, and `FolderSink.close` removes the part."""


class FolderSink(ShardSink):
    """A folder in which a job of plan `plan_id` is prepared, as each of its machines sees it, so without a lock."""

    shards_at_once = THREADS
    bytes_uploaded = bytes_deduplicated = disk_bytes_written = 0

    def __init__(self, folder: Path, plan_id: str = "") -> None:
        self._folder = folder
        self._staging = staging_in(folder)
        self._plan_id = plan_id
        self._mark = uuid4().hex
        self._streams: dict[str, FileIO] = {}
        self._one_at_a_time = Lock()
        self._flusher = ThreadPoolExecutor(THREADS, thread_name_prefix="flush")

    def refuse_other(self) -> None:
        """Raise DestinationError if the folder does not hold the job, or no longer does."""
        with explained(self._folder):
            job = Journal(self._staging).job()
        if job is None or job.plan_id != self._plan_id:
            message = f"The folder {self._folder} does not hold the job of this worker, or no longer does."
            hint = "All nodes must see the same folder at this path. On a single machine, leave out --workers."
            raise DestinationError(message, hint, Remedy("leave_workers_out"))

    @override
    def finished(self, file: str) -> ShardRecord | None:
        with suppress(OSError):
            record = parse_line(ShardRecord, record_path(self._folder, file, self._plan_id).read_bytes())
            if record and part_path(self._folder, file).stat().st_size == record.bytes:
                return record
        return None

    @override
    def open_shard(self, file: str) -> ShardWriter:
        with explained(self._folder):
            self._streams[file] = open(self._own(file), "wb", buffering=0)  # noqa: SIM115 - closed by finish or close
        return FolderShardWriter(self._streams[file], self._flusher)

    @override
    def note(self, record: ShardRecord) -> None:
        """Give a finished shard its name and write its record beside it, unless another attempt was first."""
        with self._one_at_a_time, explained(self._folder):
            self.refuse_other()
            if not self.finished(record.file):
                if record.file in self._streams:  # else another machine has written it
                    os.replace(self._own(record.file), part_path(self._folder, record.file))
                    sync_folders([self._staging])
                self._put_record(record)
            self.disk_bytes_written += record.bytes + len(line_of(record))

    @override
    def close(self) -> None:
        self._flusher.shutdown(cancel_futures=True)
        for stream in self._streams.values():
            stream.close()
        for own in self._staging.glob(f"*.{self._mark}{PART}"):
            with suppress(OSError):  # the error that ended the job says more
                own.unlink(missing_ok=True)

    def _put_record(self, record: ShardRecord) -> int:
        own = self._own(record.file)
        written = write_synced(own, [line_of(record)])
        os.replace(own, record_path(self._folder, record.file, self._plan_id))
        sync_folders([self._staging])
        return written

    def _own(self, file: str) -> Path:
        return part_path(self._folder, file).with_suffix(f".{self._mark}{PART}")


def write_synced(place: Path, chunks: Iterable[bytes]) -> int:
    """Write a file to the disk for good; return how many bytes it has."""
    written = 0
    with open(place, "wb") as stream:
        for chunk in chunks:
            written += stream.write(chunk)
        stream.flush()
        os.fsync(stream.fileno())
    return written


def _below(most: int) -> str:
    """Return a round size for shards that fit into files of `most` bytes with their headers.

    >>> _below(2**32 - 1), _below(100_000_000)
    ('4GB', '90MB')
    """
    digits = str(most * 19 // 20)
    return format_bytes(int(digits[0]) * 10 ** (len(digits) - 1)).replace(".0", "").replace(" ", "")


def sync_folders(folders: Iterable[Path]) -> None:
    """Write the file names in `folders` to the disk for good, where a disk has a way to do that."""
    for folder in sorted(folders):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in CANNOT:
                raise
        finally:
            os.close(descriptor)


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn an OSError about a folder into a DestinationError with a hint."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = format_bytes(shutil.disk_usage(folder if folder.exists() else folder.parent).free)
            hint = "Free some space, then start the same job again."
            raise DestinationError(f"The disk of {folder} is full ({free} free).", hint) from error
        message = f"{folder} cannot be written: {error.strerror or error}."
        raise DestinationError(message, "Check that you may write to this folder, or choose another.") from error
