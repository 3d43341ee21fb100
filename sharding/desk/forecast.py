"""Say what a job will probably cost on this machine, from what others have cost here. Pure."""

import heapq
from collections.abc import Iterable, Sequence
from statistics import median

from sharding.desk.jobs import JobRecord


def bytes_per_second(finished: Iterable[JobRecord]) -> float | None:
    """Return the median rate of jobs that were done, whole jobs with all their stages; None where there is none."""
    rates = [record.bytes / record.seconds for record in finished if record.seconds and record.state == "done"]
    return median(rates) if rates else None


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
