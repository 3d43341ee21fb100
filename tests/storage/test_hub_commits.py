"""What a commit holds comes into the store as cheaply as the Hub can take it, and whole."""

import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from sharding.core.errors import DestinationError
from sharding.core.origin import Place
from sharding.core.protocols import Inputs
from sharding.core.values import FileEntry, ShardRecord
from sharding.localhub import lfs
from sharding.storage.hub.client import Hub
from sharding.storage.hub.repo import HubRepo, deleted, small, stored
from sharding.storage.hub.source import open_repo
from sharding.storage.hub.upload import LfsShardWriter
from tests.conftest import listing
from tests.hubs import SOURCE, TOKEN, download, files_of, shard
from tests.inhouse import InHouse, hub_in_house
from tests.storage.steps import heads

COPY = "POST /api/models/.*/lfs-files/duplicate"
DATA = os.urandom(20_000)


def test_what_the_store_has_and_what_is_small_goes_in_one_request(hub: InHouse, name: str) -> None:
    hub.api().create_repo(name)
    hub.put(name, "stored.safetensors", DATA)
    record = ShardRecord("copy.safetensors", len(DATA), sha256(DATA).hexdigest(), {})
    repo, head = HubRepo(Hub(hub.address, TOKEN), name), heads(hub, name)["main"]
    hub.log.clear()
    changes = [stored(record), small("sub/record.json", b"{}"), small("empty", b""), deleted("stored.safetensors")]
    commit = repo.commit("main", head, "The title", changes)
    assert hub.log == [f"POST /api/models/{name}/commit/main"]
    assert heads(hub, name)["main"] == commit
    assert (hub.api().list_repo_commits(name)[0].title, repo.history(commit)[1][1]) == ("The title", head)
    assert files_of(hub, name) == {".gitattributes", "copy.safetensors", "empty", "sub/record.json"}
    copy, small_one = hub.api().get_paths_info(name, [record.file, "sub/record.json"])
    assert (copy.size, copy.lfs.sha256) == (record.bytes, record.sha256)  # type: ignore[union-attr]
    assert (small_one.size, small_one.lfs) == (2, None)  # type: ignore[union-attr]
    with pytest.raises(DestinationError, match="Somebody else has changed it"):
        repo.ask(lambda: repo.commit("main", head, "Too late", [small("late", b"")]))
    assert heads(hub, name)["main"] == commit


@pytest.mark.parametrize("rule", ["", f"gone@{COPY}", "null"])
def test_side_files_are_copied_by_the_hub_or_sent(hub: InHouse, name: str, tmp_path: Path, rule: str) -> None:
    source, beside = f"{name}-source", {"lora/a.msgpack": DATA, "lora/sub/b.pt": DATA[:9000]}
    hub.api().create_repo(source)
    hub.api().create_repo(name)
    for path, data in beside.items():
        hub.put(source, path, data)
    client = Hub(hub.address, TOKEN)
    repo = HubRepo(client, name)
    files = open_repo(client, Place("hub", source, inside="lora/"))
    assert all(file.xet_hash for file in files.files)
    if rule == "null":  # it has lost one of both
        files.files = (files.files[0], FileEntry("sub/b.pt", 9000, "0" * 64, "0" * 64))
    with hub.failing(*([rule] if rule.startswith("gone") else [])):
        changes = repo.copied([*files.files, FileEntry("config.json", 2, git_sha1="0" * 40)], Inputs({"model": files}))
    copied = {"": ["a.msgpack", "sub/b.pt"], "null": ["a.msgpack"]}.get(rule, [])
    assert [change.path for change in changes] == copied
    commit = repo.commit("main", heads(hub, name)["main"], "Copies", changes)
    there = {path: data for path, data in listing(download(hub, name, tmp_path / "down")).items() if path in copied}
    assert there == {path.removeprefix("lora/"): data for path, data in beside.items() if path[5:] in copied}
    assert heads(hub, name)["main"] == commit


def test_a_job_sends_side_files_that_the_hub_does_not_copy(hub: InHouse, own: str, name: str, tmp_path: Path) -> None:
    hub.put(own, "tokenizer.model", DATA)
    with hub.failing(f"gone@{COPY}"):
        assert shard(hub, own, name, "9kB").verification.identical
    assert listing(download(hub, name, tmp_path))["tokenizer.model"] == DATA


@pytest.fixture
def in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InHouse]:
    monkeypatch.setattr("sharding.storage.hub.answers.NETWORK_WAIT_SECONDS", 0.0001)
    with hub_in_house(tmp_path / "parts", xet=False, multipart_above_bytes=1500) as hub:
        hub.api().create_repo(SOURCE)
        yield hub


def test_a_large_file_goes_through_lfs_in_parts(in_parts: InHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    hub, client = in_parts, Hub(in_parts.address, TOKEN)
    for size in (1501, 20_000, 1500, 0):
        writer = LfsShardWriter(client, SOURCE, "main", "w.safetensors")
        writer.write(DATA[:size])
        hub.log.clear()
        with hub.failing("status:503@PUT /lfs/#1"):
            digest = writer.finish()
        assert (digest, writer.bytes_uploaded) == (sha256(DATA[:size]).hexdigest(), size)
        asked = hub.asked("PUT /lfs/.*/parts/")
        assert asked == (-(-size // 1500) + 1 if size > 1500 else 0), "one was sent twice"
    repo = HubRepo(client, SOURCE)
    record = ShardRecord("w.safetensors", 20_000, sha256(DATA).hexdigest(), {})
    repo.commit("main", heads(hub, SOURCE)["main"], "Parts", [stored(record)])
    assert repo.read("main", "w.safetensors") == DATA

    usual, header = lfs._actions, dict[str, str]()

    def odd(*given: Any) -> Any:
        actions = usual(*given)
        actions["upload"]["header"] = header
        return actions

    monkeypatch.setattr(lfs, "_actions", odd)
    for parts in ({"chunk_size": "0"}, {"chunk_size": "x", "00001": "http://x"}, {"chunk_size": "9", "1": "http://x"}):
        header.clear()
        header.update(parts)
        writer = LfsShardWriter(client, SOURCE, "main", "other.safetensors")
        writer.write(os.urandom(100))
        with pytest.raises(DestinationError, match=r"wants a file of 100 bytes in \d parts of"):
            writer.finish()
        writer.abort()
