"""Record which job a folder belongs to, and keep other jobs out while it runs."""

import errno
import fcntl
import os
from contextlib import suppress
from io import FileIO
from pathlib import Path

from sharding.core.values import StagedJob
from sharding.storage.lease import Lease
from sharding.storage.records import job_line, parse_job

JOURNAL_NAME = "sharding_journal.part"


class Journal:
    """A file with the `StagedJob` whose shards and records lie in the same folder.

    While a job writes to the folder, it locks this file and holds a lease on the folder, so that two jobs cannot share
    it. In a folder that machines share, it holds only the lease. All methods raise OSError as files do.
    """

    def __init__(self, folder: Path, *, is_shared: bool = False) -> None:
        """Use the journal of `folder`. Opens nothing."""
        self._is_shared = is_shared
        self.lease = Lease(folder, beside_lock=not is_shared)
        self.path = folder / JOURNAL_NAME
        self._stream: FileIO | None = None

    @property
    def is_ours(self) -> bool:
        """Whether this job holds the lock."""
        return self._stream is not None and not self.lease.is_lost

    def job(self) -> StagedJob | None:
        """Return the job that the journal names, None if there is none."""
        with suppress(FileNotFoundError):
            return parse_job(self.path.read_bytes())
        return None

    def lock(self) -> None:
        """Lock the journal for this job. Raises BlockingIOError while another job holds it."""
        for place in (self.path.parent, self.path):
            if place.is_symlink():  # the job would write to the link's target, and empty it
                raise OSError(errno.ELOOP, f"{place.name} in it is a link to elsewhere")
        # Unbuffered: on a full disk, buffered bytes would fail once more when the file is closed.
        stream = open(self.path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
        try:
            if not self._is_shared:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not os.path.exists(self.path) or not os.path.samestat(os.fstat(stream.fileno()), self.path.stat()):
                    raise BlockingIOError("another job has just removed it")
            self.lease.take()
        except BaseException:
            stream.close()
            raise
        self._stream = stream

    def begin(self, job: StagedJob) -> int:
        """Write `job` into the journal unless it is there already; return the bytes written. Call `lock` first."""
        assert self._stream, "call lock first"
        self.lease.refuse_lost()
        if self.job() == job:  # a job that was killed has left it
            return 0
        self._stream.truncate(0)
        view = memoryview(line := job_line(job))
        while view:
            view = view[self._stream.write(view) :]
        os.fsync(self._stream.fileno())
        return len(line)

    def remove(self) -> None:
        """Delete the journal and release it: its shards are published or discarded."""
        if not self._is_shared:  # the lock still holds, and the next job looks only for a journal
            self.lease.release()
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Release the lock and the lease."""
        self.lease.release()
        if self._stream:
            self._stream.close()
        self._stream = None
