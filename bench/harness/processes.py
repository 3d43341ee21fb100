"""Run one command as a process of its own and say what it cost."""

import resource
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

import psutil

from harness.cgroup import memory_cgroup, reason_for_none

ROOT = Path(__file__).resolve().parents[2]

_SAMPLE_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run of a command took, with all processes that it started.

    `peak_anon_bytes` is the largest of `samples` sums of `RssAnon` (proc(5)). `peak_cgroup_bytes` counts the
    page cache too; None where no cgroup can be made. `others_cpu_seconds` is what everybody else on the
    machine used meanwhile, kernel threads that write to the disk included.
    """

    exit_status: int
    seconds: float
    cpu_seconds: float
    others_cpu_seconds: float
    peak_anon_bytes: int
    peak_cgroup_bytes: int | None
    samples: int
    curve: tuple[tuple[float, int], ...] = ()
    """Seconds since the start, and anonymous bytes then."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The environment (None: this process's) and the working directory of a command."""

    environment: Mapping[str, str] | None = None
    folder: Path = ROOT


class CommandFailed(Exception):
    """A command ended with another exit status than 0."""


def run(command: tuple[str, ...], *, limit_bytes: int | None = None, surroundings: Surroundings | None = None) -> Cost:
    """Run `command` in `surroundings` (the root of the project), its standard output thrown away.

    With `limit_bytes` it runs in a memory cgroup of that size, and failing in there is a result like any
    other. Raises CommandFailed where it fails without a limit, OSError where the limit cannot be set.
    """
    around = surroundings or Surroundings()
    with ExitStack() as stack:
        cgroup = None
        if limit_bytes is not None or reason_for_none() is None:
            cgroup = stack.enter_context(memory_cgroup(limit_bytes))
        errors = stack.enter_context(tempfile.TemporaryFile())
        cpu_seconds, busy_seconds, started = _cpu_seconds(), _busy_seconds(), time.perf_counter()
        process = subprocess.Popen(
            cgroup.enter(command) if cgroup else command,
            cwd=around.folder,
            env=around.environment,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
        with _Sampler(process.pid) as sampler:
            exit_status = process.wait()
            seconds = time.perf_counter() - started
            cpu_seconds, busy_seconds = _cpu_seconds() - cpu_seconds, _busy_seconds() - busy_seconds
        if exit_status and limit_bytes is None:
            errors.seek(0)
            raise CommandFailed(f"{command} ended with {exit_status}: {errors.read()[-2000:].decode(errors='replace')}")
        return Cost(
            exit_status=exit_status,
            seconds=seconds,
            cpu_seconds=cpu_seconds,
            others_cpu_seconds=max(0.0, busy_seconds - cpu_seconds),
            peak_anon_bytes=sampler.peak_anon_bytes,
            peak_cgroup_bytes=cgroup.peak_bytes if cgroup else None,
            samples=sampler.samples,
            curve=tuple(sampler.curve),
        )


class Others:
    """What everybody else on the machine uses from now on. Our own processes must have ended when it is asked."""

    def __init__(self) -> None:
        """Start to count."""
        self._cpu, self._busy, self._started = _cpu_seconds(), _busy_seconds(), time.perf_counter()

    def cores(self) -> float:
        """Return how many cores they used since the start, on average."""
        busy, ours = _busy_seconds() - self._busy, _cpu_seconds() - self._cpu
        return max(0.0, busy - ours) / (time.perf_counter() - self._started)


class _Sampler:
    """A context that samples the anonymous memory of a process and its descendants a hundred times a second."""

    def __init__(self, pid: int) -> None:
        self.peak_anon_bytes = 0
        self.samples = 0
        self.curve: list[tuple[float, int]] = []
        self._pid = pid
        self._started = time.perf_counter()
        self._stop = Event()
        self._thread = Thread(target=self._sample, name="sampler")

    def __enter__(self) -> "_Sampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(_SAMPLE_SECONDS):
            anon_bytes = _tree_anon_bytes(self._pid)
            self.peak_anon_bytes = max(self.peak_anon_bytes, anon_bytes)
            self.samples += 1
            self.curve.append((time.perf_counter() - self._started, anon_bytes))


def _tree_anon_bytes(pid: int) -> int:
    try:
        total_bytes = _anon_bytes(pid)
        for task in Path(f"/proc/{pid}/task").iterdir():
            total_bytes += sum(_tree_anon_bytes(int(child)) for child in (task / "children").read_text().split())
        return total_bytes
    except (FileNotFoundError, ProcessLookupError):  # it ended while it was looked at
        return 0


def _anon_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/status", "rb") as status:
        for line in status:
            if line.startswith(b"RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0  # a zombie has no memory


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)  # guest is in user already


def _cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime
