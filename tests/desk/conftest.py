"""A Hub, sources on it, and a desk that takes jobs there."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from sharding import job
from sharding.cli.commands import app
from sharding.core.options import Options
from sharding.desk.desk import Desk
from sharding.desk.forecast import this_machine
from sharding.desk.jobs import ACTIVE, JobRequest, JobStatus, Settings
from sharding.report.report import event_json
from sharding.storage.hub.answers import Person
from sharding.storage.hub.staging import STAGING_BRANCH
from tests.conftest import random_tensors, write_checkpoint
from tests.desk.actors import Actor, Stage, Told
from tests.desk.actors import until as wait
from tests.folders import compared, until_shard
from tests.hubs import branches, push
from tests.inhouse import InHouse, hub_in_house
from tests.localhub.conftest import Server

NUMBERS = count()
ALICE, BOB = "hf_alice", "hf_bob"
AS_ALICE, AS_BOB = (Person("alice", ("alice", "acme")), ALICE), (Person("bob", ("bob", "acme")), BOB)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InHouse]:
    with hub_in_house(tmp_path_factory.mktemp("hub"), orgs={"acme": ("alice", "bob")}) as served:
        yield served


@pytest.fixture(scope="module")
def small(hub: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A public source of 240 kB."""
    folder = write_checkpoint(tmp_path_factory.mktemp("in") / "small", {"model.safetensors": random_tensors()}, False)
    return push(hub, folder, "alice/small")


@pytest.fixture(scope="module")
def large(hub: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A public source that `SLOW` cuts into 24 shards. `at_work` holds a job that copies it among them."""
    tensors = {f"layers.{n}.weight": np.frombuffer(np.random.default_rng(n).bytes(90_000), np.uint8) for n in range(24)}
    folder = write_checkpoint(tmp_path_factory.mktemp("in") / "large", {"model.safetensors": tensors}, False)
    return push(hub, folder, "alice/large")


@pytest.fixture(scope="module")
def variants(hub: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A public source of 100 small tensors, plain and as the variant fp16, with 100 tensors."""
    plain = {f"layers.{n}.weight": np.full(500, n, np.float32) for n in range(100)}
    halves = {name: tensor.astype(np.float16) for name, tensor in plain.items()}
    files = {"model.safetensors": plain, "model.fp16.safetensors": halves}
    return push(hub, write_checkpoint(tmp_path_factory.mktemp("in") / "variants", files, False), "alice/variants")


SLOW = "100kB"


def at_work(hub: InHouse, source: str) -> AbstractContextManager[None]:
    """Let a job that copies `source` finish a few shards, and no more until the block ends."""
    return hub.holding(rf"GET /{source}/resolve/.*\.safetensors", after=10)


@pytest.fixture
def settings(hub: Server, tmp_path: Path) -> Settings:
    return Settings(tmp_path / "desk", hub.address)


@pytest.fixture
def desk(settings: Settings) -> Iterator[Desk]:
    with Desk(settings) as desk:
        yield desk


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """Actors play the processes of jobs."""
    this_machine().result()  # is measured with the real Python, once
    (tmp_path / "stage").mkdir()
    monkeypatch.setattr("sharding.desk.runner.STOP_SECONDS", 60)  # who ignores that it is to stop has its time
    stage = Stage(tmp_path / "stage", monkeypatch)
    yield stage
    stage.close()


class Hand:
    """The process of a job, played by the command line in this very process. See `desk.process.Child`."""

    identity, last_words, status = None, "", 0

    def __init__(self, arguments: Sequence[str], folder: Path, endpoint: str, token: str) -> None:
        self._words = arguments
        self._variables = {"HF_ENDPOINT": endpoint, "HF_TOKEN": token}

    def lines(self) -> Iterator[bytes]:
        done = CliRunner().invoke(app, list(self._words), env=self._variables)
        self.status = done.exit_code
        yield from done.stdout_bytes.splitlines(keepends=True)

    def wait(self) -> int:
        return self.status

    def stop(self) -> None:
        """It ends by itself."""

    kill = stop


@pytest.fixture
def at_hand(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs run in this process: what they find is the same, and only their processes are not tested."""
    if "stage" not in request.fixturenames:
        monkeypatch.setattr("sharding.desk.runner.Child", Hand)


@pytest.fixture(scope="module")
def told(hub: InHouse, small: str) -> Told:
    """What a job that was done has said, the last of each kind."""
    events = job.shard(small, "alice/told", "60kB", endpoint=hub.address, token=ALICE)
    return {line["event"]: line for line in map(event_json, events)}


@pytest.fixture
def name() -> str:
    """A name that no repo has yet."""
    return f"alice/copy-{next(NUMBERS)}"


def hand_in(desk: Desk, source: str, who: str, **more: Any) -> tuple[str, str]:
    """Hand in a job of `who`, who may write where alice may; return its id and where it writes."""
    request = replace(JobRequest(source, f"alice/of-{who}", Options("60kB")), **more)
    return desk.submit(request, Person(who, ("alice",)), ALICE), request.destination


def begin(desk: Desk, stage: Stage, source: str, who: str = "a", **more: Any) -> tuple[str, Actor]:
    """Hand in a job of `who` and wait until it runs; return its id and who plays its process."""
    job_id, _ = hand_in(desk, source, who, **more)
    return job_id, player(desk, stage, job_id, who)


def player(desk: Desk, stage: Stage, job_id: str, viewer: str = "alice") -> Actor:
    """Wait until a job runs; return who plays its process."""
    return stage(state(desk, job_id, "running", viewer).request.destination)


def seen(desk: Desk, job_id: str, viewer: str = "a") -> JobStatus:
    """How a job is that is there."""
    status = desk.status(job_id, viewer)
    assert status
    return status


def watched(desk: Desk, job_id: str, viewer: str, wanted: Callable[[JobStatus], bool]) -> JobStatus:
    """Return the status of a job as soon as it is `wanted`."""

    def found() -> JobStatus | None:
        status = desk.status(job_id, viewer)
        return status if status and wanted(status) else None

    return wait(found)  # type: ignore[return-value]


def end(desk: Desk, job_id: str, viewer: str = "alice") -> JobStatus:
    return watched(desk, job_id, viewer, lambda status: status.state not in ACTIVE)


def until(desk: Desk, job_id: str, shards: int, viewer: str = "alice") -> JobStatus:
    """Wait until a job has finished so many shards."""
    return watched(desk, job_id, viewer, lambda status: len(status.shards) >= shards)


def state(desk: Desk, job_id: str, wanted: str, viewer: str = "alice") -> JobStatus:
    """Wait until a job is as it is wanted."""
    return watched(desk, job_id, viewer, lambda status: status.state == wanted)


def process_of(settings: Settings, job_id: str) -> int:
    """The number of a running job's process, from the record that outlives the desk."""
    number, _ = json.loads((settings.folder / job_id.split("/")[0] / "job.json").read_text())["process"]
    return int(number)


def is_identical(hub: Server, one: str, other: str) -> bool:
    return compared(one, other, endpoint=hub.address, token=ALICE).identical


def stop_short(
    hub: InHouse, source: str, destination: str, options: Options | str = "60kB", token: str = ALICE, **more: Any
) -> None:
    """Leave a job unfinished, with one shard of it staged."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sharding.storage.hub.staging.COMMIT_SECONDS", 0)
        events = job.shard(source, destination, options, endpoint=hub.address, token=token, **more)
        until_shard(events, 2, stop=True)
    assert STAGING_BRANCH in branches(hub, destination)
