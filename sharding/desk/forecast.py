"""Estimate what a job costs on this machine, from a measurement in a process of its own and from jobs done here."""

import hashlib
import heapq
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from math import ceil, floor, inf, sqrt
from statistics import median

from pydantic import TypeAdapter, ValidationError

from sharding.core.environment import child_command, child_environment
from sharding.core.events import Progress
from sharding.core.limits import BATCH_BYTES, HUB_BATCH_BYTES, RANGES_AT_ONCE, THREADS
from sharding.core.text import count, format_bytes
from sharding.core.values import Content, Plan
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


GAUGED_BYTES = 32 << 20  # Bytes that are stored and read to measure this machine. They take half a second.
GAUGE_SECONDS = 20.0  # Longest time to measure this machine. A sound one takes one to two seconds.


@dataclass(frozen=True, slots=True)
class Machine:
    """What a job takes here without its Hub: the start of its process, and the bytes that it moves in a second."""

    start_seconds: float
    bytes_per_second: float


_GAUGED = TypeAdapter(tuple[float, float])


@cache
def this_machine() -> "Future[Machine | None]":
    """Return what `measure_machine` finds. The first call starts to measure, and the page measures only once."""
    return ThreadPoolExecutor(1, thread_name_prefix="gauge").submit(measure_machine)


def measure_machine() -> Machine | None:
    """Return what this machine can do, or None if it cannot be measured. Takes about a second."""
    started = time.monotonic()
    try:
        done = subprocess.run(
            child_command("sharding.desk.forecast"), capture_output=True, env=child_environment(), timeout=GAUGE_SECONDS
        )
        seconds = time.monotonic() - started
        gauge_seconds, thread_seconds_per_byte = _GAUGED.validate_json(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValidationError):
        return None
    cores = min(THREADS, os.cpu_count() or 1)
    return Machine(max(seconds - gauge_seconds, 0.0), cores / thread_seconds_per_byte)


def seconds_per_byte(count: int) -> float:
    """Return what a byte takes in one thread. Half of `count` is random, which nothing packs, half are zeros."""
    from blake3 import blake3
    from hf_xet import XetFileInfo

    from sharding.storage.hub.client import xet_session

    batches = [os.urandom(BATCH_BYTES) if number % 2 else bytes(BATCH_BYTES) for number in range(count // BATCH_BYTES)]
    size, digest, sha256 = BATCH_BYTES * len(batches), blake3(), hashlib.sha256()
    with tempfile.TemporaryDirectory(prefix="gauge-") as folder:
        session, store = xet_session(), f"local://{folder}"
        started = _now()
        commit = session.new_upload_commit(endpoint=store)
        stream = commit.start_upload_stream(name="gauge")
        for batch in batches:
            digest.update(batch)
            stream.write(batch)
        stored = stream.finish().xet_info
        commit.wait_to_finish()
        stored_at = _now()
        group = session.new_download_stream_group(endpoint=store)
        for start in range(0, size, HUB_BATCH_BYTES):
            info = XetFileInfo(stored.hash, size)
            for chunk in group.download_stream(info, start, min(size, start + HUB_BATCH_BYTES)):
                digest.update(chunk)
                sha256.update(chunk)
        read_at = _now()
    return (stored_at - started + 2 * (read_at - stored_at)) / size


def _now() -> float:
    """Return the mean of clock and processor time: a machine that is busy now may be less so later."""
    return (time.monotonic() + time.process_time()) / 2


@dataclass(frozen=True, slots=True)
class Work:
    """A job before it starts: the bytes of its source or its copy, whichever has more, the weight files of both, the
    machine (None: it could not be measured), and the Hub's time to answer.

    >>> work = Work(14_500_000_000, 2, 66, Machine(start_seconds=1.0, bytes_per_second=200e6), answer_seconds=0.05)
    >>> round(work.expected_seconds, 1)
    82.2
    """

    bytes: int
    source_files: int
    files: int
    machine: Machine | None
    answer_seconds: float

    @property
    def expected_seconds(self) -> float:
        """Its time if nothing else is known: its start, its requests one after another, and its bytes."""
        machine = self.machine or Machine(0.0, HUB_JOB_BYTES_PER_SECOND)
        headers = self.source_files * (1 / RANGES_AT_ONCE + 1 / THREADS)  # side by side, and once more to verify
        answers = JOB_ANSWERS + SHARD_ANSWERS * self.files + headers
        return machine.start_seconds + answers * self.answer_seconds + self.bytes / machine.bytes_per_second


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


def work_of(original: Content, made: Plan | Content, answer_seconds: float) -> Work:
    """Return the job that makes the plan `made` from `original`, or reads it and the copy `made` whole."""
    files = made.shards if isinstance(made, Plan) else made.weight_files
    size = max(original.input_bytes, made.total_bytes)
    return Work(size, len(original.weight_files), len(files), this_machine().result(), answer_seconds)


def forecast(work: Work, finished: Iterable[JobRecord]) -> Forecast:
    """Return the expected cost of a job, from what was measured, and from how long the `finished` jobs here took."""
    done = [record for record in finished if record.factor is not None]
    factor = correction(done)
    middle = work.expected_seconds * (1.0 if factor is None else factor)
    lower, upper = range_around(middle)
    if factor is None:
        return Forecast(lower, upper, HUB_JOB_ANON_BYTES, 0, _basis(work))
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


def _basis(work: Work) -> str:
    machine = work.machine
    here = "This machine copies" if machine else "This machine could not be measured. Another one copied"
    rate = format_bytes(machine.bytes_per_second if machine else HUB_JOB_BYTES_PER_SECOND)
    answers = f"{1000 * work.answer_seconds:.0f} ms"
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


def main() -> None:
    """Print how long measuring took, and what a byte takes in one thread, both in seconds."""
    from sharding import job  # noqa: F401 - a job imports it, so its time belongs to the start

    started = time.monotonic()
    cost = seconds_per_byte(GAUGED_BYTES)
    sys.stdout.write(json.dumps([time.monotonic() - started, cost]))


if __name__ == "__main__":
    main()
