"""A source of two files and a Hub in this process, for tests of how a job begins and ends."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import in_two_files
from tests.hubs import push
from tests.inhouse import InHouse, hub_in_house

NOWHERE = "http://127.0.0.1:9"
MADE = "alice/made"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return in_two_files(tmp_path_factory.mktemp("in") / "in")


@pytest.fixture(scope="module")
def hub(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InHouse]:
    with hub_in_house(tmp_path_factory.mktemp("hub")) as hub:
        push(hub, folder, "alice/hidden", private=True)
        yield hub
