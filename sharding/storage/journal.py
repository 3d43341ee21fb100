"""Remember which shards of which plan are finished, so that a job that was killed can go on."""

import errno
import fcntl
import os
from collections.abc import Collection
from contextlib import suppress
from io import FileIO
from pathlib import Path

from sharding.core.values import ShardRecord, StagedJob
from sharding.storage.lease import Lease
from sharding.storage.records import job_line, parse_job, parse_record, record_line

JOURNAL_NAME = "sharding_journal.part"


class Journal:
    """A file with one JSON object a line: first the `StagedJob`, then a `ShardRecord` for every finished shard.

    It is locked while a job writes to it, and its folder held by a lease, so that two jobs cannot share a folder. One
    that machines share is held by a lease alone. All methods raise OSError as files do.
    """

    def __init__(self, folder: Path, *, is_shared: bool = False) -> None:
        """Take the journal of `folder`. Opens nothing."""
        self._is_shared = is_shared
        self._lease = Lease(folder, beside_lock=not is_shared)
        self.path = folder / JOURNAL_NAME
        self.bytes_written = 0
        self._stream: FileIO | None = None

    @property
    def is_ours(self) -> bool:
        """Whether this job holds the lock."""
        return self._stream is not None and not self._lease.is_lost

    @property
    def is_lost(self) -> bool:
        """Whether another job has taken the folder over from this one."""
        return self._lease.is_lost

    def holder(self) -> str:
        """Return which process says to be at work in the folder, "" where none does."""
        return self._lease.holder()

    def job(self) -> StagedJob | None:
        """Return the job that the journal is of."""
        return parse_job(next(iter(self._lines()), b""))

    def read(self, plan_id: str) -> dict[str, ShardRecord]:
        """Return what was finished of plan `plan_id`, by file name; nothing if the journal is of another plan."""
        job = self.job()
        if job is None or job.plan_id != plan_id:
            return {}
        records = map(parse_record, self._lines()[1:])
        return {record.file: record for record in records if record}

    def lock(self) -> None:
        """Make the journal this job's own. Raises BlockingIOError while another job holds it."""
        for place in (self.path.parent, self.path):
            if place.is_symlink():  # what it leads to would be written to, and emptied
                raise OSError(errno.ELOOP, f"{place.name} in it is a link to elsewhere")
        # Unbuffered: on a full disk, buffered bytes would fail once more when the file is closed.
        stream = open(self.path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
        try:
            if not self._is_shared:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not os.path.exists(self.path) or not os.path.samestat(os.fstat(stream.fileno()), self.path.stat()):
                    raise BlockingIOError("another job has just removed it")
            self._lease.take()
        except BaseException:
            stream.close()
            raise
        self._stream = stream

    def begin(self, job: StagedJob, kept: Collection[ShardRecord]) -> None:
        """Go on with the journal where it is of `job` and shards are `kept`, else begin it anew. `lock` comes first.

        One that is gone on with is only ever longer: killed in between, it still knows all that was finished.
        """
        assert self._stream, "lock comes first"
        self._lease.refuse_lost()
        earlier = self.job()
        if kept and earlier and earlier.plan_id == job.plan_id:
            # A kill may have cut the last line short, and the next must not be glued to it.
            self._stream.truncate(self.path.read_bytes().rfind(b"\n") + 1)
            known = self.read(job.plan_id)
            for record in kept:
                if known.get(record.file) != record:  # another machine had put it down
                    self.note(record)
        else:
            self._stream.truncate(0)
            self._append(job_line(job), *map(record_line, kept))

    def note(self, record: ShardRecord) -> None:
        """Add a finished shard; returns once the line would survive a crash."""
        self._append(record_line(record))

    def remove(self) -> None:
        """Delete the journal, and let go of it: what it spoke of is published or discarded."""
        if not self._is_shared:  # the lock still holds, and a journal alone is what the next job looks for
            self._lease.release()
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Release the lock."""
        self._lease.release()
        if self._stream:
            self._stream.close()
        self._stream = None

    def refuse_lost(self) -> None:
        """Raise OSError where another job has taken the folder over."""
        self._lease.refuse_lost()

    def _lines(self) -> list[bytes]:
        with suppress(FileNotFoundError):
            return self.path.read_bytes().splitlines()
        return []

    def _append(self, *lines: bytes) -> None:
        assert self._stream, "begin comes first"
        self._lease.refuse_lost()
        text = b"".join(line + b"\n" for line in lines)
        view = memoryview(text)
        while view:
            view = view[self._stream.write(view) :]
        os.fsync(self._stream.fileno())
        self.bytes_written += len(text)
