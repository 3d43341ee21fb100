"""Write shards and their records into a folder. Each attempt has its own file name until the shard is complete."""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import FileIO
from pathlib import Path
from threading import Lock
from uuid import uuid4

from typing_extensions import override

from sharding.core.errors import DestinationError, Remedy
from sharding.core.limits import THREADS
from sharding.core.protocols import ShardSink, ShardWriter
from sharding.core.values import ShardRecord
from sharding.storage.folder_writing import (
    PART,
    FolderShardWriter,
    explained,
    part_path,
    record_path,
    staging_in,
    sync_folders,
    write_whole,
)
from sharding.storage.journal import Journal
from sharding.storage.records import parse_record, record_line


class FolderSink(ShardSink):
    """A folder in which a job of plan `plan_id` is prepared, as each of its machines sees it.

    It takes no lock, because locks are unreliable in a folder that machines share. Two attempts at the same shard leave
    one file. A shard is finished if its record is there: the record is written once all of the shard is on the disk.
    """

    shards_at_once = THREADS
    bytes_uploaded = bytes_deduplicated = disk_bytes_written = 0

    def __init__(self, folder: Path, plan_id: str = "") -> None:
        """Aim at `folder`. Writes nothing."""
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
            raise DestinationError(
                f"The folder {self._folder} does not hold the job of this worker, or no longer does.",
                "All nodes must see the same folder at this path. On a single machine, leave out --workers.",
                Remedy("leave_workers_out"),
            )

    @override
    def finished(self, file: str) -> ShardRecord | None:
        with suppress(OSError):
            record = parse_record(record_path(self._folder, file, self._plan_id).read_bytes())
            if record and part_path(self._folder, file).stat().st_size == record.bytes:
                return record
        return None

    @override
    def open_shard(self, file: str) -> ShardWriter:
        """Start a shard under a name that no other attempt uses."""
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
            self.disk_bytes_written += record.bytes + len(record_line(record))

    @override
    def close(self) -> None:
        """Remove the files that have no name yet."""
        self._flusher.shutdown(cancel_futures=True)
        for stream in self._streams.values():
            stream.close()
        for own in self._staging.glob(f"*.{self._mark}{PART}"):
            with suppress(OSError):  # the error that ended the job says more
                own.unlink(missing_ok=True)

    def _put_record(self, record: ShardRecord) -> int:
        """Write a record beside its shard, for good; return its size in bytes."""
        place = record_path(self._folder, record.file, self._plan_id)
        written = write_whole(place, [record_line(record)], self._own(record.file))
        sync_folders([self._staging])
        return written

    def _own(self, file: str) -> Path:
        return part_path(self._folder, file).with_suffix(f".{self._mark}{PART}")
