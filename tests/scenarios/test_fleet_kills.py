"""Workers, nodes and the command itself are killed with -9: nothing is lost, each part is done again once at most."""

import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np
import psutil
import pytest

from sharding.core.limits import GRANT_MARGIN_SECONDS
from tests.clusters import Cluster, Node, cluster, kill, wait_until
from tests.conftest import write_checkpoint
from tests.fleets import Fleet, alone, assert_same_folders, assert_same_repos, fleet, slow_parts, variables
from tests.hubs import push
from tests.inhouse import InHouse, hub_in_house
from tests.scenarios.test_fleet import SIZE, plain
from tests.scenarios.torture import staged

pytestmark = pytest.mark.thorough
NUMBERS = count(1000)
LARGE_BYTES = 120_000_000
"""Of each shard of a folder: some tenths of a second."""


@dataclass
class Work:
    """A job to be killed in: its words, those of the same on one machine, and what compares the two."""

    words: tuple[object, ...]
    alone: tuple[object, ...]
    assert_same: Callable[[], None]
    hub: InHouse | None = None
    stopped: list[psutil.Process] = field(default_factory=list)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Have parts last until the block ends, or until somebody notices them."""
        with slow_parts(self.hub) if self.hub else nullcontext():
            yield
        for process in self.stopped:
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def at_part(self, job: Fleet, wave: str, nodes: Sequence[Node]) -> tuple[psutil.Process, str]:
        """Wait until a worker of the last of `nodes` is at a part of a wave; return its process and which part."""
        if self.hub:
            worker = job.at_work(wave, nodes[-1].name)
            return psutil.Process(worker["pid"]), worker["file"]
        while True:  # while others stand still, there are parts for that one
            process, part = self._stop(wave, nodes)
            if process.ppid() == nodes[-1].raylet.pid:
                return process, part

    def _stop(self, wave: str, nodes: Sequence[Node]) -> tuple[psutil.Process, str]:
        """Stop another worker while it has a shard of the result open: a part lasts as long as it is stopped."""
        in_wave = {"transfer": _WRITTEN, "verify": _READ}[wave]

        def opened(process: psutil.Process) -> str:
            with suppress(psutil.NoSuchProcess):
                names = (in_wave.search(path) for path in map(_target, Path(f"/proc/{process.pid}/fd").iterdir()))
                return next((name[1] for name in names if name), "")
            return ""

        def found() -> tuple[psutil.Process, str] | None:
            for process in (process for node in nodes for process in node.raylet.children()):
                if process in self.stopped or not opened(process):
                    continue
                process.suspend()
                if file := opened(process):
                    self.stopped.append(process)
                    return process, file
                process.resume()
            return None

        return wait_until(found)

    def noted(self, job: Fleet) -> set[str]:
        """Return the shards that are surely kept."""
        return staged(self.hub, str(self.words[1])) if self.hub else job.finished()

    def compare(self) -> None:
        """Do the same on one machine: it makes the same."""
        alone(variables(None, self.hub), *self.alone)
        self.assert_same()


_WRITTEN = re.compile(r"/(model-[^/.]*\.safetensors)\.[0-9a-f]{32}\.part$")
_READ = re.compile(r"/(model-[^/.]*\.safetensors)\.part$")


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:  # closed by now
        return ""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InHouse]:
    with hub_in_house(tmp_path_factory.mktemp("hub"), xet_over_http=True) as hub:
        yield hub


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("large")
    data = np.frombuffer(np.random.default_rng(0).bytes(LARGE_BYTES), np.uint8)
    tensors = {f"layers.{n}.weight": np.roll(data, n) for n in range(8)}
    yield write_checkpoint(place / "in", {"model.safetensors": tensors}, index=False)
    shutil.rmtree(place)


@pytest.fixture
def on_a_hub(hub: InHouse, tmp_path: Path) -> Work:
    number = next(NUMBERS)
    source = push(hub, plain(tmp_path)[0], f"alice/source-{number}", private=True)
    ours, other = f"alice/fleet-{number}", f"alice/alone-{number}"
    size = ("-s", SIZE)
    return Work(
        (source, ours, *size), (source, other, *size), lambda: assert_same_repos(hub, ours, other, tmp_path), hub
    )


@pytest.fixture
def in_folders(large: Path, tmp_path: Path) -> Iterator[Work]:
    ours, other = tmp_path / "ours/out", tmp_path / "alone/out"
    size = ("-s", LARGE_BYTES)
    yield Work((large, ours, *size), (large, other, *size), lambda: assert_same_folders(ours, other))
    for folder in (ours, other):
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def work(request: pytest.FixtureRequest) -> Work:
    """The one of these that a test names."""
    found: Work = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """A cluster for a test that kills one of its nodes."""
    with cluster() as running:
        yield running


# Each kind of death in each place and in each wave; all twelve together would prove little more.
ONE = pytest.mark.parametrize(("work", "wave"), [("on_a_hub", "transfer"), ("in_folders", "verify")], indirect=["work"])
OTHER = pytest.mark.parametrize(
    ("work", "wave"), [("on_a_hub", "verify"), ("in_folders", "transfer")], indirect=["work"]
)


@ONE
def test_a_killed_worker_costs_its_part(work: Work, wave: str, cluster: Cluster) -> None:
    with fleet(variables(cluster, work.hub), *work.words) as job:
        with work.held():
            worker, part = work.at_part(job, wave, cluster.nodes)
            kill([worker])
        report = job.finish()
    assert report["fleet"]["repeated"] == [part]
    work.compare()


@OTHER
def test_a_killed_node_costs_its_part(work: Work, wave: str, own_cluster: Cluster) -> None:
    with fleet(variables(own_cluster, work.hub), *work.words) as job:
        with work.held():
            _, part = work.at_part(job, wave, own_cluster.nodes)
            own_cluster.nodes[1].kill()
        report = job.finish()
    assert report["fleet"]["repeated"] == [part]
    assert own_cluster.nodes[0].name in {told["node"] for told in report["fleet"]["nodes"]}
    work.compare()


@ONE
def test_after_the_command_was_killed_the_same_command_goes_on(work: Work, wave: str, cluster: Cluster) -> None:
    env = variables(cluster, work.hub)
    with work.held(), fleet(env, *work.words) as job:
        job.until(lambda event: event["event"] == "shard-finished")
        work.at_part(job, wave, cluster.nodes)
        job.kill()
    noted = work.noted(job)
    assert noted
    with fleet(env, *work.words) as again:
        report = again.finish()
    assert noted <= again.finished(kept=True)
    assert report["fleet"]["repeated"] == []
    work.compare()


# --- Grants that end -----------------------------------------------------------------------------------


@pytest.mark.parametrize("requests_of_store", [["POST /cas/v1/xorbs/"], ["POST /cas/v1/shards", "GET /cas/v1/reconst"]])
def test_where_the_store_takes_a_grant_as_ended_the_part_gets_another(
    on_a_hub: Work, requests_of_store: list[str], cluster: Cluster
) -> None:
    assert (hub := on_a_hub.hub)
    rules = [f"status:401@{request}#1" for request in requests_of_store]
    with hub.failing(*rules), fleet(variables(cluster, hub), *on_a_hub.words) as job:
        report = job.finish()
    again = len(report["fleet"]["repeated"])
    assert 1 <= again <= len(requests_of_store)  # a read is also tried again with the same grant
    on_a_hub.compare()


def test_a_part_that_outlasts_its_grant_gets_another(cluster: Cluster, tmp_path: Path) -> None:
    seconds = int(GRANT_MARGIN_SECONDS) + 4
    with hub_in_house(tmp_path / "hub", xet_over_http=True, xet_seconds=seconds) as hub:
        source = push(hub, plain(tmp_path)[0], "alice/source", private=True)
        with (
            hub.failing("delay:6@POST /cas/v1/xorbs/#1"),
            fleet(variables(cluster, hub), source, "alice/fleet", "-s", SIZE) as job,
        ):
            report = job.finish()
        alone(variables(None, hub), source, "alice/alone", "-s", SIZE)
        assert_same_repos(hub, "alice/fleet", "alice/alone", tmp_path)
    again = set(report["fleet"]["repeated"])  # on a machine that is busy, more than the one that was held up
    assert again and again <= {shard["file"] for shard in report["shards"]}
