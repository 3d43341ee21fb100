"""What is sent to a Hub: through Xet without the disk, without Xet by one nameless file at a time."""

import os
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import constants

from sharding import job
from sharding.core.errors import DestinationError
from sharding.core.events import ShardFinished
from sharding.core.values import FileEntry, ShardRecord
from sharding.report.schema import Report
from sharding.storage.hub.client import Hub
from sharding.storage.hub.repo import has_content, holds
from sharding.storage.hub.upload import LfsShardWriter, XetShardWriter
from tests.conftest import listing
from tests.hubs import SOURCE, TOKEN, exists, push, shard
from tests.inhouse import InHouse, hub_in_house
from tests.storage.steps import begun, noted, sent, staged


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
    places = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            places.append(os.readlink(path))
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


def test_shards_go_to_the_store_whatever_the_gitattributes_of_a_repo_say(plain: InHouse, name: str) -> None:
    plain.api().create_repo(name)
    plain.put(name, ".gitattributes", b"*.bin filter=lfs diff=lfs merge=lfs -text\n")
    assert shard(plain, SOURCE, name, "9kB").verification.identical


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


# --- What the store says that it has ----------------------------------------------------------------------

DATA = b"the bytes of a shard"
RECORD = ShardRecord("w.safetensors", len(DATA), sha256(DATA).hexdigest(), {})
OTHER = sha256(b"other bytes").hexdigest()


class Store:
    """An upload commit of hf-xet that says it has stored `said`."""

    def __init__(self, **said: Any) -> None:
        self.said = SimpleNamespace(**{"sha256": RECORD.sha256, "file_size": RECORD.bytes, "hash": "ab" * 32} | said)
        self.sent = b""
        self.completed = 0
        self.aborted = False

    def start_upload_stream(self, name: str) -> "Store":
        return self

    def write(self, data: bytes) -> None:
        self.sent += data

    def finish(self) -> Any:
        return SimpleNamespace(xet_info=self.said)

    def progress(self) -> Any:
        return SimpleNamespace(total_bytes_completed=self.completed)

    def wait_to_finish(self) -> Any:
        return SimpleNamespace(dedup_metrics=SimpleNamespace(total_bytes_uploaded=7, deduped_bytes=5))

    def abort(self) -> None:
        self.aborted = True


def writing(store: Store) -> XetShardWriter:
    writer = XetShardWriter(lambda: store, RECORD.file)
    writer.write(DATA)
    assert store.sent == DATA
    return writer


def test_a_shard_that_the_store_has_as_it_was_sent_is_finished_and_not_given_up_any_more() -> None:
    store = Store()
    writer = writing(store)
    assert writer.finish() == RECORD.sha256
    assert (writer.bytes_uploaded, writer.bytes_deduplicated) == (7, 5)
    writer.abort()
    assert not store.aborted
    store = Store()
    writing(store).abort()
    assert store.aborted


@pytest.mark.parametrize("end", ["sent", "stored", "given up"])
def test_a_shard_waits_where_enough_is_in_memory_until_the_one_before_it_is_sent(end: str) -> None:
    package = bytes(64 << 20)
    first, second = Store(file_size=len(package)), Store()
    before = XetShardWriter(lambda: first, RECORD.file)
    writer = XetShardWriter(lambda: second, "v.safetensors", before)
    before.write(package)
    writer.write(package[: len(package) // 2])
    writer.write(DATA)
    with ThreadPoolExecutor(1) as thread:
        third = thread.submit(writer.write, DATA)
        try:
            assert not wait([third], 0.1).done and len(second.sent) == len(package) // 2 + len(DATA)
            if end == "sent":
                first.completed = len(DATA)
            elif end == "stored":
                before.finish()
            else:
                writer.abort()
            third.result(60)
        finally:
            writer.abort()


@pytest.mark.parametrize("said", [{"file_size": 19}, {"file_size": 21}, {"sha256": None}, {"file_size": None}])
def test_a_shard_of_which_the_store_says_that_it_is_another_is_not(said: dict[str, Any]) -> None:
    store = Store(**said)
    writer = writing(store)
    with pytest.raises(DestinationError, match=r"w\.safetensors arrived damaged") as refusal:
        writer.finish()
    assert refusal.value.hint
    writer.abort()
    assert not store.aborted


def test_a_listed_file_is_a_shard_or_a_content_if_size_and_hash_are_its_own() -> None:
    listed = FileEntry(RECORD.file, RECORD.bytes, RECORD.sha256)
    assert holds(listed, RECORD) and has_content(listed, DATA)
    in_git = FileEntry(RECORD.file, RECORD.bytes, git_sha1="0" * 40)
    others = [replace(listed, sha256=OTHER), in_git, None]
    assert not any(holds(file, RECORD) for file in [*others, replace(listed, bytes=RECORD.bytes + 1)])
    assert not any(has_content(file, DATA) for file in others)
    hello = FileEntry("a", 6, git_sha1="ce013625030ba8dba906f756967f9e9ca394464a")  # `git hash-object` of it
    assert has_content(hello, b"hello\n") and not has_content(hello, b"hello")


BREAKS: dict[str, tuple[type[Exception], str, str]] = {
    "a login that has ended": (PermissionError, "is no longer valid, or has no permission to upload w.safe", "Sign"),
    "what breaks off": (RuntimeError, "upload of w.safetensors broke off: for a reason", "HF_HUB_DISABLE_XET=1"),
    "a connection": (ConnectionError, "upload of w.safetensors broke off: for a reason", "same job"),
}


@pytest.mark.parametrize("what", BREAKS)
@pytest.mark.parametrize("when", ["start", "start_upload_stream", "write", "finish", "wait_to_finish"])
def test_an_upload_that_fails_is_said_in_plain_words_whenever_it_does(what: str, when: str) -> None:
    family, says, hint = BREAKS[what]
    store = Store()

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


def test_a_failed_job_without_xet_leaves_nothing(plain: InHouse, name: str, folder: Path, temporary: Path) -> None:
    with plain.failing("status:403@POST .*/info/lfs/"), pytest.raises(DestinationError, match="does not allow it"):
        list(job.shard(str(folder), name, "9kB", endpoint=plain.address, token=TOKEN))
    assert not exists(plain, name) and open_files(temporary) == 0 and listing(temporary) == {}
