"""A Hub that sends other bytes than it lists, whatever the reason, is caught before anything is published."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sharding import job
from sharding.core.errors import SourceError
from sharding.core.events import ShardFinished
from sharding.report.schema import Report
from sharding.storage import hub_retry as retry
from sharding.storage.hub_client import Hub
from tests.conftest import listing, random_tensors, write_checkpoint
from tests.hubs import TOKEN, branches, exists, push, shard
from tests.inhouse import InHouse, hub_in_house

LFS_WARNS = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # huggingface_hub's own, in its LFS upload
SOURCE, MADE = "alice/source", "alice/made"
HEADER_BYTES = 64 << 10
"""What a job reads first of a file; the rest is asked for later."""

pytestmark = [pytest.mark.usefixtures("nothing_stays_on_this_disk"), LFS_WARNS]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "NETWORK_WAIT_SECONDS", 0.001)


@pytest.fixture
def lfs(tmp_path: Path) -> Iterator[InHouse]:
    """A Hub without Xet that has the source, in one file of 260 kB, and a side file in git."""
    folder = write_checkpoint(tmp_path / "checkpoint", {"model.safetensors": random_tensors()}, index=False)
    with hub_in_house(tmp_path / "hub", xet=False) as hub:
        shard(hub, str(folder), SOURCE, "1GB", private=False)
        yield hub


@pytest.fixture
def xet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InHouse]:
    """The same with Xet; all but headers is read through it."""
    monkeypatch.setattr(Hub, "least_xet_bytes", 10_000)
    folder = write_checkpoint(tmp_path / "checkpoint", {"model.safetensors": random_tensors()}, index=False)
    with hub_in_house(tmp_path / "hub") as hub:
        push(hub, folder, SOURCE)
        yield hub


def blob(hub: InHouse) -> Path:
    """Where the Hub keeps the bytes of the source's weights."""
    (entry,) = hub.api().get_paths_info(SOURCE, "model.safetensors")
    assert hub.hub
    return hub.hub.blobs.path(entry.lfs.sha256)  # type: ignore[union-attr]


def flip(path: Path, at_byte: int) -> Callable[[], None]:
    """Turn a bit of a file; return what turns it back."""
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[at_byte] ^= 1
    path.write_bytes(data)
    return lambda: flip(path, at_byte) and None


def problems(report: Report) -> str:
    assert not report.verification.identical
    return " ".join(mismatch.problem for mismatch in report.verification.mismatches)


def test_wrong_bytes_over_http_are_not_published(lfs: InHouse) -> None:
    flip(blob(lfs), HEADER_BYTES * 2)
    assert "SHA-256 that the Hub states" in problems(shard(lfs, SOURCE, MADE))
    assert not exists(lfs, MADE)


def test_wrong_bytes_do_not_come_into_a_folder(lfs: InHouse, tmp_path: Path) -> None:
    flip(blob(lfs), HEADER_BYTES * 2)
    assert "SHA-256 that the Hub states" in problems(shard(lfs, SOURCE, str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()


def test_wrong_bytes_out_of_the_xet_store_are_not_published(xet: InHouse) -> None:
    assert xet.hub and xet.hub.xet
    xet.api().model_info(SOURCE)  # now the Hub has the header elsewhere as well
    stored = [path for path in xet.hub.xet.folder.glob("xet/xorbs/xorbs/default.*") if path.suffix != ".tagset"]
    flip(max(stored, key=lambda path: path.stat().st_size), HEADER_BYTES * 2)
    assert "SHA-256 that the Hub states" in problems(shard(xet, SOURCE, MADE))
    assert xet.asked("xet-read-token")
    assert not exists(xet, MADE)


def test_bytes_that_were_wrong_in_an_earlier_run_are_not_published_by_a_later_one(lfs: InHouse) -> None:
    mend = flip(blob(lfs), HEADER_BYTES)
    events = job.shard(SOURCE, MADE, "20kB", endpoint=lfs.address, token=TOKEN)
    for event in events:
        if isinstance(event, ShardFinished) and event.number == event.shards - 1:
            events.close()
    mend()
    again = list(job.shard(SOURCE, MADE, "20kB", endpoint=lfs.address, token=TOKEN))
    assert [event for event in again if isinstance(event, ShardFinished) and event.kept]
    report = again[-1]
    assert isinstance(report, Report)
    assert "SHA-256 that the Hub states" in problems(report)
    assert not exists(lfs, MADE)
    assert shard(lfs, SOURCE, MADE, "20kB").verification.identical


@pytest.mark.parametrize(
    ("text", "offset", "says"),
    [
        pytest.param(b"norm.steps", 9, "something else than it did", id="a name as good as the right one"),
        pytest.param(b'"format":"pt"', 11, "not what the headers said", id="metadata as good as the right ones"),
    ],
)
def test_a_header_that_was_read_wrongly_is_not_published(lfs: InHouse, text: bytes, offset: int, says: str) -> None:
    mend = flip(blob(lfs), blob(lfs).read_bytes().index(text) + offset)
    events = job.shard(SOURCE, MADE, "60kB", endpoint=lfs.address, token=TOKEN)
    next(event for event in events if isinstance(event, ShardFinished))
    mend()
    *_, report = events
    assert isinstance(report, Report)
    assert says in problems(report)
    assert not exists(lfs, MADE)


@pytest.mark.parametrize("path", ["config.json", "README.md"])
def test_a_side_file_that_arrives_damaged_is_not_published(lfs: InHouse, path: str) -> None:
    with (
        lfs.failing(f"corrupt@GET .*/resolve/.*/{path}"),
        pytest.raises(SourceError, match=f"{path} arrived damaged") as refusal,
    ):
        shard(lfs, SOURCE, MADE)
    assert refusal.value.hint
    assert not exists(lfs, MADE) or branches(lfs, MADE) != {"main"}
    assert shard(lfs, SOURCE, MADE).verification.identical


def test_a_small_file_in_git_is_checked_by_its_name_there(xet: InHouse, tmp_path: Path) -> None:
    with xet.failing("corrupt@GET .*/resolve/.*/config.json"), pytest.raises(SourceError, match="damaged"):
        shard(xet, SOURCE, str(tmp_path / "out"))
    shard(xet, SOURCE, str(tmp_path / "out"))
    assert listing(tmp_path / "out")["config.json"] == listing(tmp_path / "checkpoint")["config.json"]


@pytest.mark.parametrize("path", ["model.safetensors", "config.json"])
def test_an_answer_that_says_it_is_of_another_commit_ends_the_job(lfs: InHouse, path: str) -> None:
    with lfs.failing(f"other@GET .*/resolve/.*/{path}"), pytest.raises(SourceError, match="not any more what"):
        shard(lfs, SOURCE, MADE)
    assert not exists(lfs, MADE)


def test_what_is_proved_is_said(lfs: InHouse, tmp_path: Path) -> None:
    assert "1 of its files have the SHA-256 that the Hub states" in shard(lfs, SOURCE, MADE).verification.method
    folder = shard(lfs, str(tmp_path / "checkpoint"), str(tmp_path / "out")).verification
    assert "Hub" not in folder.method  # a folder states nothing
