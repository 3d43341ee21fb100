"""What only looks at a checkpoint reads its headers and small texts, and leaves nothing anywhere."""

import json
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from safetensors.numpy import save_file

from sharding.storage.folder_source import FolderSource
from tests.commands import invoke
from tests.conftest import listing
from tests.promises import promise

FILES = 3
LARGE = 200_000


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Weights that are much longer than their headers, a card and other files, one of them long."""
    folder = tmp_path / "in"
    folder.mkdir()
    weight_map = {}
    for number in range(1, FILES + 1):
        name = f"model-{number:05d}-of-{FILES:05d}.safetensors"
        save_file({f"h.{number}.w": np.ones(LARGE, np.float32)}, folder / name, metadata={"format": "pt"})
        weight_map[f"h.{number}.w"] = name
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    (folder / "vocab.txt").write_bytes(bytes(LARGE))
    return folder


@pytest.fixture
def read_bytes() -> Iterator[dict[str, int]]:
    """How much was asked for of every file."""
    counts: dict[str, int] = {}
    usual = FolderSource.read

    def read(self: FolderSource, file: str, start: int, end: int) -> Iterator[bytes]:
        counts[file] = counts.get(file, 0) + end - start
        return usual(self, file, start, end)

    with patch.object(FolderSource, "read", read):
        yield counts


@pytest.mark.parametrize(
    "words", ["inspect", "inspect --json", "plan -s 1MB", "plan -s 1MB --json", "plan --strategy blocks --order stored"]
)
def test_to_inspect_and_to_plan_reads_no_weights_and_writes_nothing(
    words: str, source: Path, read_bytes: dict[str, int], nothing_stays_on_this_disk: None
) -> None:
    before = listing(source.parent)
    command, *options = words.split()
    done = invoke(command, source, *options)
    assert done.exit_code == 0, done.output
    assert listing(source.parent) == before
    weights = {file: count for file, count in read_bytes.items() if file.endswith(".safetensors")}
    assert len(weights) == FILES and all(count <= 64 << 10 for count in weights.values())
    assert "vocab.txt" not in read_bytes
    assert sum(read_bytes.values()) < FILES * (64 << 10) + 5_000


@promise("README.md#what-to-type")
def test_a_plan_writes_the_picture_that_was_asked_for_and_nothing_else(source: Path, tmp_path: Path) -> None:
    before = listing(tmp_path)
    done = invoke("plan", source, "-s", "1MB", "--picture", tmp_path / "plan.svg")
    assert done.exit_code == 0, done.output
    picture = (tmp_path / "plan.svg").read_text()
    assert picture.startswith("<svg") and "in: 3 files → 3" in picture
    assert listing(tmp_path) == before | {"plan.svg": picture.encode()}
    refused = invoke("plan", source, "--picture", tmp_path / "no/such/folder.svg", "--json")
    assert refused.exit_code == 3 and "cannot be written" in json.loads(refused.stdout)["error"]["message"]


def test_a_job_reads_weights_once_and_what_the_proof_reads_is_not_counted(source: Path, tmp_path: Path) -> None:
    for out, more in (("large", []), ("small", ["-s", "500kB"])):
        done = invoke("shard", source, tmp_path / out, "--json", *more)
        assert done.exit_code == 0, done.output
        resources = json.loads(done.stdout)["resources"]
        weights = FILES * LARGE * 4
        assert weights <= resources["bytes_read"] < weights + FILES * (64 << 10) + 10_000
        written = sum(len(data) for data in listing(tmp_path / out).values())
        assert weights < resources["disk_bytes_written"] <= written
        assert resources["bytes_uploaded"] == 0 and resources["peak_anon_bytes"] > 1_000_000
