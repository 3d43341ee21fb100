"""One Hub that has a small model, for tests that each write to a repo of their own."""

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from sharding.storage.hub import answers as hub_retry
from tests.conftest import random_tensors, write_checkpoint
from tests.hubs import push
from tests.inhouse import InHouse, hub_in_house
from tests.storage.steps import SOURCE

NUMBERS = count()


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here rests on what is really on the disk."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 25 kB in a folder of this machine."""
    folder = tmp_path_factory.mktemp("in") / "in"
    return write_checkpoint(folder, {"model.safetensors": random_tensors(3, 2000)}, index=False)


@pytest.fixture(scope="session")
def one_hub(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[InHouse]:
    with hub_in_house(tmp_path_factory.mktemp("hub"), orgs={"acme": ("alice", "bob")}) as hub:
        push(hub, folder, SOURCE)
        yield hub


@pytest.fixture
def hub(one_hub: InHouse, monkeypatch: pytest.MonkeyPatch) -> InHouse:
    """That Hub, which has heard no request yet; what fails is tried again at once."""
    monkeypatch.setattr(hub_retry, "NETWORK_WAIT_SECONDS", 0.0001)
    one_hub.log.clear()
    return one_hub


@pytest.fixture
def name() -> str:
    """A name that no repo has yet."""
    return f"alice/made-{next(NUMBERS)}"
