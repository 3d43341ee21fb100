"""Workers, nodes and the command itself are killed with -9: nothing is lost, each part is done again once at most."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import psutil
import pytest

from sharding.core.limits import GRANT_MARGIN_SECONDS
from tests.clusters import Cluster, Node, cluster, kill
from tests.fleets import Fleet, alone, assert_same_folders, assert_same_repos, fleet, slow_parts, variables
from tests.hubs import hub_over_http, push
from tests.inhouse import InHouse, hub_in_house
from tests.scenarios.test_fleet import SIZE, plain
from tests.scenarios.torture import staged

pytestmark = pytest.mark.thorough
NUMBERS = count(1000)
hub = hub_over_http


@dataclass
class Work:
    """A job from a Hub to be killed in: where the result goes, and that of one machine, and what compares the two."""

    hub: InHouse
    source: str
    ours: str | Path
    alone: str | Path
    assert_same: Callable[[], None]

    @property
    def words(self) -> tuple[object, ...]:
        return self.source, self.ours, "-s", SIZE

    def held(self) -> AbstractContextManager[None]:
        """Have parts last until the block ends."""
        return slow_parts(self.hub, to_folder=isinstance(self.ours, Path))

    def at_part(self, job: Fleet, wave: str, node: Node) -> tuple[psutil.Process, str]:
        """Wait until a worker of `node` is at a part of a wave; return its process and which part."""
        worker = job.at_work(wave, node.name)
        return psutil.Process(worker["pid"]), worker["file"]

    def noted(self, job: Fleet) -> set[str]:
        """Return the shards that are surely kept."""
        return staged(self.hub, self.ours) if isinstance(self.ours, str) else job.finished()

    def compare(self) -> None:
        """Do the same on one machine: it makes the same."""
        alone(variables(None, self.hub), self.source, self.alone, "-s", SIZE)
        self.assert_same()


@pytest.fixture
def on_a_hub(hub: InHouse, tmp_path: Path) -> Work:
    number = next(NUMBERS)
    source = push(hub, plain(tmp_path)[0], f"alice/source-{number}", private=True)
    ours, other = f"alice/fleet-{number}", f"alice/alone-{number}"
    return Work(hub, source, ours, other, lambda: assert_same_repos(hub, ours, other, tmp_path))


@pytest.fixture
def in_folders(hub: InHouse, tmp_path: Path) -> Work:
    source = push(hub, plain(tmp_path)[0], f"alice/source-{next(NUMBERS)}", private=True)
    ours, other = tmp_path / "ours/out", tmp_path / "alone/out"
    return Work(hub, source, ours, other, lambda: assert_same_folders(ours, other))


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


def cases(wave: str) -> pytest.MarkDecorator:
    """Kill on a Hub in one wave, and in folders while shards are written: they are read too quickly."""
    waves = [("on_a_hub", wave), ("in_folders", "transfer")]
    return pytest.mark.parametrize(("work", "wave"), waves, indirect=["work"])


@cases("transfer")
def test_a_killed_worker_costs_its_part(work: Work, wave: str, cluster: Cluster) -> None:
    with fleet(variables(cluster, work.hub), *work.words) as job:
        with work.held():
            worker, part = work.at_part(job, wave, cluster.nodes[1])
            kill([worker])
        report = job.finish()
    assert report["fleet"]["repeated"] == [part]
    work.compare()


@cases("verify")
def test_a_killed_node_costs_its_part(work: Work, wave: str, own_cluster: Cluster) -> None:
    with fleet(variables(own_cluster, work.hub), *work.words) as job:
        with work.held():
            _, part = work.at_part(job, wave, own_cluster.nodes[1])
            own_cluster.nodes[1].kill()
        report = job.finish()
    assert report["fleet"]["repeated"] == [part]
    assert own_cluster.nodes[0].name in {told["node"] for told in report["fleet"]["nodes"]}
    work.compare()


@cases("verify")
def test_after_the_command_was_killed_the_same_command_goes_on(work: Work, wave: str, cluster: Cluster) -> None:
    env = variables(cluster, work.hub)
    with work.held(), fleet(env, *work.words) as job:
        job.until(lambda event: event["event"] == "shard-finished")
        work.at_part(job, wave, cluster.nodes[0])
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
    hub = on_a_hub.hub
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
