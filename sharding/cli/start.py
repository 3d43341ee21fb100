"""Start a command, even without enough memory to import it or a working output."""

import errno
import io
import json
import os
import stat
import sys
from contextlib import suppress
from typing import TextIO

from sharding.core.errors import DestinationError, Fault, ShardingError, unforeseen
from sharding.core.threads import share_memory


def main() -> None:
    """Run a command. Exit with status 3 if memory is too small to start, or if the output cannot be written."""
    _open_outlets()
    share_memory()
    try:
        try:
            from sharding.cli import commands

            commands.main()
        finally:
            sys.stdout.flush()
    except Exception as error:
        lack = error if isinstance(error, ShardingError) else unforeseen(error)
        if isinstance(lack, Fault):
            raise
        print(lack.message, lack.hint, sep="\n", file=sys.stderr)
        if {"--json", "--events"} & set(sys.argv):
            with suppress(ShardingError):
                print(json.dumps({"error": lack.document()}), flush=True)
        sys.exit(lack.exit_status)


class _Outlet(io.TextIOWrapper):
    """An output. After the first failed write, everything goes to /dev/null. On standard output that write raises
    DestinationError, unless its reader has gone away."""

    is_unread = False  # Whether the reader has gone away.

    def write(self, text: str) -> int:
        try:
            super().write(text)
        except OSError as error:
            self._give_up(error)
        return len(text)

    def flush(self) -> None:
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
            hint = "Free some space, or send the output elsewhere. What is finished is kept."
            raise DestinationError(f"Standard output cannot be written: {error.strerror}.", hint) from error


def _open_outlets() -> None:
    """Replace standard output and standard error with outlets. One that is closed goes to /dev/null."""
    # A closed descriptor would go to the next file that is opened, and so would the output.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stdout is sys.__stdout__:
        sys.stdout = _outlet(1, sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _outlet(2, sys.stderr)


def _outlet(descriptor: int, stream: TextIO | None) -> _Outlet:
    # C code writes the bytes, so a signal right after a write cannot repeat it.
    return _Outlet(
        io.BufferedWriter(io.FileIO(descriptor, "wb", closefd=False)),
        encoding=getattr(stream, "encoding", "utf-8"),
        errors="backslashreplace",  # for characters that the terminal's encoding lacks
        line_buffering=getattr(stream, "line_buffering", True),
    )
