"""Say whose job a folder is, and keep others out of it while that is at work."""

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
    """A file that holds the `StagedJob` whose shards, with their records, lie in the same folder.

    It is locked while a job writes to the folder, and the folder held by a lease, so that two jobs cannot share it. One
    that machines share is held by a lease alone. All methods raise OSError as files do.
    """

    def __init__(self, folder: Path, *, is_shared: bool = False) -> None:
        """Take the journal of `folder`. Opens nothing."""
        self._is_shared = is_shared
        self.lease = Lease(folder, beside_lock=not is_shared)
        self.path = folder / JOURNAL_NAME
        self._stream: FileIO | None = None

    @property
    def is_ours(self) -> bool:
        """Whether this job holds the lock."""
        return self._stream is not None and not self.lease.is_lost

    def job(self) -> StagedJob | None:
        """Return the job that the journal is of."""
        with suppress(FileNotFoundError):
            return parse_job(self.path.read_bytes())
        return None

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
            self.lease.take()
        except BaseException:
            stream.close()
            raise
        self._stream = stream

    def begin(self, job: StagedJob) -> int:
        """Have the journal be of `job`, where it is not yet; return how many bytes that took. `lock` comes first."""
        assert self._stream, "lock comes first"
        self.lease.refuse_lost()
        if self.job() == job:  # killed in between, it still knows
            return 0
        self._stream.truncate(0)
        view = memoryview(line := job_line(job))
        while view:
            view = view[self._stream.write(view) :]
        os.fsync(self._stream.fileno())
        return len(line)

    def remove(self) -> None:
        """Delete the journal, and let go of it: what it spoke of is published or discarded."""
        if not self._is_shared:  # the lock still holds, and a journal alone is what the next job looks for
            self.lease.release()
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Release the lock."""
        self.lease.release()
        if self._stream:
            self._stream.close()
        self._stream = None
