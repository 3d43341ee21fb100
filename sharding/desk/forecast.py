"""Estimate the cost of a job on this machine, and of loading the model and saving it again instead."""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor, inf, sqrt
from statistics import median

from sharding.core.events import Progress
from sharding.core.limits import RANGES_AT_ONCE, THREADS
from sharding.core.text import count, format_bytes
from sharding.core.values import Content, Plan
from sharding.desk.gauge import Machine
from sharding.desk.jobs import JobRecord
from sharding.loading.costs import CLASSIC_WAY
from sharding.loading.measure import BASE_ANON_BYTES

HUB_JOB_ANON_BYTES = 427_000_000
"""Measured peak of a job between two Hub repos: 3 GB in shards of 1 GB over a slow upload, all of it new."""

HUB_JOB_BYTES_PER_SECOND = 250_000_000  # On two cores of another machine, if this one cannot be measured.
JOB_ANSWERS = 40  # Requests that wait for one another, as a Hub's log counts: login, repos, branches, commits.
SHARD_ANSWERS = 2  # Requests of a job that wait for one another, for each file that it writes.
_SPREAD = sqrt(2)  # How far the ends of a range are from its middle: the upper end is twice the lower.
_STEPS = ((20, 1), (60, 2), (120, 5), (240, 10), (600, 30), (7200, 60), (inf, 600))  # Ends and rounding, in seconds.
CLASSIC_TIMES = 2.3
"""How many times as long the usual way takes without a network. In bench/RESULTS.md: 2.1 to 3.3, of ranks up to 6.7."""

STATED_TIMES = 0.75
"""How many times as long a job takes that reads only a sample: 0.6 behind a line of 50 MB/s, 0.9 without a limit."""
MOST_SECONDS = 1e9  # No range is around a longer time, which no job takes. A broken rate may name any time.


@dataclass(frozen=True, slots=True)
class Work:
    """The size of a job: the bytes of its source or its copy, whichever has more, and the weight files of both."""

    bytes: int
    source_files: int
    files: int


@dataclass(frozen=True, slots=True)
class Rates:
    """What was measured before a job: the machine (None: it could not be measured), and the Hub's time to answer."""

    machine: Machine | None
    answer_seconds: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """The expected cost of a job, or of another `way`, and what that rests on. `mapped_bytes` are in the page cache."""

    lower_seconds: float
    upper_seconds: float
    peak_anon_bytes: int
    disk_bytes: int
    basis: str = ""
    mapped_bytes: int = 0
    way: str = ""


def work_of(original: Content, made: Plan | Content) -> Work:
    """Return the size of the job that makes the plan `made` from `original`, or reads it and the copy `made` whole."""
    files = made.shards if isinstance(made, Plan) else made.weight_files
    return Work(max(original.input_bytes, made.total_bytes), len(original.weight_files), len(files))


def expected_seconds(work: Work, rates: Rates) -> float:
    """Return the time of a job as `rates` alone let expect it: its start, its requests one after another, its bytes.

    >>> rates = Rates(Machine(start_seconds=1.0, bytes_per_second=200e6), answer_seconds=0.05)
    >>> round(expected_seconds(Work(14_500_000_000, source_files=2, files=66), rates), 1)
    82.2
    """
    machine = rates.machine or Machine(0.0, HUB_JOB_BYTES_PER_SECOND)
    headers = work.source_files * (1 / RANGES_AT_ONCE + 1 / THREADS)  # side by side, and once more to verify
    answers = JOB_ANSWERS + SHARD_ANSWERS * work.files + headers
    return machine.start_seconds + answers * rates.answer_seconds + work.bytes / machine.bytes_per_second


def forecast(work: Work, rates: Rates, finished: Iterable[JobRecord]) -> Forecast:
    """Return the expected cost of a job, from measured `rates`, and from how long the `finished` jobs here took."""
    done = [record for record in finished if record.factor is not None]
    factor = correction(done)
    middle = expected_seconds(work, rates) * (1.0 if factor is None else factor)
    lower, upper = range_around(middle)
    if factor is None:
        return Forecast(lower, upper, HUB_JOB_ANON_BYTES, 0, _basis(rates))
    return Forecast(
        lower,
        upper,
        peak_anon_bytes=max(record.peak_anon_bytes or 0 for record in done),
        disk_bytes=max(record.disk_bytes_written or 0 for record in done),
        basis=f"The time follows from {count(len(done), 'job')} done here lately, and from the number of files and "
        "bytes of this one. Memory and disk are the most that any job took. A comparison of loads takes extra time.",
    )


def range_around(middle: float) -> tuple[float, float]:
    """Return the ends of the range around `middle`, in seconds that read well. The upper is at most twice the lower.

    A negative time counts as none, and one above `MOST_SECONDS` as that.

    >>> range_around(85), range_around(700), range_around(0.2)
    ((70, 120), (540, 960), (1, 1))
    """
    middle = max(min(MOST_SECONDS, middle), 0.0)
    lower, upper = middle / _SPREAD, middle * _SPREAD
    step = next(step for end, step in _STEPS if upper < end)
    lower = max(ceil(lower / step), 1) * step
    return lower, max(floor(upper / step) * step, lower)


def _basis(rates: Rates) -> str:
    machine = rates.machine
    here = "This machine copies" if machine else "This machine could not be measured. Another one copied"
    rate = format_bytes(machine.bytes_per_second if machine else HUB_JOB_BYTES_PER_SECOND)
    answers = f"{1000 * rates.answer_seconds:.0f} ms"
    return (
        f"No job has been done here yet, so the time follows from two measurements. {here} {rate} a second. The Hub "
        f"answers within {answers}. A slower network takes longer, and so does a comparison of loads. Memory and disk "
        "were measured on another machine."
    )


def correction(finished: Iterable[JobRecord]) -> float | None:
    """Return how many times as long as expected the `finished` jobs took, as a median. None if there are none."""
    factors = [record.factor for record in finished if record.factor is not None]
    return median([1.0, *factors]) if factors else None


def seconds_left(record: JobRecord, progress: Progress | None, factor: float | None, now: float) -> float | None:
    """Return how long a job still needs: the longer of its present rate and what was expected, times `factor`."""
    expected = record.expected_seconds
    whole = None if expected is None else expected * (1.0 if factor is None else factor)
    if record.started is None:
        return whole
    ahead = None if whole is None else max(whole - (now - record.started), 0.0)
    known = [progress.seconds_left if progress else None, ahead]
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


def classic_forecast(checkpoint: Content, plan: Plan, ours: Forecast) -> Forecast | None:
    """Return the cost of the usual way to the copy that `plan` makes. None if transformers loads neither of both. The
    disk holds the download and the copy. What is computed is in memory at once, all else mapped."""
    way = next((change.peer for change in reversed(plan.made) if change.peer), CLASSIC_WAY)
    if not checkpoint.has_loadable_copy:
        return None
    if checkpoint.of_ranks:
        way = "all ranks in memory, then save_pretrained"
    tensors = [tensor for shard in plan.shards for tensor in shard.tensors]
    made = sum(tensor.bytes for tensor in tensors if checkpoint.of_ranks or not tensor.recipe.place)
    mapped, disk = 0 if checkpoint.of_ranks else checkpoint.total_bytes, checkpoint.input_bytes + plan.total_bytes
    times = ours.lower_seconds * CLASSIC_TIMES, ours.upper_seconds * CLASSIC_TIMES
    return Forecast(*times, BASE_ANON_BYTES + made, disk, mapped_bytes=mapped, way=way)
