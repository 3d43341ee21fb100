"""A Ray cluster of two nodes on this machine, in processes of its own, which see no login and surely end.

`python -m tests.clusters OTHER` is that cluster: it says where it is in a line of JSON, and ends when nobody
holds its standard input any more. The package that nodes import is this one; in the second node it is that in OTHER,
where a folder is named.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

_T = TypeVar("_T")
ROOT = Path(__file__).parent.parent
PATIENCE_SECONDS = 120
"""How long anything is waited for that takes a second or two: then something is broken."""


@dataclass(frozen=True)
class Node:
    """One node: how events name it, and the process that runs its workers."""

    name: str
    raylet: psutil.Process

    def kill(self) -> None:
        self.raylet.suspend()  # it starts no other process meanwhile
        kill([*self.raylet.children(recursive=True), self.raylet])


@dataclass(frozen=True)
class Cluster:
    """A cluster that runs. Ray's own files, its logs among them, are below `folder`."""

    address: str
    nodes: tuple[Node, ...]
    folder: Path
    session: int

    def processes(self) -> list[psutil.Process]:
        return of_session(self.session)


@contextmanager
def cluster(other: Path | None = None) -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="ray-"))  # short: the paths of sockets have a bound
    command = [sys.executable, "-m", "tests.clusters", str(other or "")]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    pipes |= {"env": without_login(folder), "cwd": folder, "start_new_session": True}
    try:
        with (folder / "cluster.log").open("wb") as log:
            process = subprocess.Popen(command, stderr=log, **pipes)
        try:
            assert process.stdout
            line = process.stdout.readline()
            assert line, (folder / "cluster.log").read_text()[-3000:]
            told = json.loads(line)
            nodes = tuple(Node(node["name"], psutil.Process(node["raylet"])) for node in told["nodes"])
            yield Cluster(told["address"], nodes, folder, process.pid)
        finally:
            end(process)
    finally:
        shutil.rmtree(folder)


def without_login(home: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "MKL_CBWR": os.environ["MKL_CBWR"],  # else products have other bits than here
        "RAY_TMPDIR": str(home),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Else Ray puts the address of this machine for 127.0.0.1, where it is not reached.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    }


def of_session(session: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    wait_until(lambda: not any(is_alive(process) for process in processes))


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs: one that only waits to be noticed by its parent does not."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def end(leader: subprocess.Popen[str]) -> None:
    """Kill whatever is left of the session that `leader` leads, and return when nothing is."""
    while left := of_session(leader.pid):
        kill(left)
    leader.communicate()


def wait_until(condition: Callable[[], _T]) -> _T:
    """Return what `condition` returns once that is true; fail where it does not come to that."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def main() -> None:
    from ray.cluster_utils import Cluster as RayCluster

    (other,) = sys.argv[1:]
    common = {"node_ip_address": "127.0.0.1", "num_cpus": 1, "object_store_memory": 80_000_000}
    head = {**common, "include_dashboard": False}
    ray_cluster = RayCluster(initialize_head=True, head_node_args=head)
    second = ray_cluster.add_node(**common, env_vars={"PYTHONPATH": other} if other else None)
    nodes = []
    for node in (ray_cluster.head_node, second):
        raylet = node.all_processes["raylet"][0].process.pid
        nodes.append({"name": f"127.0.0.1 ({node.node_id[:8]})", "raylet": raylet})
    print(json.dumps({"address": ray_cluster.address, "nodes": nodes}), flush=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever holds the other end of the pipe decides
    sys.stdin.read()
    ray_cluster.shutdown()


if __name__ == "__main__":
    main()
