"""Answers wait for whoever asked, but not for ever, and not any number of them."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from gradio.server_messages import ProcessCompletedMessage

from sharding.core.limits import MAX_SESSIONS_KEPT
from sharding.page.serving.answers import UNFETCHED_BYTES, UNFETCHED_SECONDS, Sessions
from tests.conftest import in_a_loop
from tests.promises import promise


def message(size: int, success: bool = True) -> ProcessCompletedMessage:
    return ProcessCompletedMessage(output={"data": ["x" * size]} if success else {"error": "x" * size}, success=success)


@pytest.fixture
def queue() -> Any:
    return SimpleNamespace(pending_event_ids_session={})


def begin(sessions: Sessions, queue: Any, name: str) -> None:
    sessions[name] = asyncio.Queue()
    queue.pending_event_ids_session[name] = {"event"}


@promise("docs/security.md#fill-the-memory-with-answers-that")
def test_unfetched_answers_have_a_bound_and_the_oldest_go_first(queue: Any) -> None:
    sessions = Sessions(queue)
    for number in range(100):
        begin(sessions, queue, f"s{number}")
        sessions[f"s{number}"].put_nowait(message(UNFETCHED_BYTES // 10))
    assert 8 <= len(sessions) <= 10
    assert "s99" in sessions and "s0" not in sessions
    assert set(queue.pending_event_ids_session) == set(sessions)


def test_an_answer_larger_than_all_that_is_kept_waits_for_its_reader(queue: Any) -> None:
    sessions = Sessions(queue)
    begin(sessions, queue, "large")
    sessions["large"].put_nowait(message(2 * UNFETCHED_BYTES))
    assert in_a_loop(sessions["large"].get()).success


def test_old_answers_are_forgotten(queue: Any) -> None:
    now = [0.0]
    sessions = Sessions(queue, clock=lambda: now[0])
    begin(sessions, queue, "old")
    now[0] = UNFETCHED_SECONDS + 1
    begin(sessions, queue, "new")
    assert list(sessions) == ["new"]


def test_who_listens_is_not_forgotten(queue: Any) -> None:
    async def listen() -> ProcessCompletedMessage:
        now = [0.0]
        sessions = Sessions(queue, clock=lambda: now[0])
        begin(sessions, queue, "patient")
        waiting = asyncio.create_task(sessions["patient"].get())
        await asyncio.sleep(0)
        now[0] = 10 * UNFETCHED_SECONDS
        for number in range(2 * MAX_SESSIONS_KEPT):
            begin(sessions, queue, f"s{number}")
        assert len(sessions) == MAX_SESSIONS_KEPT
        sessions["patient"].put_nowait(message(10))
        return await waiting  # type: ignore[no-any-return]

    assert in_a_loop(listen()).success


def test_what_is_fetched_counts_no_more(queue: Any) -> None:
    async def fetch() -> None:
        sessions = Sessions(queue)
        for number in range(30):
            begin(sessions, queue, f"s{number}")
            sessions[f"s{number}"].put_nowait(message(UNFETCHED_BYTES // 3))
            await sessions[f"s{number}"].get()
        assert len(sessions) == 30

    in_a_loop(fetch())


@pytest.mark.parametrize("speak", [lambda session: session.put_nowait(message(5))])
def test_a_call_whose_session_is_forgotten_ends_all_the_same(queue: Any, speak: Callable[[Any], None]) -> None:
    speak(Sessions(queue)["gone"])


def test_a_long_error_is_cut(queue: Any) -> None:
    sessions = Sessions(queue)
    begin(sessions, queue, "s")
    sessions["s"].put_nowait(message(900_000, success=False))
    told = in_a_loop(sessions["s"].get())
    assert len(told.output["error"]) < 1500
