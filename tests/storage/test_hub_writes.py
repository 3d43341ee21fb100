"""What is sent to a Hub: through Xet without the disk, without Xet by one nameless file at a time."""

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hf_xet
import pytest
from huggingface_hub import constants

from sharding import job
from sharding.core.errors import DestinationError
from sharding.core.events import ShardFinished
from sharding.report.schema import Report
from sharding.storage.hub.client import XET_SETTINGS, Hub, xet_session
from sharding.storage.hub.upload import LfsShardWriter, XetShardWriter
from tests.conftest import listing
from tests.hubs import SOURCE, TOKEN, exists, push
from tests.inhouse import InHouse, hub_in_house
from tests.storage.steps import begun, noted, sent, staged
from tests.storage.test_hub_upload import Store


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[InHouse]:
    """A Hub without Xet."""
    with hub_in_house(tmp_path_factory.mktemp("plain"), xet=False) as hub:
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():  # other Hubs have it
            patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
            warnings.simplefilter("ignore", DeprecationWarning)  # huggingface_hub's own, in its LFS upload
            push(hub, folder, SOURCE)
        yield hub


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def open_files(folder: Path) -> int:
    """How many files below `folder` this process has open, with or without a name."""
    links = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    places = []
    for path in links:
        try:
            places.append(os.readlink(path))
        except OSError:
            continue
    return sum(place.startswith(f"{folder}/") for place in places)


@pytest.mark.parametrize("of_hub", [False, True])
def test_without_xet_one_shard_is_open_at_a_time_in_a_file_without_a_name(
    plain: InHouse, folder: Path, name: str, temporary: Path, of_hub: bool
) -> None:
    source = SOURCE if of_hub else str(folder)
    seen, events = [], job.shard(source, name, "9kB", endpoint=plain.address, token=TOKEN, private=False)
    finished: list[Any] = []
    for event in events:
        seen.append(open_files(temporary))
        finished += [event] if isinstance(event, ShardFinished) else []
        assert listing(temporary) == {}
        report = event
    assert isinstance(report, Report) and report.verification.identical
    assert len(finished) >= 3 and max(seen) <= 1 and open_files(temporary) == 0
    written = sum(one.bytes for one in report.shards)
    assert report.resources.disk_bytes_written == report.resources.bytes_uploaded == written
    assert report.resources.bytes_deduplicated == 0


def test_without_xet_a_shard_lets_go_of_its_file_finished_or_not(plain: InHouse, name: str, temporary: Path) -> None:
    target = begun(plain, name)
    assert target.shards_at_once == 1
    records = [staged(target, number) for number in (1, 2)]
    assert open_files(temporary) == 0
    target.open_shard("model-00003-of-00009.safetensors").write(b"half")
    assert open_files(temporary) == 1 and listing(temporary) == {}
    target.close()
    assert open_files(temporary) == 0
    assert noted(plain, name) == {one.file for one in records}
    assert target.disk_bytes_written == sum(one.bytes for one in records) + len(b"half")


def test_without_xet_what_the_store_has_already_is_not_counted_as_uploaded(plain: InHouse, name: str) -> None:
    target = begun(plain, name)
    data = os.urandom(200_000)
    sent(target, 1, data)
    assert (target.bytes_uploaded, target.bytes_deduplicated) == (200_000, 0)
    sent(target, 2, data)
    assert (target.bytes_uploaded, target.bytes_deduplicated) == (200_000, 200_000)
    assert target.disk_bytes_written == 400_000
    target.close()


def test_without_xet_no_bar_shows(plain: InHouse, folder: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    for size in ("9kB", "8kB"):
        *_, report = job.shard(str(folder), name, size, endpoint=plain.address, token=TOKEN)
        assert isinstance(report, Report) and report.verification.identical
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("nothing_stays_on_this_disk")
def test_through_xet_nothing_is_on_the_disk_and_what_the_store_has_is_not_sent_again(hub: InHouse, name: str) -> None:
    target = begun(hub, name)
    data = os.urandom(200_000)
    sent(target, 1, data)
    first = (target.bytes_uploaded, target.bytes_deduplicated)
    assert 200_000 <= first[0] < 210_000 and first[1] == 0
    sent(target, 2, data)
    assert target.bytes_uploaded < first[0] + 10_000 and target.bytes_deduplicated == 200_000
    assert target.disk_bytes_written == 0


BREAKS: dict[str, tuple[type[Exception], str, str]] = {
    "a login that has ended": (
        PermissionError,
        "login is no longer valid, or has no permission to upload w.safetensors",
        "Sign",
    ),
    "what breaks off": (RuntimeError, "upload of w.safetensors broke off: for a reason", "same job"),
    "a connection": (ConnectionError, "upload of w.safetensors broke off: for a reason", "same job"),
}


@pytest.mark.parametrize("what", BREAKS)
@pytest.mark.parametrize("when", ["start", "start_upload_stream", "write", "finish", "wait_to_finish"])
def test_an_upload_that_fails_is_said_in_plain_words_whenever_it_does(what: str, when: str) -> None:
    family, says, hint = BREAKS[what]
    store = Store(sha256="00", file_size=4, hash="ab")

    def fails(*_: Any, **__: Any) -> Any:
        raise family("for a reason")

    setattr(store, when, fails)

    def upload() -> None:
        writer = XetShardWriter(fails if when == "start" else lambda: store, "w.safetensors")
        writer.write(b"data")
        writer.finish()

    with pytest.raises(DestinationError, match=says) as refusal:
        upload()
    assert hint in refusal.value.hint


def test_a_full_disk_is_said_in_plain_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: open("/dev/full", "wb", buffering=0))  # noqa: SIM115 - the writer closes it
    writer = LfsShardWriter(Hub("http://hub.example", None), SOURCE, "main", "w.safetensors")
    with pytest.raises(DestinationError, match="temporary folder .* cannot be written: .*No space left") as refusal:
        writer.write(b"data")
    assert "smaller shard size" in refusal.value.hint
    writer.abort()


def test_to_give_up_stops_what_is_under_way_and_nothing_that_is_done() -> None:
    for said, is_damaged in (({"file_size": 4}, False), ({"file_size": 3}, True)):
        store = Store(sha256="00", hash="ab", **said)
        writer = XetShardWriter(lambda store=store: store, "w.safetensors")
        writer.write(b"data")
        if is_damaged:
            with pytest.raises(DestinationError, match="arrived damaged"):
                writer.finish()
        else:
            writer.finish()
        writer.abort()
        assert not store.aborted
    store = Store()
    writer = XetShardWriter(lambda: store, "w.safetensors")
    writer.write(b"da")
    writer.abort()
    assert store.aborted


@pytest.mark.parametrize("wish", ["", "/elsewhere"])
def test_hf_xet_gets_its_bounds_and_writes_no_log_files(monkeypatch: pytest.MonkeyPatch, wish: str) -> None:
    made: list[tuple[Any, str]] = []
    monkeypatch.setattr(
        hf_xet, "XetSession", lambda config: made.append((config, os.environ.get("HF_XET_LOG_DEST", ""))) or "session"
    )
    monkeypatch.delenv("HF_XET_LOG_DEST")
    if wish:
        monkeypatch.setenv("HF_XET_LOG_DEST", wish)
    assert xet_session() == "session"
    ((config, logs),) = made
    assert logs == (wish or os.devnull)
    assert {name: config[name] for name in XET_SETTINGS} == XET_SETTINGS


def test_a_failed_job_without_xet_leaves_nothing(plain: InHouse, name: str, folder: Path, temporary: Path) -> None:
    with plain.failing("status:403@POST .*/info/lfs/"), pytest.raises(DestinationError, match="does not allow it"):
        list(job.shard(str(folder), name, "9kB", endpoint=plain.address, token=TOKEN))
    assert not exists(plain, name) and open_files(temporary) == 0 and listing(temporary) == {}
