"""Measure the time and the peak anonymous memory of this process while a job runs."""

import os
import time
from threading import Event, Thread
from typing import Self

import psutil

_SAMPLE_SECONDS = 0.02
_STATUS = "/proc/{}/status"


class Meter:
    """Samples the anonymous memory of this process fifty times a second: RssAnon of proc(5), else as psutil has it."""

    def __init__(self) -> None:
        self.anon_bytes = 0
        self.peak_anon_bytes = 0
        self._started = time.monotonic()
        self._stop = Event()
        self._thread = Thread(target=self._sample, name="meter", daemon=True)

    @property
    def seconds(self) -> float:
        """Wall time in seconds since this meter was created."""
        return time.monotonic() - self._started

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while True:
            self.anon_bytes = anon_bytes()
            self.peak_anon_bytes = max(self.peak_anon_bytes, self.anon_bytes)
            if self._stop.wait(_SAMPLE_SECONDS):
                return


def anon_bytes(pid: int | None = None) -> int:
    """Return the resident anonymous memory in bytes of process `pid` (None: this process); 0 if it has ended."""
    try:
        with open(_STATUS.format(pid or "self"), "rb") as status:
            for line in status:
                if line.startswith(b"RssAnon:"):
                    return int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError):
        pass
    try:
        return int(psutil.Process(pid).memory_full_info().uss)
    except psutil.Error:
        return 0


def stand_in() -> str:
    """Return what is measured on a system that does not report anonymous memory; "" if the system reports it."""
    return "" if os.path.exists(_STATUS.format("self")) else "psutil's unique or resident set size"
