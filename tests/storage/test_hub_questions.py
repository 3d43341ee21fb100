"""How a Hub is asked: as often as it helps, and within bounds that each question has to itself."""

import os
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from sharding.core.errors import SourceError
from sharding.core.limits import LONGEST_WAIT_SECONDS
from sharding.storage.hub import guard as hub_guard
from sharding.storage.hub import retry as hub_retry
from sharding.storage.hub.client import Hub
from sharding.storage.hub.repo import HubRepo
from sharding.storage.hub.retry import NETWORK_TRIES, OddAnswer
from tests.hubs import TOKEN
from tests.inhouse import InHouse
from tests.storage.steps import SOURCE
from tests.storage.test_hub_hostile import served_by_hand

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


@pytest.mark.parametrize(("seconds", "waits"), [(LONGEST_WAIT_SECONDS, True), (LONGEST_WAIT_SECONDS + 1, False)])
def test_a_wait_is_as_long_as_the_hub_asks_or_none(monkeypatch: pytest.MonkeyPatch, seconds: int, waits: bool) -> None:
    slept: list[float] = []
    monkeypatch.setattr(hub_retry.time, "sleep", slept.append)
    monkeypatch.setattr(hub_retry, "NETWORK_TRIES", 2)

    def busy(connection: socket.socket) -> None:
        connection.sendall(
            b"HTTP/1.1 429 Slow\r\nRetry-After: %d\r\nConnection: close\r\nContent-Length: 0\r\n\r\n" % seconds
        )
        raise OSError

    with served_by_hand(busy) as (address, asked):
        client = Hub(address, None)
        with pytest.raises(SourceError, match="slow down"):
            client.ask(SOURCE, SourceError, lambda: client.api.model_info(SOURCE))
    assert len(asked) == (2 if waits else 1)
    assert [seconds <= one <= 1.5 * seconds for one in slept] == [True] * waits


def test_the_waits_double_where_the_hub_asks_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(hub_retry.time, "sleep", slept.append)
    for tries in range(1, NETWORK_TRIES):
        hub_retry.wait_to_retry(ConnectionError("broken"), tries)
    least = [hub_retry.NETWORK_WAIT_SECONDS * 2**tries for tries in range(1, NETWORK_TRIES)]
    assert all(one <= seconds <= 1.5 * one for one, seconds in zip(least, slept, strict=True))
    with pytest.raises(ConnectionError):
        hub_retry.wait_to_retry(ConnectionError("broken"), NETWORK_TRIES)


def test_the_client_itself_sleeps_for_no_hub_that_asks_for_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", slept.append)
    monkeypatch.setattr(hub_retry.time, "sleep", slept.append)

    def busy(connection: socket.socket) -> None:
        wait = LONGEST_WAIT_SECONDS + 1
        connection.sendall(
            b"HTTP/1.1 503 Slow\r\nRetry-After: %d\r\nConnection: close\r\nContent-Length: 0\r\n\r\n" % wait
        )
        raise OSError

    with served_by_hand(busy) as (address, asked):
        client = Hub(address, None)
        with pytest.raises(SourceError):
            client.ask(SOURCE, SourceError, lambda: list(client.api.list_repo_tree(SOURCE)))
    assert (slept, len(asked)) == ([], 1)


# --- Bounds -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", ["MAX_ANSWER_BYTES", "MAX_ANSWER_VALUES"])
def test_an_answer_that_was_cut_does_not_count_for_the_next_try(
    hub: InHouse, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    answer = hub.ask("GET", f"/api/models/{SOURCE}").body
    values = sum(answer.count(sign) for sign in (b",", b"[", b"{"))
    monkeypatch.setattr(hub_guard, bound, len(answer) + 9 if bound == "MAX_ANSWER_BYTES" else values)
    with hub.failing(f"cut:{len(answer) - 1}@{INFO}#{NETWORK_TRIES - 1}"):
        assert info(hub).id == SOURCE
    monkeypatch.setattr(hub_guard, bound, len(answer) - 1 if bound == "MAX_ANSWER_BYTES" else values - 1)
    with pytest.raises(SourceError, match="sends .*more than"):
        info(hub)


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 5000])
def test_a_small_file_is_read_up_to_a_bound(hub: InHouse, name: str, size: int) -> None:
    data = os.urandom(size)
    hub.api().create_repo(name)
    hub.api().upload_file(path_or_fileobj=data, path_in_repo="notes.txt", repo_id=name)
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


def test_a_file_of_which_too_few_bytes_come_after_many_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_guard, "LEAST_SECONDS", 0.05)
    monkeypatch.setattr(hub_guard, "LEAST_BYTES", 1000)
    monkeypatch.setattr(hub_retry, "NETWORK_TRIES", 2)
    monkeypatch.setattr(hub_retry, "NETWORK_WAIT_SECONDS", 0.0001)
    parts = dict[socket.socket, int]()

    def drips(connection: socket.socket) -> None:
        number = parts[connection] = parts.get(connection, -1) + 1
        if number == 0:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        connection.sendall(b"x" * (50_000 if number == 2 else 1))  # not with the headers, which count by themselves
        pause.wait(0.01)
        if number == 60:
            raise OSError

    import threading

    pause = threading.Event()
    with served_by_hand(drips) as (address, asked):
        client = Hub(address, None)
        with pytest.raises(SourceError, match="fewer than"):
            client.ask(SOURCE, SourceError, lambda: client.get(SOURCE, "main", "notes.txt", 10**6))
    assert len(asked) == 2


def test_who_takes_the_bytes_may_be_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours pass while nobody reads; what had come by then was there at once."""
    now = [0.0]
    monkeypatch.setattr(hub_guard, "time", SimpleNamespace(monotonic=lambda: now[0], time=lambda: now[0]))
    size = 300_000

    def quick(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size)
        raise OSError

    with served_by_hand(quick) as (address, _):
        client, count = Hub(address, None), 0
        for url, headers in (
            (client.address(SOURCE, "main", "model.safetensors"), client.headers),
            (f"{address}/api/models/{SOURCE}/tree/main", client.headers),
        ):
            from huggingface_hub.utils import get_session

            with get_session().stream("GET", url, headers=headers) as response:
                for chunk in response.iter_bytes(10_000):
                    now[0] += 3600.0
                    count += len(chunk)
    assert count == 2 * size
