"""Clusters of Ray on this machine to measure with: their start is no part of what is measured."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psutil
from huggingface_hub import HfApi

from harness.hubs import TOKEN, HubState
from harness.processes import ROOT, Surroundings

_SAMPLE_SECONDS = 0.25


@dataclass(slots=True)
class Cluster:
    """A cluster that runs: its address, and the processor seconds of processes that have done parts, by their id."""

    address: str
    worker_cpu_seconds: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Led:
    """Surroundings for a run that makes `result`: a Hub, and a cluster that takes so many parts at a time (0: none).

    Afterwards what was told of every run: its report, and the processor seconds of its workers.
    """

    hub: HubState
    result: str
    workers: int
    reports: list[dict[str, Any]] = field(default_factory=list)
    worker_cpu_seconds: list[float] = field(default_factory=list)

    @contextmanager
    def __call__(self) -> Iterator[Surroundings]:
        """Serve, and have the cluster run, while the block lasts."""
        with ExitStack() as stack:
            around = stack.enter_context(self.hub())
            cluster = stack.enter_context(ray_cluster(self.workers)) if self.workers else None
            environment = dict(around.environment or {}) | ({"RAY_ADDRESS": cluster.address} if cluster else {})
            yield Surroundings(environment, around.folder)
            api = HfApi(environment["HF_ENDPOINT"], TOKEN)
            report = api.hf_hub_download(self.result, "sharding_report.json", local_dir=around.folder)
            self.reports.append(json.loads(Path(report).read_text()))
            self.worker_cpu_seconds.append(sum(cluster.worker_cpu_seconds.values()) if cluster else 0.0)


@contextmanager
def ray_cluster(processors: int) -> Iterator[Cluster]:
    """Yield a cluster of one node that takes so many parts at a time, with nobody's login and nothing in its cache."""
    folder = Path(tempfile.mkdtemp(prefix="ray-"))  # short: the paths of sockets have a bound
    environment = {
        **{"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"},
        # Else Ray puts the address of this machine for 127.0.0.1, where it is not reached.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_TMPDIR": str(folder),
    }
    try:
        with (
            open(folder / "log", "wb") as log,
            subprocess.Popen(
                [sys.executable, str(ROOT / "bench/harness/ray_node.py"), str(processors)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                cwd=folder,
                start_new_session=True,
            ) as leader,
        ):
            assert leader.stdout
            try:
                if not (address := leader.stdout.readline().strip()):
                    raise RuntimeError(f"The cluster of Ray did not start: {(folder / 'log').read_text()[-2000:]}")
                with _counting(Cluster(address), psutil.Process(leader.pid)) as cluster:
                    yield cluster
            finally:
                with suppress(subprocess.TimeoutExpired):
                    leader.communicate(timeout=30)  # whoever holds its standard input no more ends it
                with suppress(ProcessLookupError):
                    os.killpg(leader.pid, signal.SIGKILL)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _counting(cluster: Cluster, leader: psutil.Process) -> Iterator[Cluster]:
    """Note four times a second what the workers of `cluster` have computed: they end with the job, and tell nobody."""
    stop = Event()

    def count() -> None:
        while not stop.wait(_SAMPLE_SECONDS):
            for process in leader.children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    # Ray names a process after what it does; one that waits for its first part is not counted.
                    if process.pid in cluster.worker_cpu_seconds or "ray::enter" in process.cmdline():
                        times = process.cpu_times()
                        cluster.worker_cpu_seconds[process.pid] = times.user + times.system

    thread = Thread(target=count, name="counter")
    thread.start()
    try:
        yield cluster
    finally:
        stop.set()
        thread.join()
