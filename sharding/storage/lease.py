"""Hold a folder that machines share, where no lock is to be relied on: by a file that its holder renews."""

import os
import socket
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from uuid import uuid4

import psutil

from sharding.core.limits import LEASE_SECONDS

LEASE_NAME = "sharding_lease.part"


class Lease:
    """A file that says who holds a folder. One that is not renewed, or whose process has ended here, holds nothing.

    Methods raise OSError as files do.
    """

    def __init__(self, folder: Path) -> None:
        """Take the lease of `folder`, there or not. Opens nothing."""
        self._path = folder / LEASE_NAME
        self._text = ""
        self._over = Event()

    def take(self) -> None:
        """Hold the folder and begin to renew. Raises BlockingIOError while another job holds it."""
        self.clear()
        text = f"{socket.gethostname()} {os.getpid()} {psutil.Process().create_time()} {uuid4().hex}"
        try:
            with open(self._path, "x") as file:  # at most one succeeds, over NFS too
                file.write(text)
        except FileExistsError as error:
            raise BlockingIOError(f"{self._path} is there") from error
        self._text = text
        Thread(target=self._renew, name="lease", daemon=True).start()

    def clear(self) -> None:
        """Remove a lease that holds nothing any more. Raises BlockingIOError while another job holds the folder."""
        with suppress(FileNotFoundError):
            text = self._path.read_text()
            if self._is_alive(text):
                raise BlockingIOError(f"{text.partition(' ')[0]} holds {self._path.parent}")
            aside = self._path.with_suffix(f".{uuid4().hex}.part")
            self._path.rename(aside)
            if aside.read_text() != text:  # another job was quicker, and this is its new one
                aside.rename(self._path)
                raise BlockingIOError(f"{self._path} is new")
            aside.unlink()

    @property
    def is_lost(self) -> bool:
        """Whether another job has taken the folder over, as after a sleep of this machine."""
        return bool(self._text) and not self._is_own()

    def refuse_lost(self) -> None:
        """Raise OSError where the lease is lost."""
        if self.is_lost:
            raise OSError("another job has taken it over meanwhile")

    def release(self) -> None:
        """Let go of the folder."""
        self._over.set()
        if self._text and self._is_own():
            self._path.unlink(missing_ok=True)
        self._text = ""

    def _is_own(self) -> bool:
        with suppress(OSError):
            return self._path.read_text() == self._text
        return False

    def _is_alive(self, text: str) -> bool:
        host, pid, began, *_ = (*text.split(), "", "", "")
        if host == socket.gethostname() and pid.isdecimal():
            with suppress(psutil.NoSuchProcess):
                return str(psutil.Process(int(pid)).create_time()) == began
            return False
        return self._now() - self._path.stat().st_mtime < LEASE_SECONDS

    def _now(self) -> float:
        """Return the time by the clock that gives the folder's files theirs."""
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
