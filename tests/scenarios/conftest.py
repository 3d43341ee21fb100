"""One Hub that has a small model, for tests that each write to repos of their own."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from sharding.storage.hub import answers as retry
from tests.conftest import in_two_files
from tests.hubs import push
from tests.inhouse import InHouse, hub_in_house

NUMBERS = count()
SOURCE = "alice/source"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return in_two_files(tmp_path_factory.mktemp("in") / "in")


@pytest.fixture(scope="session")
def one_hub(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[InHouse]:
    with hub_in_house(tmp_path_factory.mktemp("hub"), orgs={"acme": ("alice", "bob")}) as hub:
        push(hub, folder, SOURCE)
        yield hub


@pytest.fixture
def hub(one_hub: InHouse) -> InHouse:
    """That Hub, which has heard no request yet. No test changes the source."""
    one_hub.log.clear()
    return one_hub


@pytest.fixture
def name() -> str:
    return f"alice/made-{next(NUMBERS)}"


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails is tried again at once."""
    monkeypatch.setattr(retry, "NETWORK_WAIT_SECONDS", 0.001)
