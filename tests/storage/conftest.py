"""One Hub that has a small model, for tests that each write to a repo of their own; and folders to write to."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import random_tensors, write_checkpoint
from tests.hubs import hub, name, one_hub, push
from tests.inhouse import InHouse
from tests.storage.publications import write_source

__all__ = ["hub", "name", "one_hub"]


@pytest.fixture(scope="package", autouse=True)
def quick_disk() -> Iterator[None]:
    """Nothing here rests on what is really on the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 25 kB in a folder of this machine."""
    folder = tmp_path_factory.mktemp("in") / "in"
    return write_checkpoint(folder, {"model.safetensors": random_tensors(3, 2000)}, index=False)


@pytest.fixture
def own(hub: InHouse, folder: Path, name: str) -> str:
    """The same model in a repo that a test may change."""
    push(hub, folder, f"{name}-own")
    hub.log.clear()
    return f"{name}-own"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A model of three tensors in a folder that a test may change."""
    return write_source(tmp_path / "in")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"
