"""A job on a cluster, with Ray played in this process: what it is given, what it begins again, how it ends."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from sharding import __version__, job
from sharding.core.errors import Refused
from sharding.fleet.ray_workers import ray_workers
from tests.fleet.pretend_ray import Died, PretendRay
from tests.folders import reshard
from tests.hubs import TOKEN

NODE = "10.0.0.7 (abcdef01)"


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendRay]:
    """Ray, and nothing in the environment that says where a cluster is. What is set for Ray goes again."""
    before = dict(os.environ)
    pretended = PretendRay()
    monkeypatch.setitem(sys.modules, "ray", pretended)
    monkeypatch.setattr("sharding.core.extras.is_installed", lambda module: True)
    os.environ.pop("RAY_ADDRESS", None)
    os.environ.update({"HF_TOKEN": TOKEN, "RAY_OWN": "1"})
    yield pretended
    os.environ.clear()
    os.environ.update(before)


def test_a_cluster_of_this_machine_is_given_no_login_and_ends_with_the_job(
    ray: PretendRay, checkpoint: Path, tmp_path: Path
) -> None:
    def others() -> dict[str, str]:
        return {name: text for name, text in os.environ.items() if not name.startswith("RAY_")}

    around = others()
    report = reshard(checkpoint, tmp_path / "out", workers="ray")
    assert ray.log == ["init local", "shutdown"]
    assert TOKEN not in ray.environment.values() and ray.environment["RAY_OWN"] == "1"
    assert ray.options["_node_ip_address"] == "127.0.0.1" and ray.options["log_to_driver"] is False
    assert others() == around
    assert report.fleet and report.fleet.engine == "ray 2.0" and [one.node for one in report.fleet.nodes] == [NODE]


def test_a_cluster_that_is_there_is_left_and_whatever_ends_a_job_has_the_workers_under_way_killed(
    ray: PretendRay, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.fleet.crew.TOLD_SECONDS", 0)
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    events = job.shard(str(checkpoint), str(tmp_path / "out"), "50kB", workers="ray")
    next(events)
    next(events)
    events.close()
    assert 1 <= ray.log.count("cancel") <= 2 and "_node_ip_address" not in ray.options
    assert ray.log[0] == "init auto" and ray.log[-1] == "shutdown"


def test_a_worker_that_dies_costs_one_of_three_attempts(ray: PretendRay, checkpoint: Path, tmp_path: Path) -> None:
    begun: list[int] = []

    def dying(items: Iterator[Any]) -> Iterator[Any]:
        begun.append(1)
        raise Died("out of memory")
        yield from items

    ray.around, ray.cpus = dying, 1
    with pytest.raises(Refused, match="has died 3 times"):
        reshard(checkpoint, tmp_path / "out", workers="ray")
    assert len(begun) == 3 and ray.log[-1] == "shutdown"


@pytest.mark.parametrize("there", ["0.0.1", ""])
def test_a_node_with_another_version_or_without_it_does_nothing_and_ends_the_job(
    ray: PretendRay, there: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_that_node(items: Iterator[Any]) -> Iterator[Any]:
        with monkeypatch.context() as patch:
            if there:
                patch.setattr("sharding.__version__", there)
            else:
                patch.setitem(sys.modules, "sharding", None)
            found = list(items)
        assert found == [(NODE, there)]
        yield from found

    ray.around = on_that_node
    with pytest.raises(Refused) as refused:
        reshard(checkpoint, tmp_path / "out", workers="ray")
    found = f"On node {NODE}, shard-my-repo is {there or 'not installed'}, but here it is {__version__}."
    assert refused.value.message == found
    assert not (tmp_path / "out").exists() and ray.log[-1] == "shutdown"


@pytest.mark.parametrize(
    ("address", "number", "is_there"),
    [("local", signal.SIGTERM, True), ("auto", signal.SIGINT, True), ("local", signal.SIGHUP, False)],
)
def test_signals_end_the_command_as_they_did_before_whether_or_not_a_cluster_is_there(
    ray: PretendRay, address: str, number: signal.Signals, is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def handler(*_: object) -> None:
        raise KeyboardInterrupt

    def init(*given: Any, **more: Any) -> None:
        usual(*given, **more)
        signal.signal(number, signal.SIG_IGN)
        if not is_there:
            raise ConnectionError("nobody is there")

    monkeypatch.setenv("RAY_ADDRESS", address)
    usual = ray.init
    monkeypatch.setattr(ray, "init", init)
    before = signal.signal(number, handler)
    try:
        with (
            nullcontext()
            if is_there
            else pytest.raises(Refused, match="Ray cannot start a cluster here: nobody is there"),
            ray_workers(),
        ):
            assert signal.getsignal(number) is handler
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)
