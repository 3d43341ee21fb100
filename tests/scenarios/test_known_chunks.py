"""From repo to repo, a job sends only what the Hub's store does not have."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.commands import run_process
from tests.conftest import write_checkpoint
from tests.hubs import TOKEN
from tests.inhouse import InHouse, hub_in_house

FILES, FILE_BYTES, SOURCE = 2, 24_000_000, "alice/source"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InHouse]:
    """A Hub with a model of two files. Each was uploaded by itself, so an answer about one says nothing of the other."""
    folder = tmp_path_factory.mktemp("weights") / "in"
    random = np.random.default_rng(5)
    files = {
        f"model-{number:05d}-of-{FILES:05d}.safetensors": {
            f"layers.{number}.{part}.weight": random.standard_normal(FILE_BYTES // 16, np.float32) for part in range(4)
        }
        for number in range(1, FILES + 1)
    }
    write_checkpoint(folder, files)
    with hub_in_house(tmp_path_factory.mktemp("hub"), xet_over_http=True) as hub:
        hub.api().create_repo(SOURCE)
        for path in sorted(folder.iterdir()):
            hub.put(SOURCE, path.name, path)
        yield hub


@pytest.fixture
def sent(hub: InHouse, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """Copy the model in a process that has uploaded nothing before; return how many bytes it sends."""

    def sent(*options: str) -> int:
        hub.log.clear()
        for variable, text in {
            "HF_ENDPOINT": hub.address,
            "HF_TOKEN": TOKEN,
            "HF_HOME": str(tmp_path / "home"),
        }.items():
            monkeypatch.setenv(variable, text)
        done = run_process("shard", SOURCE, "alice/copy", "--json", *options)
        hub.api().delete_repo("alice/copy")
        assert done.returncode == 0, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        assert report["verification"]["identical"] and report["resources"]["disk_bytes_written"] == 0
        return int(report["resources"]["bytes_uploaded"])

    return sent


@pytest.mark.parametrize("size", ["8MB", "33MB", "5GB"])
def test_a_copy_from_repo_to_repo_sends_less_than_a_twentieth(sent: Callable[..., int], size: str) -> None:
    assert sent("--max-shard-size", size) < FILES * FILE_BYTES / 20


def test_a_store_that_does_not_answer_about_its_chunks_gets_all_of_them(hub: InHouse, sent: Callable[..., int]) -> None:
    with hub.failing("status:403@GET /cas/v1/chunks/"):
        assert sent() >= 0.7 * FILES * FILE_BYTES
    assert hub.asked("GET /cas/v1/chunks/")


def test_a_cast_asks_about_no_file_of_the_source(hub: InHouse, sent: Callable[..., int]) -> None:
    assert sent("--dtype", "bf16", "--max-shard-size", "5GB") >= 0.3 * FILES * FILE_BYTES
    assert hub.asked("GET /cas/v1/chunks/") == 1  # the shard's first chunk
