"""How a Hub is asked: as often as it helps, and within bounds that each question has to itself."""

import gzip
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from huggingface_hub.errors import HfHubHTTPError

from sharding.core.errors import SourceError
from sharding.core.limits import LONGEST_WAIT_SECONDS
from sharding.storage.hub import answers as hub_retry
from sharding.storage.hub import guard as hub_guard
from sharding.storage.hub.answers import NETWORK_TRIES, OddAnswer
from sharding.storage.hub.client import Hub
from sharding.storage.hub.repo import HubRepo
from tests.hubs import SOURCE, TOKEN
from tests.inhouse import InHouse
from tests.storage.steps import answering, served_by_hand

INFO = f"GET /api/models/{SOURCE}$"


def info(hub: InHouse, token: str | None = TOKEN) -> Any:
    client = Hub(hub.address, token)
    return client.ask(SOURCE, SourceError, lambda: client.api.model_info(SOURCE))


# --- Again, and how often -----------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["status:503", "status:429", "status:408", "cut:0", "empty", "html"])
def test_what_may_pass_is_asked_so_many_times_in_all(hub: InHouse, rule: str) -> None:
    for failures in (NETWORK_TRIES - 1, NETWORK_TRIES):
        hub.log.clear()
        with hub.failing(f"{rule}@{INFO}#{failures}"):
            if failures < NETWORK_TRIES:
                assert info(hub).id == SOURCE
            else:
                with pytest.raises(SourceError):
                    info(hub)
        assert hub.asked(INFO) == NETWORK_TRIES


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 413, 501])
def test_what_cannot_pass_is_asked_once(hub: InHouse, status: int) -> None:
    with hub.failing(f"status:{status}@{INFO}"), pytest.raises(SourceError):
        info(hub)
    assert hub.asked(INFO) == 1


@pytest.mark.parametrize("wrapped", [False, True])
def test_an_answer_that_no_hub_gives_is_not_asked_for_again(hub: InHouse, wrapped: bool) -> None:
    asked: list[int] = []

    def question() -> None:
        asked.append(1)
        try:
            raise OddAnswer("sends the login elsewhere")
        except OddAnswer as error:
            if wrapped:  # as hf-xet and httpx do with what a hook of theirs raises
                raise RuntimeError("it broke off") from error
            raise

    with pytest.raises(SourceError, match="sends the login elsewhere") as refusal:
        Hub(hub.address, TOKEN).ask(SOURCE, SourceError, question)
    assert len(asked) == 1 and "trust" in refusal.value.hint


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long each wait was, of which there is none."""
    slept: list[float] = []
    monkeypatch.setattr(hub_retry.time, "sleep", slept.append)
    return slept


@pytest.mark.parametrize(("seconds", "waits"), [(LONGEST_WAIT_SECONDS, True), (LONGEST_WAIT_SECONDS + 1, False)])
def test_a_wait_is_as_long_as_the_hub_asks_or_none(
    slept: list[float], monkeypatch: pytest.MonkeyPatch, seconds: int, waits: bool
) -> None:
    monkeypatch.setattr(hub_retry, "NETWORK_TRIES", 2)
    with served_by_hand(answering(b"", f"Retry-After: {seconds}", status="429 Slow")) as (address, asked):
        client = Hub(address, None)
        with pytest.raises(SourceError, match="slow down"):
            client.ask(SOURCE, SourceError, lambda: client.api.model_info(SOURCE))
    assert len(asked) == (2 if waits else 1)
    assert [seconds <= one <= 1.5 * seconds for one in slept] == [True] * waits


def test_the_waits_double_where_the_hub_asks_for_none(slept: list[float]) -> None:
    for tries in range(1, NETWORK_TRIES):
        hub_retry.wait_to_retry(ConnectionError("broken"), tries)
    least = [hub_retry.NETWORK_WAIT_SECONDS * 2**tries for tries in range(1, NETWORK_TRIES)]
    assert all(one <= seconds <= 1.5 * one for one, seconds in zip(least, slept, strict=True))
    with pytest.raises(ConnectionError):
        hub_retry.wait_to_retry(ConnectionError("broken"), NETWORK_TRIES)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"RateLimit": '"api";r=0;t=55'}, 56.0),
        ({"Retry-After": "7", "RateLimit": '"api";r=0;t=55'}, 56.0),
        ({"Retry-After": "7", "RateLimit": '"api";r=9;t=55'}, 7.0),
    ],
)
def test_a_hub_that_counts_is_left_alone_as_asked(slept: list[float], headers: dict[str, str], seconds: float) -> None:
    answer = httpx2.Response(429, headers=headers, request=httpx2.Request("GET", "http://127.0.0.1:1"))
    hub_retry.wait_to_retry(HfHubHTTPError("slow down", response=answer), 1)
    assert seconds <= slept[0] <= 1.5 * seconds


@pytest.mark.parametrize("error", [RuntimeError("xet"), PermissionError("old"), FileNotFoundError("gone")])
def test_what_hf_xet_raises_is_put_into_words(error: Exception) -> None:
    hub = Hub("http://127.0.0.1:1", None)
    with pytest.raises(SourceError, match="a/b") as refusal, hub.explained("a/b", SourceError):
        raise error
    assert refusal.value.hint


# --- Bounds -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", ["MAX_ANSWER_BYTES", "MAX_ANSWER_VALUES"])
def test_an_answer_that_was_cut_does_not_count_later(hub: InHouse, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    answer = hub.ask("GET", f"/api/models/{SOURCE}").body
    values = sum(answer.count(sign) for sign in (b",", b"[", b"{"))
    monkeypatch.setattr(hub_guard, bound, len(answer) + 9 if bound == "MAX_ANSWER_BYTES" else values)
    with hub.failing(f"cut:{len(answer) - 1}@{INFO}#{NETWORK_TRIES - 1}"):
        assert info(hub).id == SOURCE
    monkeypatch.setattr(hub_guard, bound, len(answer) - 1 if bound == "MAX_ANSWER_BYTES" else values - 1)
    with pytest.raises(SourceError, match="sends .*more than"):
        info(hub)


def test_a_small_file_is_read_up_to_a_bound(hub: InHouse, name: str) -> None:
    hub.api().create_repo(name)
    for size in (0, 99, 100, 101, 5000):
        data = os.urandom(size)
        hub.put(name, "notes.txt", data)
        assert HubRepo(Hub(hub.address, TOKEN), name).read("main", "notes.txt", 100) == data[:100]


def test_a_small_file_that_is_large_is_not_read_to_its_end() -> None:
    sent: list[int] = []

    def large(connection: socket.socket) -> None:
        if not sent:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
        sent.append(1)
        connection.sendall(b"x" * 100_000)
        if len(sent) == 1000:
            raise OSError

    with served_by_hand(large) as (address, _):
        assert Hub(address, None).get(SOURCE, "main", "notes.txt", 10) == b"x" * 10
    assert len(sent) < 500


# --- What comes over the line -------------------------------------------------------------------------


def line(now: list[float], pieces: list[tuple[float, int]]) -> Iterator[bytes]:
    """What comes over a line: after each wait in seconds so many bytes."""
    for seconds, count in pieces:
        now[0] += seconds
        yield b"x" * count


def read(now: list[float], chunks: Iterable[bytes]) -> bytes:
    """Read all of it, an hour for each piece: who takes the bytes may be slow."""
    text = bytearray()
    for chunk in chunks:
        text += chunk
        now[0] += 3600
    return bytes(text)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(hub_guard, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


SECONDS, BYTES = hub_guard.LEAST_SECONDS, hub_guard.LEAST_BYTES


@pytest.mark.parametrize(
    ("pieces", "comes"),
    [
        ([(1, BYTES), (SECONDS, 9), (SECONDS / 2, 9)], True),
        ([(SECONDS / 2, BYTES)] * 9, True),
        ([(SECONDS + 1, BYTES), (SECONDS + 1, BYTES - 1)], False),
        ([(SECONDS / 2, BYTES * 9), (SECONDS, 1), (SECONDS / 2, 1), (SECONDS, 1)], False),
    ],
)
def test_a_file_comes_as_slowly_as_it_likes_but_for_a_minute_with_too_few_bytes(
    now: list[float], pieces: list[tuple[float, int]], comes: bool
) -> None:
    with nullcontext() if comes else pytest.raises(TimeoutError, match="fewer than 64.0 kB in 60 s"):
        assert len(read(now, hub_guard._file(line(now, pieces)))) == sum(count for _, count in pieces)


def test_an_answer_is_counted_as_it_comes_and_as_it_unpacks(now: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(chunks: Iterable[bytes], encoding: str = "identity") -> bytes:
        return read(now, hub_guard._answer(chunks, encoding, hub_guard._Spent()))

    seconds = hub_guard.LONGEST_ANSWER_SECONDS
    assert answer(line(now, [(seconds / 2, 9), (seconds / 2, 9)])) == b"x" * 18
    with pytest.raises(OddAnswer, match="does not finish its answer"):
        answer(line(now, [(seconds / 2, 9), (seconds / 2 + 1, 9)]))
    monkeypatch.setattr(hub_guard, "MAX_ANSWER_BYTES", 100_000)
    packed = gzip.compress(b"x" * 100_000)
    assert len(answer([packed], "gzip")) == 100_000
    with pytest.raises(OddAnswer, match=r"more than 100\.0 kB or"):
        answer([gzip.compress(b"x" * 100_001)], "gzip")
    # A name in the header of a gzip file (RFC 1952, FNAME) may be as long as one likes, and is no part of the text.
    with pytest.raises(OddAnswer, match=r"an answer of more than 100\.0 kB"):
        answer([b"\x1f\x8b\x08\x08\0\0\0\0\0\x03", b"a" * 100_000], "gzip")
