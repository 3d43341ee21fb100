"""What the Hub's store says that it has is compared with what was sent."""

from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import pytest

from sharding.core.errors import DestinationError
from sharding.core.values import FileEntry, ShardRecord
from sharding.storage.hub.repo import has_content, holds
from sharding.storage.hub.upload import XetShardWriter

DATA = b"the bytes of a shard"
RECORD = ShardRecord("model.safetensors", len(DATA), sha256(DATA).hexdigest(), {})
OTHER = sha256(b"other bytes").hexdigest()


class Store:
    """An upload commit of hf-xet that says it has stored `said`."""

    def __init__(self, **said: Any) -> None:
        self.said = SimpleNamespace(**said)
        self.sent = b""
        self.aborted = False

    def start_upload_stream(self, name: str) -> "Store":
        return self

    def write(self, data: bytes) -> None:
        self.sent += data

    def finish(self) -> Any:
        return SimpleNamespace(xet_info=self.said)

    def wait_to_finish(self) -> Any:
        return SimpleNamespace(dedup_metrics=SimpleNamespace(total_bytes_uploaded=7, deduped_bytes=5))

    def abort(self) -> None:
        self.aborted = True


def send(store: Store) -> XetShardWriter:
    writer = XetShardWriter(lambda: store, RECORD.file)
    writer.write(DATA)
    try:
        assert writer.finish() == RECORD.sha256
        return writer
    finally:
        writer.abort()
        assert store.sent == DATA


def test_a_shard_that_the_store_has_as_it_was_sent_is_finished() -> None:
    store = Store(sha256=RECORD.sha256, file_size=RECORD.bytes, hash="ab" * 32)
    writer = send(store)
    assert (writer.bytes_uploaded, writer.bytes_deduplicated) == (7, 5)
    assert not store.aborted


@pytest.mark.parametrize(
    "said",
    [
        {"sha256": RECORD.sha256, "file_size": RECORD.bytes - 1},
        {"sha256": RECORD.sha256, "file_size": RECORD.bytes + 1},
        {"sha256": None, "file_size": RECORD.bytes},
        {"sha256": RECORD.sha256, "file_size": None},
    ],
)
def test_a_shard_of_which_the_store_says_that_it_is_another_is_not(said: dict[str, Any]) -> None:
    with pytest.raises(DestinationError, match=r"model\.safetensors arrived damaged") as refusal:
        send(Store(**said))
    assert refusal.value.hint


def listed(size: int = RECORD.bytes, digest: str = RECORD.sha256) -> FileEntry:
    """A file as the Hub lists it."""
    return FileEntry(RECORD.file, size, digest)


def test_a_listed_file_is_a_shard_if_size_and_hash_are_its_own() -> None:
    assert holds(listed(), RECORD)
    assert not holds(listed(size=RECORD.bytes + 1), RECORD)
    assert not holds(listed(digest=OTHER), RECORD)
    assert not holds(FileEntry(RECORD.file, RECORD.bytes, git_sha1="0" * 40), RECORD)
    assert not holds(None, RECORD)


def test_a_listed_file_has_a_content_if_its_hash_says_so_in_the_store_or_in_git() -> None:
    assert has_content(listed(), DATA)
    assert not has_content(listed(digest=OTHER), DATA)
    in_git = FileEntry("a", 20, git_sha1="b9bc29dcad5a29ec6b1a0e1d7ba7d3a1b7c5e6ef")
    assert not has_content(in_git, DATA)
    hello = FileEntry("a", 6, git_sha1="ce013625030ba8dba906f756967f9e9ca394464a")  # `git hash-object` of it
    assert has_content(hello, b"hello\n")
    assert not has_content(hello, b"hello")
    assert not has_content(None, DATA)
