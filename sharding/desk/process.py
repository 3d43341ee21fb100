"""Run the command line in a child process, with limits on its output."""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread, Timer
from typing import IO

import psutil

from sharding.core.environment import child_command, child_environment
from sharding.core.limits import EVENT_BYTES, STDERR_BYTES

STOP_SECONDS = 5.0
"""Time that a job gets to stop before it is killed."""


class Child:
    """`python -m sharding …` in a session of its own. The token is in its environment and nowhere else."""

    def __init__(self, arguments: Sequence[str], folder: Path, endpoint: str, token: str) -> None:
        """Start it in `folder`, which is also its home."""
        for name in ("here", "home", "tmp"):
            (folder / name).mkdir(exist_ok=True)
        environment = {
            **child_environment(),
            "HOME": str(folder / "home"),
            "HF_HOME": str(folder / "home"),
            "TMPDIR": str(folder / "tmp"),
            "HF_ENDPOINT": endpoint,
            "HF_TOKEN": token,
        }
        self._token = token.encode()
        self._process = subprocess.Popen(
            child_command("sharding", *arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=folder / "here",  # empty, so that no folder is mistaken for a repo of the same name
            start_new_session=True,
        )
        assert self._process.stdout and self._process.stderr
        self._output: IO[bytes] = self._process.stdout
        self._tail = bytearray()
        self._reader = Thread(target=self._keep_tail, args=[self._process.stderr], name="stderr", daemon=True)
        self._reader.start()

    @property
    def identity(self) -> tuple[int, float] | None:
        """Id and start time of the process, which together are unique. None if it is gone."""
        with suppress(psutil.NoSuchProcess):
            return self._process.pid, psutil.Process(self._process.pid).create_time()
        return None

    def lines(self) -> Iterator[bytes]:
        """Yield its output, line by line, until it ends. Raises ValueError if a line is too long."""
        while line := self._output.readline(EVENT_BYTES + 1):
            if len(line) > EVENT_BYTES:
                raise ValueError("the line is too long")
            yield line.replace(self._token, b"[token]")

    def stop(self) -> None:
        """Ask it to stop, and kill it if it has not ended a little later. Does not wait."""
        self._signal(signal.SIGTERM)
        timer = Timer(STOP_SECONDS, self.kill)
        timer.daemon = True
        timer.start()

    def kill(self) -> None:
        """Kill it now, with all processes that it has started."""
        self._signal(signal.SIGKILL)

    def wait(self) -> int:
        """Wait until it has ended, and return its exit status. A negative one is the signal that killed it."""
        self._output.close()
        try:
            status = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            status = self._process.wait()
        self._reader.join(STOP_SECONDS)
        return status

    @property
    def last_words(self) -> str:
        """The last line that it printed to standard error."""
        lines = self._tail.replace(self._token, b"[token]").decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _keep_tail(self, stream: IO[bytes]) -> None:
        with stream:
            while chunk := stream.read1(STDERR_BYTES):  # type: ignore[attr-defined]
                self._tail += chunk
                del self._tail[:-STDERR_BYTES]


def kill_stray(identity: tuple[int, float]) -> None:
    """Kill a process that an earlier desk left behind, with its whole session, if it still runs."""
    number, started = identity
    with suppress(psutil.NoSuchProcess, ProcessLookupError):
        if psutil.Process(number).create_time() == started:
            os.killpg(number, signal.SIGKILL)
