from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.hands import led
from tests.inhouse import InHouse, hub_in_house

__all__ = ["led"]


@pytest.fixture
def in_house(tmp_path: Path) -> Iterator[InHouse]:
    """A Hub whose requests are counted."""
    with hub_in_house(tmp_path / "hub") as hub:
        yield hub
