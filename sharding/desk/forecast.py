"""Say what a job will probably cost on this machine, from what others have cost here; before the first, at least."""

import hashlib
import heapq
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from sharding.core.events import Progress
from sharding.core.limits import BATCH_BYTES, HUB_JOB_ANON_BYTES
from sharding.core.text import format_bytes
from sharding.desk.jobs import JobRecord

_HASHED_BYTES = 16 * BATCH_BYTES


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a job is expected to cost. `seconds` is a lower bound where `at_least`; `basis` says what that rests on."""

    seconds: float
    at_least: bool
    peak_anon_bytes: int
    disk_bytes: int
    basis: str


def forecast(total_bytes: int, finished: Iterable[JobRecord], hashed_per_second: float) -> Forecast:
    """Return what a job of `total_bytes` will cost, from jobs that were done here.

    Before the first there is only how fast this machine computes SHA-256, `hashed_per_second` in bytes.
    """
    done = [record for record in finished if record.state == "done" and record.seconds]
    rate = bytes_per_second(done)
    if rate is None:
        basis = (
            f"No job has been done here yet. SHA-256 runs at {format_bytes(hashed_per_second)}/s in one thread on this "
            "machine, twice over every byte, in two threads at best; what the network takes comes on top. Memory and "
            "disk are another machine's."
        )
        return Forecast(total_bytes / hashed_per_second, True, HUB_JOB_ANON_BYTES, 0, basis)
    return Forecast(
        seconds=total_bytes / rate,
        at_least=False,
        peak_anon_bytes=max(record.peak_anon_bytes or 0 for record in done),
        disk_bytes=max(record.disk_bytes_written or 0 for record in done),
        basis=f"From what was done here lately, jobs: {len(done)}. Their median rate is {format_bytes(rate)}/s; "
        "memory and disk are the most that any took.",
    )


def measure_hashing() -> float:
    """Return how many bytes a second SHA-256 takes in here, on one core. Takes some hundredths of a second."""
    block = bytes(BATCH_BYTES)
    digest = hashlib.sha256()
    started = time.perf_counter()
    for _ in range(_HASHED_BYTES // BATCH_BYTES):
        digest.update(block)
    return _HASHED_BYTES / (time.perf_counter() - started)


def bytes_per_second(finished: Iterable[JobRecord]) -> float | None:
    """Return the median rate of jobs that were done, whole jobs with all their phases; None where there is none."""
    rates = [record.bytes / record.seconds for record in finished if record.seconds and record.state == "done"]
    return median(rates) if rates else None


def seconds_left(record: JobRecord, progress: Progress | None, rate: float | None, now: float) -> float | None:
    """Return how long a job will still take: by its phase's own rate and by the `rate` of whole jobs, the longer one.

    None where neither is known.
    """
    whole = record.bytes / rate if rate else None
    if record.started is None:
        return whole
    known = [progress.seconds_left if progress else None, whole and max(whole - (now - record.started), 0.0)]
    return max((seconds for seconds in known if seconds is not None), default=None)


def seconds_until_start(left: Sequence[float | None], jobs_at_once: int) -> float | None:
    """Return when the next job may start, from the seconds `left` of those before it, in their order.

    >>> seconds_until_start([30.0, 10.0, 5.0], 2)  # the third starts after 10 s and ends after 15
    15.0

    None where one of them is unknown.
    """
    free_at = [0.0] * jobs_at_once
    for seconds in left:
        if seconds is None:
            return None
        heapq.heapreplace(free_at, free_at[0] + seconds)
    return free_at[0]
