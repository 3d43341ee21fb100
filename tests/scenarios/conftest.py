"""One Hub that has a small model, for tests that each write to repos of their own."""

from pathlib import Path

import pytest

from sharding.storage.hub import answers as retry
from tests.conftest import in_two_files
from tests.demo.test_front_page import front, typing
from tests.hubs import NUMBERS, SOURCE, hub, name, one_hub

__all__ = ["NUMBERS", "SOURCE", "front", "hub", "name", "one_hub", "typing"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return in_two_files(tmp_path_factory.mktemp("in") / "in")


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails is tried again at once."""
    monkeypatch.setattr(retry, "NETWORK_WAIT_SECONDS", 0.001)
