"""A job without the Xet store: because nobody wants it, or because it does not answer although its Hub does."""

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from sharding import job
from sharding.core.errors import DestinationError, SourceError
from sharding.core.origin import Place
from sharding.localhub import xet
from sharding.storage.hub import client as room
from sharding.storage.hub.client import Hub
from sharding.storage.hub.source import READ_TIMEOUT_SECONDS, XET_TRIES, HubSource, open_repo
from tests.hubs import SOURCE, TOKEN, shard
from tests.inhouse import InHouse

XET = "xet-(read|write)-token|/cas/"
MODEL = "model-00001-of-00002.safetensors"


@pytest.fixture(autouse=True)
def small_reads_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is in the store is read from it."""
    monkeypatch.setattr(Hub, "least_xet_bytes", 1)


@contextmanager
def store_at(hub: InHouse, address: str) -> Iterator[None]:
    """Have the Hub say that its store is at `address`."""
    usual = xet._answer
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(xet, "_answer", lambda _, token, expires: usual(address, token, expires))
        yield


@contextmanager
def silence() -> Iterator[str]:
    """The address of a server that takes every connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/cas"


def nobody() -> str:
    """An address at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}/cas"


AWAY: dict[str, Callable[[], Any]] = {
    "refused": lambda: contextmanager(lambda: iter([nobody()]))(),
    "unknown": lambda: contextmanager(lambda: iter(["http://store.invalid/cas"]))(),
    "silent": silence,
}


@pytest.mark.parametrize("switch", ["1", "true", "Yes", "0", ""])
def test_whoever_switches_xet_off_gets_the_same_copy_without_a_request_to_the_store(
    hub: InHouse, name: str, switch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_DISABLE_XET", switch)
    report = shard(hub, SOURCE, name)
    is_off = switch not in ("0", "")
    assert report.verification.identical
    assert bool(hub.asked(XET)) != is_off
    assert (report.resources.disk_bytes_written > 0) == is_off, "LFS needs the hash of a file before it takes it"
    assert bool(hub.asked("/info/lfs/")) == is_off


def test_whoever_switches_xet_off_lends_workers_addresses_only(hub: InHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_repo(Hub(hub.address, TOKEN), Place("hub", SOURCE))
    assert source.lend([MODEL]).grant
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    lent = source.lend([MODEL])
    assert lent.grant is None and lent.files[0].place.startswith(hub.address)


@pytest.mark.parametrize("why", AWAY)
def test_a_store_that_does_not_answer_is_gone_around_over_plain_http(
    hub: InHouse, name: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "STORE_SECONDS", 0.5)
    with AWAY[why]() as address, store_at(hub, address):
        assert shard(hub, SOURCE, name).verification.identical
        assert shard(hub, SOURCE, str(tmp_path / "out")).verification.identical
    assert hub.asked("/info/lfs/")


@pytest.mark.parametrize("why", AWAY)
def test_a_store_that_nothing_leads_around_is_named_with_the_variable(
    hub: InHouse, name: str, folder: Path, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "STORE_SECONDS", 0.5)
    with AWAY[why]() as address, store_at(hub, address), hub.failing("gone@POST .*/info/lfs/"):
        with pytest.raises(DestinationError) as refusal:
            shard(hub, str(folder), name)
        host = re.search("//([^:/]*)", address)
        assert host and f"its Xet store does not, {host[1]}: " in refusal.value.message
        assert hub.address in refusal.value.message and "HF_HUB_DISABLE_XET=1" in refusal.value.hint


def test_a_store_is_asked_twice_before_it_counts_as_away_and_never_again(
    hub: InHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job from a silent store must get on within a minute: twice `STORE_SECONDS`, and then two attempts over HTTP."""
    assert room.STORE_SECONDS <= 10
    monkeypatch.setattr(room, "STORE_SECONDS", 0.2)
    knocks, usual = list[str](), httpx2.Client.head

    def head(client: httpx2.Client, url: str, **more: Any) -> httpx2.Response:
        knocks.append(url)
        return usual(client, url, **more)

    monkeypatch.setattr(httpx2.Client, "head", head)
    with silence() as address, store_at(hub, address):
        source = open_repo(Hub(hub.address, TOKEN), Place("hub", SOURCE))
        for file in source.files:
            assert len(b"".join(source.read(file.path, 0, file.bytes))) == file.bytes
    assert knocks == [address] * 2


def test_a_host_of_files_that_says_nothing_is_asked_twice_in_less_than_a_minute(
    hub: InHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The public Hub keeps what plain HTTP reads at the same place as its store."""
    assert 2 * READ_TIMEOUT_SECONDS < 60
    monkeypatch.setattr("sharding.storage.hub.source.READ_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(Hub, "least_xet_bytes", 10**9)
    source = open_repo(Hub(hub.address, TOKEN), Place("hub", SOURCE))
    gone = pytest.raises(SourceError, match="cannot be reached: timed out")
    with silence() as address, hub.failing(f"away={address}@GET .*/resolve/"), gone:
        list(source.read(MODEL, 0, 100))
    assert hub.asked("/resolve/") == 2


def test_a_store_that_answers_and_fails_is_gone_around_after_a_second_failure(hub: InHouse) -> None:
    tries = list[int]()

    def stream(*_: Any) -> Any:
        tries.append(1)
        raise RuntimeError("no such protocol")

    client = Hub(hub.address, TOKEN)
    group = SimpleNamespace(download_stream=stream)
    client.xet = SimpleNamespace(new_download_stream_group=lambda **_: group)  # type: ignore[misc]
    source = open_repo(client, Place("hub", SOURCE))
    size = next(file.bytes for file in source.files if file.path == MODEL)
    assert len(b"".join(source.read(MODEL, 0, size))) == size == len(b"".join(source.read(MODEL, 0, size)))
    assert len(tries) == XET_TRIES


def test_what_is_not_committed_yet_is_read_from_the_store_or_not_at_all(
    hub: InHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hub, "least_xet_bytes", 0)
    files = open_repo(Hub(hub.address, TOKEN), Place("hub", SOURCE)).files
    source = HubSource(Hub(hub.address, TOKEN), Place("hub", SOURCE, "main"), files=files)
    with store_at(hub, nobody()), pytest.raises(SourceError, match="its Xet store does not, 127.0.0.1"):
        list(source.read(MODEL, 0, 100))


def test_the_host_is_named_to_which_a_hub_sends_its_readers(hub: InHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hub, "least_xet_bytes", 10**9)
    endpoint = hub.address.replace("127.0.0.1", "localhost")
    with hub.failing(f"away={nobody()}@GET .*/resolve/.*safetensors$"), pytest.raises(SourceError) as refusal:
        job.inspect(SOURCE, endpoint=endpoint)
    assert f"127.0.0.1, where {endpoint} keeps files, cannot be reached" in refusal.value.message
