"""What comes faster than it goes, or goes faster than it comes, waits where it is and not in memory."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest

from tests.commands import run_process
from tests.conftest import write_checkpoint
from tests.hubs import TOKEN, push
from tests.inhouse import InHouse, hub_in_house

SHARD_BYTES = 16_000_000
SMALL, LARGE = 4, 16
"""Shards of the two checkpoints; with four all buffers have been full once."""
MORE_BYTES = 10 * SHARD_BYTES
"""What the large one may take more: of the twelve shards that it has more, it would hold all if nothing held it back.
Not less, because two runs of the same job differ by up to 75 MB, and by 140 MB on a busy machine."""
UPLOAD, DOWNLOAD = "POST /cas/v1/xorbs/", "GET /cas/xorbs/"
SLOW = "slow:60000000@{}"
"""Bytes a second, each request: a small part of what goes through it by itself."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Two checkpoints, by their number of shards."""
    folders = {}
    for shards in (SMALL, LARGE):
        tensors = {
            f"layers.{n}.weight": np.frombuffer(np.random.default_rng(n).bytes(SHARD_BYTES // 4), np.uint8)
            for n in range(4 * shards)
        }
        place = tmp_path_factory.mktemp("weights") / "in"
        folders[shards] = write_checkpoint(place, {"model.safetensors": tensors}, index=False)
    return folders


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory, folders: dict[int, Path]) -> Iterator[InHouse]:
    """A Hub that has both, and whose Xet store is reached over HTTP, where it can be slow."""
    with hub_in_house(tmp_path_factory.mktemp("hub"), xet_over_http=True) as hub:
        for shards, folder in folders.items():
            push(hub, folder, f"alice/source-{shards}")
        yield hub


@pytest.fixture
def peak(
    hub: InHouse,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Callable[..., int]:
    """Run a job in a process of its own while requests of one kind are slow; return its peak anonymous memory."""
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    monkeypatch.setenv("HF_TOKEN", TOKEN)

    def peak(source: str | Path, shards: int, slow: str) -> int:
        hub.log.clear()
        monkeypatch.setenv("HF_HOME", mkdtemp(dir=tmp_path))  # hf-xet remembers there what the store has
        with hub.failing(SLOW.format(slow)):
            done = run_process("shard", source, "alice/made", "--max-shard-size", SHARD_BYTES, "--json")
        assert done.returncode == 0, done.stderr
        hub.api().delete_repo("alice/made")
        cost = json.loads(done.stdout)["resources"]
        assert cost["bytes_uploaded"] >= shards * SHARD_BYTES  # nothing was known to the store, so all of it went up
        assert hub.asked(slow) >= shards
        return int(cost["peak_anon_bytes"])

    return peak


def stays(small: Callable[[], int], large: Callable[[], int]) -> bool:
    """Return whether a job of many shards takes no more than one of few: in the better of two tries."""
    return any(large() <= small() + MORE_BYTES for _ in range(2))


@pytest.mark.thorough
def test_a_slow_upload_holds_back_what_is_read(peak: Callable[..., int], folders: dict[int, Path]) -> None:
    assert stays(*(partial(peak, folders[shards], shards, UPLOAD) for shards in (SMALL, LARGE)))


@pytest.mark.thorough
def test_from_repo_to_repo_the_slower_direction_sets_the_pace(peak: Callable[..., int]) -> None:
    small, large = (partial(peak, f"alice/source-{shards}", shards, UPLOAD) for shards in (SMALL, LARGE))
    assert stays(small, large)
    assert stays(small, partial(peak, f"alice/source-{LARGE}", LARGE, DOWNLOAD))
