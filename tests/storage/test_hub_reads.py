"""What is read of a Hub: exactly what was asked for, in bounded ranges, counted once, and of the state that was pinned."""

import socket
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from math import ceil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sharding.core.errors import SourceError
from sharding.core.limits import ANSWER_TIMEOUT_SECONDS
from sharding.core.origin import Place
from sharding.fleet.worker import open_lent
from sharding.localhub import repos
from sharding.storage.hub import client as hub_client
from sharding.storage.hub import source as hub_source
from sharding.storage.hub.answers import NETWORK_TRIES
from sharding.storage.hub.client import Hub
from sharding.storage.hub.source import HubSource, open_repo
from tests.hubs import SOURCE, TOKEN, push
from tests.inhouse import InHouse
from tests.storage.steps import answering, served_by_hand

MODEL, CONFIG = "model.safetensors", "config.json"
RESOLVE = f"GET /{SOURCE}/resolve/"


@pytest.fixture
def source(hub: InHouse, folder: Path) -> HubSource:
    source = open_repo(Hub(hub.address, TOKEN), Place("hub", SOURCE))
    hub.log.clear()
    return source


@pytest.fixture
def data(folder: Path) -> bytes:
    return (folder / MODEL).read_bytes()


def read(source: HubSource, start_byte: int, end_byte: int, file: str = MODEL) -> bytes:
    return b"".join(source.read(file, start_byte, end_byte))


# --- Ranges, and what they cost -----------------------------------------------------------------------


@pytest.mark.parametrize("with_xet", [False, True])
def test_a_long_range_is_asked_for_in_bounded_ones_and_every_byte_counts_once(
    hub: InHouse, source: HubSource, data: bytes, with_xet: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hub, "least_xet_bytes", 1000 if with_xet else 10**9)
    source.batch_bytes = 5000
    assert read(source, 3, len(data) - 7) == data[3:-7]
    asked = ceil((len(data) - 10) / 5000)
    assert (source.requests, source.bytes_read) == (asked, len(data) - 10)
    assert hub.asked(RESOLVE) == (0 if with_xet else asked)
    assert read(source, 0, len(data)) == data
    assert (source.requests, source.bytes_read) == (asked + ceil(len(data) / 5000), 2 * len(data) - 10)


def test_short_ranges_of_what_is_in_the_store_are_read_over_http_and_long_ones_through_xet(
    hub: InHouse, source: HubSource, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hub, "least_xet_bytes", 1000)
    for length, over_http in ((999, 1), (1000, 0), (5, 1)):
        hub.log.clear()
        assert read(source, 8, 8 + length) == data[8 : 8 + length]
        assert hub.asked(RESOLVE) == over_http
    hub.log.clear()
    assert read(source, 0, 9, CONFIG) and hub.asked(RESOLVE) == 1


def test_a_stream_that_is_cut_goes_on_at_its_byte_and_no_byte_counts_twice(
    hub: InHouse, source: HubSource, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_source, "LEAST_BYTES", 1000)  # what a try must bring to count as a new one
    with hub.failing(f"cut:1000@{RESOLVE}"):
        assert read(source, 0, 20_500) == data[:20_500]
    assert (source.requests, source.bytes_read, hub.asked(RESOLVE)) == (21, 20_500, 21)


def test_a_stream_that_brings_a_byte_each_time_is_given_up(hub: InHouse, source: HubSource) -> None:
    with hub.failing(f"cut:1@{RESOLVE}"), pytest.raises(SourceError, match="cannot be reached"):
        read(source, 0, 20_000)
    assert hub.asked(RESOLVE) == source.requests == NETWORK_TRIES
    assert source.bytes_read == NETWORK_TRIES


@pytest.mark.parametrize(
    ("rule", "says"),
    [("whole", "not send bytes 100 to 200"), ("long:10", "more bytes of model|not send"), ("html", "not send")],
)
def test_what_was_not_asked_for_is_refused(hub: InHouse, source: HubSource, rule: str, says: str) -> None:
    with hub.failing(f"{rule}@{RESOLVE}"), pytest.raises(SourceError, match=says):
        read(source, 100, 200)


@pytest.mark.parametrize("file", [MODEL, CONFIG])
@pytest.mark.parametrize("more", [0, 1, 1000])
def test_a_hub_that_sends_more_than_a_range_is_not_believed(source: HubSource, file: str, more: int) -> None:
    size = next(entry.bytes for entry in source.files if entry.path == file)

    def answer(connection: socket.socket) -> None:  # which does not say how long it is
        connection.sendall(b"HTTP/1.1 206 P\r\nContent-Range: bytes 5-14/%d\r\n\r\n" % size + b"x" * (10 + more))
        raise OSError

    with served_by_hand(answer) as (address, _):
        there = HubSource(Hub(address, TOKEN), source.ref, files=source.files)
        with pytest.raises(SourceError, match="sent more bytes of") if more else nullcontext():
            assert read(there, 5, 15, file) == b"x" * 10


# --- What it is of ------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", [MODEL, CONFIG])
def test_an_answer_of_another_commit_or_content_is_refused(hub: InHouse, source: HubSource, file: str) -> None:
    with hub.failing(f"other@{RESOLVE}"), pytest.raises(SourceError, match="is no longer the file that the Hub listed"):
        read(source, 0, 9, file)
    assert read(source, 0, 9, file)


def test_the_hubs_own_answer_speaks_of_the_commit_and_a_store_does_not(source: HubSource) -> None:
    """The Hub's answer names another commit and leads to a place that names none."""
    size = next(file.bytes for file in source.files if file.path == MODEL)
    store = answering(b"x" * 9, f"Content-Range: bytes 0-8/{size}", status="206 P")
    for commit in (source.ref.revision, "0" * 40):
        with served_by_hand(store) as (place, _):
            led = answering(b"", f"X-Repo-Commit: {commit}", f"Location: {place}", status="302 Found")
            with served_by_hand(led) as (address, _):
                there = HubSource(Hub(address, TOKEN), source.ref, files=source.files)
                if commit == source.ref.revision:
                    assert read(there, 0, 9) == b"x" * 9
                else:
                    with pytest.raises(SourceError, match="is no longer the file that the Hub listed"):
                        read(there, 0, 9)


@pytest.mark.parametrize("missing", ["private", "gated", "both", "none"])
def test_only_what_is_said_to_be_public_is_public(hub: InHouse, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, left_out = repos.describe, ("private", "gated") if missing == "both" else (missing,)

    def describe(*given: Any, **more: Any) -> Any:
        return {key: value for key, value in usual(*given, **more).items() if key not in left_out}

    source = open_repo(Hub(hub.address, TOKEN), Place("hub", SOURCE))
    monkeypatch.setattr(repos, "describe", describe)
    assert open_repo(Hub(hub.address, TOKEN), Place("hub", SOURCE)).is_private is (missing != "none")
    assert source.closed() == ("" if missing == "none" else SOURCE)


CLOSINGS: dict[str, Callable[[InHouse, str], object]] = {
    "private": lambda hub, name: hub.api().update_repo_settings(name, private=True),
    "gated": lambda hub, name: hub.api().update_repo_settings(name, gated="manual"),
    "deleted": lambda hub, name: hub.api().delete_repo(name),
}


@pytest.mark.parametrize("what", CLOSINGS)
def test_a_source_is_closed_unless_known_to_be_public_still(hub: InHouse, folder: Path, name: str, what: str) -> None:
    push(hub, folder, name)
    source = open_repo(Hub(hub.address, TOKEN), Place("hub", name))
    assert source.closed() == ""
    for rule in ("status:500", "status:403", "gone", "null"):
        with hub.failing(f"{rule}@GET /api/models/{name}"):
            assert source.closed() == name, rule
    assert source.closed() == ""
    CLOSINGS[what](hub, name)
    assert source.closed() == name
    if what == "private":  # one that was never public is not closed
        assert open_repo(Hub(hub.address, TOKEN), Place("hub", name)).closed() == ""


# --- Access to the store ------------------------------------------------------------------------------


def test_access_is_asked_for_once_until_it_ends(hub: InHouse, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hub, "least_xet_bytes", 1000)
    given: list[dict[str, Any]] = []
    refusals = iter([False, True, False, False, False, False])

    def stream(_: Any, start: int, end: int) -> Iterator[bytes]:
        if next(refusals):
            raise PermissionError("it has expired")
        yield data[start:end]

    client = Hub(hub.address, TOKEN)
    group = SimpleNamespace(download_stream=stream)
    client.xet = SimpleNamespace(new_download_stream_group=lambda **more: given.append(more) or group)  # type: ignore[misc]
    source = open_repo(client, Place("hub", SOURCE))
    token = f"/{SOURCE}/xet-read-token/"
    assert read(source, 0, 2000) == data[:2000] and hub.asked(token) == 1
    assert read(source, 5, 2000) == data[5:2000] and hub.asked(token) == 2, "what was refused is asked for anew"
    ends = given[-1]["token_expiry_unix_secs"]
    for seconds, asked in ((ends - ANSWER_TIMEOUT_SECONDS - 2, 2), (ends - ANSWER_TIMEOUT_SECONDS + 2, 3)):
        monkeypatch.setattr(hub_client, "time", SimpleNamespace(time=lambda seconds=seconds: seconds))
        client.download_from(SOURCE, source.ref.revision)
        assert hub.asked(token) == asked


# --- What is lent -------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [[MODEL, CONFIG], [CONFIG, MODEL]])
def test_what_a_public_repo_lends_anybody_reads(
    hub: InHouse, source: HubSource, folder: Path, order: list[str]
) -> None:
    lent = source.lend(order)
    assert TOKEN not in repr(lent) and lent.grant
    assert [file.file for file in lent.files] == order
    assert [bool(file.xet_hash) for file in lent.files] == [file == MODEL for file in order]
    assert source.lend([CONFIG]).grant is None
    (config,) = source.lend([CONFIG]).files
    data = (folder / CONFIG).read_bytes()
    assert b"".join(open_lent(source.lend([CONFIG])).read(CONFIG, 0, len(data))) == data
    assert config.place.startswith(f"{hub.address}/{SOURCE}/resolve/{source.ref.revision}/")


@pytest.mark.parametrize("gated", [False, True])
def test_a_closed_repo_lends_nothing_if_one_takes_a_login(hub: InHouse, folder: Path, name: str, gated: bool) -> None:
    push(hub, folder, name, private=not gated)
    if gated:
        hub.api().update_repo_settings(name, gated="auto")
    source = open_repo(Hub(hub.address, TOKEN), Place("hub", name))
    assert source.is_private and source.lend([MODEL]).grant
    for files in ([MODEL, CONFIG], [CONFIG, MODEL], [CONFIG]):
        with pytest.raises(SourceError, match=f"cannot read {CONFIG} without a login"):
            source.lend(files)
