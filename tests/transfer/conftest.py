from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.inhouse import InHouse, hub_in_house


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[InHouse]:
    with hub_in_house(tmp_path / "hub") as hub:
        yield hub
