"""Write shards into a folder that several machines share, each attempt under a name of its own until it is whole."""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import FileIO
from pathlib import Path
from uuid import uuid4

from sharding.core.errors import DestinationError
from sharding.core.limits import THREADS
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


class SharedFolder:
    """A folder in which a job of plan `plan_id` is prepared, as one of its machines sees it. See `ShardSink`.

    Nothing is locked, as no lock is to be relied on there: two machines that write the same shard leave it once.
    """

    shards_at_once = THREADS
    bytes_uploaded = bytes_deduplicated = 0

    def __init__(self, folder: Path, plan_id: str) -> None:
        """Take the folder. Raises DestinationError where this machine does not have it."""
        self._folder = folder
        self._plan_id = plan_id
        self._own: dict[str, Path] = {}
        self._streams: list[FileIO] = []
        self._flusher = ThreadPoolExecutor(1, thread_name_prefix="flush")
        self._refuse_other()

    def finished(self, file: str) -> ShardRecord | None:
        """Return the record of a shard that is there, whoever has written it."""
        with suppress(OSError):
            record = parse_record(record_path(self._folder, file, self._plan_id).read_bytes())
            if record and part_path(self._folder, file).stat().st_size == record.bytes:
                return record
        return None

    def open_shard(self, file: str) -> FolderShardWriter:
        """Start a shard under a name that no other attempt has."""
        own = part_path(self._folder, file).with_suffix(f".{uuid4().hex}{PART}")
        with explained(self._folder):
            stream = open(own, "xb", buffering=0)  # noqa: SIM115 - closed by finish or close
        self._own[file] = own
        self._streams.append(stream)
        return FolderShardWriter(stream, self._flusher)

    def note(self, record: ShardRecord) -> None:
        """Give a finished shard its name and put its record beside it, unless another attempt was first."""
        own = self._own[record.file]
        if self.finished(record.file):
            return
        self._refuse_other()
        with explained(self._folder):
            os.replace(own, part_path(self._folder, record.file))
            sync_folders([staging_in(self._folder)])
            write_whole(record_path(self._folder, record.file, self._plan_id), [record_line(record)], own)
            sync_folders([staging_in(self._folder)])

    def close(self) -> None:
        """Remove what has no name yet."""
        self._flusher.shutdown(cancel_futures=True)
        for stream in self._streams:
            stream.close()
        for own in self._own.values():
            with suppress(OSError):
                own.unlink(missing_ok=True)

    def _refuse_other(self) -> None:
        with explained(self._folder):
            job = Journal(staging_in(self._folder)).job()
        if job is None or job.plan_id != self._plan_id:
            raise DestinationError(
                f"In {self._folder} there is not, or no longer, the job that this is a part of.",
                "All nodes must have the same folder there; on one machine alone leave out --workers.",
            )
