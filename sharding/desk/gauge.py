"""Measure what this machine needs to store and read a byte as a job does, in a process as a job has one."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

from pydantic import TypeAdapter, ValidationError

from sharding.core.environment import child_command, child_environment
from sharding.core.limits import BATCH_BYTES, HUB_BATCH_BYTES, THREADS

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
            child_command("sharding.desk.gauge"), capture_output=True, env=child_environment(), timeout=GAUGE_SECONDS
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


def main() -> None:
    """Print how long measuring took, and what a byte takes in one thread, both in seconds."""
    from sharding import job  # noqa: F401 - a job imports it, so its time belongs to the start

    started = time.monotonic()
    cost = seconds_per_byte(GAUGED_BYTES)
    sys.stdout.write(json.dumps([time.monotonic() - started, cost]))


if __name__ == "__main__":
    main()
