"""Turn bytes done so far into a rate and a time left."""

from collections import deque
from collections.abc import Generator
from dataclasses import replace
from typing import TypeVar

from sharding.core.events import Phase, Progress
from sharding.core.limits import PROGRESS_SECONDS

_T = TypeVar("_T")
_SAMPLES = 50
"""With `PROGRESS_SECONDS` between two, the rate covers the last five seconds or more."""


class Pace:
    """The progress of one phase. You pass the time in."""

    def __init__(self, phase: Phase, bytes_total: int, now: float, every: float = PROGRESS_SECONDS) -> None:
        """Start at zero of `bytes_total` bytes at the time `now`, in seconds of any steady clock.

        There is at most one event in `every` seconds, except the last.
        """
        self._every = every
        self._phase: Phase = phase
        self._total = bytes_total
        self._done = 0
        self._samples: deque[tuple[float, int]] = deque([(now, 0)], maxlen=_SAMPLES)

    def add(self, count: int, now: float, file: str = "") -> Progress | None:
        """Count `count` bytes more; return an event, or None if the last one is too recent."""
        self._done += count
        if now - self._samples[-1][0] < self._every and self._done < self._total:
            return None
        self._samples.append((now, self._done))
        first_time, first_bytes = self._samples[0]
        rate = (self._done - first_bytes) / (now - first_time) if now > first_time else 0.0
        left = (self._total - self._done) / rate if rate > 0 else None
        return Progress(self._phase, self._done, self._total, file, rate, left)


def progress_of_part(work: Generator[Progress, None, _T], before: int, total: int) -> Generator[Progress, None, _T]:
    """Yield the progress of `work` as part of a phase of `total` bytes; return what `work` returns.

    `before` is how many bytes of the phase were done before `work`.
    """
    passed = last = 0
    while True:
        try:
            progress = next(work)
        except StopIteration as end:
            result: _T = end.value
            return result
        if progress.bytes_done < last:  # a count that restarts is the next part of the work
            passed += last
        last = progress.bytes_done
        done = min(before + passed + last, total)
        left = (total - done) / progress.bytes_per_second if progress.bytes_per_second else None
        yield replace(progress, bytes_done=done, bytes_total=total, seconds_left=left)
