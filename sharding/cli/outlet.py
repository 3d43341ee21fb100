"""Write what a command prints, whatever becomes of whoever reads it."""

import errno
import io
import os
import stat
import sys
from typing import TextIO

from sharding.core.errors import DestinationError


class Outlet(io.TextIOWrapper):
    """Standard output or error. Once it cannot be written, all that is written goes nowhere.

    Where its reader has gone away, that is no error, nor where it is standard error. Else whoever writes or flushes
    gets a DestinationError, once.
    """

    is_unread = False
    """Whether its reader has gone away."""

    def write(self, text: str) -> int:
        """Write `text`; return how many characters that are."""
        try:
            super().write(text)
        except OSError as error:
            self._give_up(error)
        return len(text)

    def flush(self) -> None:
        """Have all that was written on its way."""
        try:
            super().flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        is_terminal = stat.S_ISCHR(os.fstat(self.fileno()).st_mode)
        self.is_unread = isinstance(error, ConnectionError) or (is_terminal and error.errno == errno.EIO)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        if not self.is_unread and self.fileno() == 1:
            message = f"Standard output cannot be written: {error.strerror}."
            raise DestinationError(
                message, "Send it elsewhere, or free some room. What is finished is kept."
            ) from error


def open_outlets() -> None:
    """Have what this process prints written so, and to /dev/null where standard output or error is closed."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:  # else the next file that is opened would be printed to
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stdout is sys.__stdout__:
        sys.stdout = _outlet(1, sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _outlet(2, sys.stderr)


def _outlet(descriptor: int, stream: TextIO | None) -> Outlet:
    # Bytes are written in C: a signal that comes right after does not have them written again.
    return Outlet(
        io.BufferedWriter(io.FileIO(descriptor, "wb", closefd=False)),
        encoding=getattr(stream, "encoding", "utf-8"),
        errors="backslashreplace",  # what a terminal's encoding cannot hold
        line_buffering=getattr(stream, "line_buffering", True),
    )
