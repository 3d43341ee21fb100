"""Estimate the cost of a job on this machine, from the jobs that were done here before."""

import hashlib
import heapq
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from sharding.core.events import Progress
from sharding.core.limits import BATCH_BYTES, HUB_JOB_ANON_BYTES
from sharding.core.text import count, format_bytes
from sharding.desk.jobs import JobRecord

_HASHED_BYTES = 16 * BATCH_BYTES


@dataclass(frozen=True, slots=True)
class Forecast:
    """The expected cost of a job. If `at_least`, `seconds` is a lower bound. `basis` explains the estimate."""

    seconds: float
    at_least: bool
    peak_anon_bytes: int
    disk_bytes: int
    basis: str


def forecast(total_bytes: int, finished: Iterable[JobRecord], hashed_per_second: float) -> Forecast:
    """Return the expected cost of a job of `total_bytes`, from the `finished` jobs of this machine.

    Before the first job is done, the time follows from `hashed_per_second`, the bytes that SHA-256 takes in here.
    """
    done = [record for record in finished if record.state == "done" and record.seconds]
    rate = bytes_per_second(done)
    if rate is None:
        basis = (
            "No job has been done here yet, so the time counts only SHA-256. It runs at "
            f"{format_bytes(hashed_per_second)}/s in one thread on this machine. A job hashes every byte twice, in two "
            "threads at best. The network takes more time. Memory and disk were measured on another machine."
        )
        return Forecast(total_bytes / hashed_per_second, True, HUB_JOB_ANON_BYTES, 0, basis)
    return Forecast(
        seconds=total_bytes / rate,
        at_least=False,
        peak_anon_bytes=max(record.peak_anon_bytes or 0 for record in done),
        disk_bytes=max(record.disk_bytes_written or 0 for record in done),
        basis=f"From {count(len(done), 'job')} done here lately, at a median rate of {format_bytes(rate)}/s. "
        "Memory and disk are the most that any job took.",
    )


def measure_hashing() -> float:
    """Return how many bytes per second SHA-256 takes in here, on one core. Takes a few hundredths of a second."""
    block = bytes(BATCH_BYTES)
    digest = hashlib.sha256()
    started = time.perf_counter()
    for _ in range(_HASHED_BYTES // BATCH_BYTES):
        digest.update(block)
    return _HASHED_BYTES / (time.perf_counter() - started)


def bytes_per_second(finished: Iterable[JobRecord]) -> float | None:
    """Return the median rate of the jobs that were done, over all their phases, or None if there are none."""
    rates = [record.bytes / record.seconds for record in finished if record.seconds and record.state == "done"]
    return median(rates) if rates else None


def seconds_left(record: JobRecord, progress: Progress | None, rate: float | None, now: float) -> float | None:
    """Return how many seconds a job still needs, or None if that is unknown.

    There are two estimates: from the rate of its current phase, and from the `rate` of whole jobs. The longer counts.
    """
    whole = record.bytes / rate if rate else None
    if record.started is None:
        return whole
    known = [progress.seconds_left if progress else None, whole and max(whole - (now - record.started), 0.0)]
    return max((seconds for seconds in known if seconds is not None), default=None)


def seconds_until_start(left: Sequence[float | None], jobs_at_once: int) -> float | None:
    """Return in how many seconds the next job can start, or None if one of `left` is unknown.

    `left` are the seconds that the jobs before it still need, in the order of the queue.

    >>> seconds_until_start([30.0, 10.0, 5.0], 2)  # the third starts after 10 s and ends after 15
    15.0
    """
    free_at = [0.0] * jobs_at_once
    for seconds in left:
        if seconds is None:
            return None
        heapq.heapreplace(free_at, free_at[0] + seconds)
    return free_at[0]
