"""Record which job a folder belongs to, and keep other jobs out while it runs."""

import errno
import fcntl
import os
import socket
from contextlib import suppress
from io import FileIO
from pathlib import Path
from threading import Event, Thread
from typing import Literal
from uuid import uuid4

import psutil

from sharding.core.limits import LEASE_SECONDS
from sharding.core.text import shown_name
from sharding.core.values import StagedJob
from sharding.storage.records import line_of, parse_line

LEASE_NAME = "sharding_lease.part"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")
_LOCKED = "+"
"""Starts a lease whose holder has the folder's lock too. It comes first, because a kill may cut the rest short."""


class Lease:
    """A file that says who holds a folder. It stops counting if it is not renewed, or if its process here has ended.

    Only a process of the same boot and the same namespace of process ids can be looked up. Any other lease counts by
    its age. Methods raise OSError as files do.
    """

    def __init__(self, folder: Path, *, beside_lock: bool = False) -> None:
        """Use the lease of `folder`. With `beside_lock`, only the holder of the folder's lock takes it."""
        self._path = folder / LEASE_NAME
        self._beside_lock = beside_lock
        self._text = ""
        self._over = Event()

    def take(self) -> None:
        """Hold the folder and start to renew the lease. Raises BlockingIOError while another job holds it."""
        self.clear()
        host, *where = _here()
        words = [host, os.getpid(), psutil.Process().create_time(), uuid4().hex, *where]
        text = _LOCKED * self._beside_lock + " ".join(map(str, words))
        try:
            file = open(self._path, "x")  # noqa: SIM115 - at most one succeeds, over NFS too
        except FileExistsError as error:
            raise BlockingIOError(f"{self._path} is there") from error
        try:
            with file:
                file.write(text)
        except BaseException:
            self._path.unlink()
            raise
        self._text = text
        Thread(target=self._renew, name="lease", daemon=True).start()

    def clear(self) -> None:
        """Remove a lease that no longer counts. Raises BlockingIOError while another job holds the folder."""
        with suppress(FileNotFoundError):
            text = self._path.read_text()
            if self._beside_lock and text[:1] in ("", _LOCKED):  # the earlier holder of the lock is gone
                self._path.unlink()
                return
            if self._is_alive(text):
                raise BlockingIOError(f"{text.partition(' ')[0]} holds {self._path.parent}")
            aside = self._path.with_suffix(f".{uuid4().hex}.part")
            self._path.rename(aside)
            if aside.read_text() != text:  # another job was quicker, and this is its new one
                aside.rename(self._path)
                raise BlockingIOError(f"{self._path} is new")
            aside.unlink()

    def holder(self) -> str:
        """Return who holds the folder by its own account, such as "process 17 on box"; "" if nobody does."""
        with suppress(OSError, ValueError):
            host, pid, *_ = self._path.read_text().removeprefix(_LOCKED).split()
            return f"process {shown_name(pid)} on {shown_name(host)}"
        return ""

    @property
    def is_lost(self) -> bool:
        """Whether another job has taken over the folder, for example while this machine slept."""
        return bool(self._text) and not self._is_own()

    def refuse_lost(self) -> None:
        """Raise OSError if the lease is lost."""
        if self.is_lost:
            who = self.holder()
            raise OSError(f"another job has taken it over{who and f': {who}'}")

    def release(self) -> None:
        """Give up the folder."""
        self._over.set()
        if self._text and self._is_own():
            self._path.unlink(missing_ok=True)
        self._text = ""

    def _is_own(self) -> bool:
        with suppress(OSError):
            return self._path.read_text() == self._text
        return False

    def _is_alive(self, text: str) -> bool:
        host, pid, began, _, *where = (*text.removeprefix(_LOCKED).split(), "", "", "", "")
        if [host, *where[:2]] == _here() and pid.isdecimal():
            with suppress(psutil.NoSuchProcess):
                return str(psutil.Process(int(pid)).create_time()) == began
            return False
        return self._now() - self._path.stat().st_mtime < LEASE_SECONDS

    def _now(self) -> float:
        """Return the time by the clock that sets the times of files in the folder."""
        probe = self._path.with_suffix(f".{uuid4().hex}.part")
        probe.touch()
        try:
            return probe.stat().st_mtime
        finally:
            probe.unlink()

    def _renew(self) -> None:
        while not self._over.wait(LEASE_SECONDS / 6):
            with suppress(OSError):
                if self._is_own():
                    os.utime(self._path)


def _here() -> list[str]:
    """Return the host, its boot and the namespace of process ids. Containers may share a host name and process ids."""
    here = [socket.gethostname(), "-", "-"]
    with suppress(OSError):  # no /proc, as on macOS
        here[1] = _BOOT_ID.read_text().strip()
        here[2] = str(_NAMESPACE.readlink())
    return here


JOURNAL_NAME = "sharding_journal.part"
CANNOT = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
"""The answers of a disk that has no such operation, such as those of CIFS and vboxsf to the sync of a folder."""

_NO_LOCKS = (*CANNOT, errno.ENOLCK, errno.EBADF)  # The last is that of NFS without a server for locks.


class Journal:
    """A file with the `StagedJob` whose shards and records lie in the same folder.

    While a job writes to the folder, it locks this file and holds a lease on the folder. In a folder that machines
    share, it holds only the lease. So it does on a disk that has no locks. All methods raise OSError as files do.
    """

    def __init__(self, folder: Path, *, is_shared: bool = False) -> None:
        self._has_lock = not is_shared
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
            return parse_line(StagedJob, self.path.read_bytes())
        return None

    def lock(self) -> None:
        """Lock the journal for this job. Raises BlockingIOError while another job holds it."""
        for place in (self.path.parent, self.path):
            if place.is_symlink():  # the job would write to the link's target, and empty it
                raise OSError(errno.ELOOP, f"{place.name} in it is a link to elsewhere")
        with suppress(FileExistsError):
            open(self.path, "xb").close()
        try:
            stream, self._has_lock = _open(self.path, self._has_lock)
        except FileNotFoundError as error:
            raise BlockingIOError("another job has just removed it") from error
        try:
            if self._has_lock:
                if not os.path.exists(self.path) or not os.path.samestat(os.fstat(stream.fileno()), self.path.stat()):
                    raise BlockingIOError("another job has just removed it")
            else:
                self.lease = Lease(self.path.parent)
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
        line = line_of(job)
        with open(self.path, "wb") as stream:
            stream.write(line)
            stream.flush()
            os.fsync(stream.fileno())
        return len(line)

    def remove(self) -> None:
        """Delete the journal and release it: its shards are published or discarded."""
        if self._has_lock:  # it still holds, and the next job looks only for a journal
            self.lease.release()
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Release the lock and the lease."""
        self.lease.release()
        if self._stream:
            self._stream.close()
        self._stream = None


def _open(path: Path, with_lock: bool, mode: Literal["rb", "r+b"] = "rb") -> tuple[FileIO, bool]:
    """Open a file, `with_lock` if its disk has locks. Return whether it is locked. Raises BlockingIOError as `lock`."""
    # For reading: a mounted bucket would show a file again that is removed while it is open for writing.
    stream = open(path, mode, buffering=0)  # noqa: SIM115 - the journal closes it
    try:
        if with_lock:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return stream, with_lock
    except OSError as error:
        is_nfs = error.errno == errno.EBADF and mode == "rb"  # it locks only what is open for writing
        if error.errno in _NO_LOCKS and not is_nfs:
            return stream, False
        stream.close()
        if not is_nfs:
            raise
    return _open(path, with_lock, "r+b")
