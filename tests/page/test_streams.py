"""The stream of a browser stays open between its calls; nothing is kept that nobody fetches or asks for any more."""

import asyncio
import json
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import psutil
import pytest
from gradio import queueing
from gradio.server_messages import HeartbeatMessage, ProcessCompletedMessage
from gradio.state_holder import SessionState

from sharding.page.serving.answers import QUIET_SECONDS, UNFETCHED_SECONDS, Sessions, bound_answers
from tests.conftest import LONGEST_SECONDS, in_a_loop
from tests.page.site import NONE, PATIENTLY, Headers, Site, ask, call, choices, event
from tests.promises import promise

CALLS = 60
GROWTH_BYTES = 150_000_000
"""Memory by which the page may have grown after calls of 0.9 MB each that nobody fetches."""
NOWHERE: list[Any] = ["nobody/nothing", *choices("plan", max_shard_size="1MB")]
BROWSER = {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}


def plan(space: Site, session: str, headers: Headers = NONE) -> str:
    """Ask for the plan of a repo that is not there. Return the id of the call."""
    asked = {**event(space, "plan", *NOWHERE), "session_hash": session}
    return str(ask(space, "POST", "/gradio_api/queue/join", headers, asked).json()["event_id"])


def messages(stream: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in stream.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def test_the_answer_to_the_next_call_comes_on_the_stream_that_a_browser_has_open(space: Site) -> None:
    address = f"{space.address}/gradio_api/queue/data?session_hash=browser"
    ended = []
    first = plan(space, "browser", BROWSER)
    with httpx.stream("GET", address, headers=BROWSER, **PATIENTLY) as stream:
        for message in messages(stream):
            assert message["msg"] != "close_stream"
            if message["msg"] == "process_completed":
                ended.append(message["event_id"])
                if len(ended) == 2:
                    break
                second = plan(space, "browser", BROWSER)
    assert ended == [first, second]


def test_the_stream_of_a_single_call_ends_in_a_browser_too(space: Site) -> None:
    status, heard = call(space, "plan", NOWHERE, BROWSER)
    assert status == 200 and "error" in heard


def test_the_stream_of_a_program_ends_with_its_last_call(space: Site) -> None:
    asked = plan(space, "program")
    with httpx.stream("GET", f"{space.address}/gradio_api/queue/data?session_hash=program", **PATIENTLY) as stream:
        heard = list(messages(stream))
    assert [message["event_id"] for message in heard if message["msg"] == "process_completed"] == [asked]
    assert heard[-1]["msg"] == "close_stream"


@pytest.mark.parametrize("is_browser", [True, False])
def test_a_stream_ends_when_all_is_quiet(monkeypatch: pytest.MonkeyPatch, is_browser: bool) -> None:
    queue: Any = SimpleNamespace(pending_event_ids_session={}, event_queue_per_concurrency_id={}, active_jobs=[])
    clock = SimpleNamespace(now=0.0)
    for part, name in ((SessionState, "_update_value_in_config"), (queueing, "traceback")):
        monkeypatch.setattr(part, name, getattr(part, name))  # what is replaced in Gradio comes back

    async def push(body: Any, request: Any, username: str | None) -> tuple[Any, ...]:
        queue.pending_event_ids_session.setdefault(body.session_hash, set()).add("call")
        return True, "call", "success"

    async def heard() -> list[str]:
        queue.push = push
        bound_answers(queue)
        sessions = queue.pending_messages_per_session = Sessions(queue, clock=lambda: clock.now)
        sessions["one"] = asyncio.Queue()
        await queue.push(
            SimpleNamespace(session_hash="one"), SimpleNamespace(headers=BROWSER if is_browser else {}), None
        )
        sessions["one"].put_nowait(ProcessCompletedMessage(event_id="call", output={}, success=True))
        kinds = [(await sessions["one"].get()).msg]
        queue.pending_event_ids_session["one"].discard("call")
        for clock.now in (1.0, QUIET_SECONDS - 1, QUIET_SECONDS + 1):
            sessions["one"].put_nowait(HeartbeatMessage())
            kinds.append((await sessions["one"].get()).msg)
        return [str(kind.value) for kind in kinds]

    after = ["heartbeat", "heartbeat", "process_completed"] if is_browser else ["process_completed"] * 3
    assert in_a_loop(heard()) == ["process_completed", *after]


@promise("docs/security.md#fill-the-memory-with-answers-that")
@pytest.mark.thorough
def test_long_calls_that_nobody_fetches_are_forgotten(space: Site) -> None:
    assert space.process
    page = psutil.Process(space.process.pid)
    before = page.memory_info().rss
    for attempt in range(3):
        for number in range(CALLS):
            wish = {"data": [f"{attempt}-{number}-" + "a" * 900_000, *NOWHERE[1:]]}
            assert ask(space, "POST", "/gradio_api/call/plan", body=wish).status_code == 200
    deadline = time.monotonic() + UNFETCHED_SECONDS / 2  # later they are forgotten because they are old
    while page.memory_info().rss - before > GROWTH_BYTES:
        assert time.monotonic() < deadline, "the page keeps what nobody fetches"
        time.sleep(0.2)


@pytest.mark.thorough
def test_a_second_stream_for_a_call_that_has_ended_ends_too(space: Site) -> None:
    event = ask(space, "POST", "/gradio_api/call/plan", body={"data": NOWHERE}).json()["event_id"]
    for _ in range(2):
        deadline = time.monotonic() + LONGEST_SECONDS
        with httpx.stream("GET", f"{space.address}/gradio_api/call/plan/{event}", **PATIENTLY) as answer:
            for _ in answer.iter_lines():
                assert time.monotonic() < deadline, "the page goes on with heartbeats"
