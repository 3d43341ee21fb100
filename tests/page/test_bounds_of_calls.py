"""What comes to the page is bounded, and odd requests are not repeated: asked of its door in this process."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi.exceptions import RequestValidationError
from gradio.route_utils import FnIndexInferError
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sharding.core.limits import MAX_BODY_BYTES, MAX_TOOL_BYTES, MAX_TOOL_CALLS
from sharding.page.serving.guard import BODY_SECONDS, MALFORMED, Door
from tests.conftest import LONGEST_SECONDS, in_a_loop
from tests.promises import promise

TOOLS = ("/gradio_api/mcp/", "/gradio_api/mcp", "/gradio_api/mcp/http/", "/gradio_api/mcp/schema")
CALLS = ("/gradio_api/call/plan", "/gradio_api/call/v2/plan", "/gradio_api/queue/join", "/gradio_api/cancel")


async def page(scope: Scope, receive: Receive, send: Send) -> None:
    """Say how long the body was."""
    body = await Request(scope, receive).body()
    await PlainTextResponse(str(len(body)))(scope, receive, send)


def post(app: ASGIApp, path: str, content: bytes, states_length: bool = True) -> httpx.Response:
    async def parts() -> Any:
        for start in range(0, len(content), 5000):
            yield content[start : start + 5000]

    async def answered() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://page") as client:
            return await client.post(path, content=content if states_length else parts())

    return in_a_loop(answered())  # type: ignore[no-any-return]


def text_of(size: int) -> bytes:
    return json.dumps("a" * (size - 2)).encode()


@promise("docs/security.md#fill-the-memory-with-long-requests")
@pytest.mark.parametrize("states_length", [True, False])
def test_a_call_has_so_many_bytes_and_that_of_a_tool_fewer(states_length: bool) -> None:
    most = dict.fromkeys(CALLS, MAX_BODY_BYTES) | dict.fromkeys(TOOLS, MAX_TOOL_BYTES)
    assert (MAX_BODY_BYTES, MAX_TOOL_BYTES) == (1_000_000, 16_000)
    for path, size in most.items():
        answer = post(Door(page), path, text_of(size), states_length)
        assert (answer.status_code, answer.text) == (200, str(size)), path
        for larger in (size + 1, 2 * size):
            assert post(Door(page), path, text_of(larger), states_length).status_code == 413, (path, larger)
    at_once = Slow(text_of(MAX_BODY_BYTES + 1))
    at_once.is_whole = True
    assert at_once.ask(Door(page), "POST", CALLS[0]) == [413]


class Slow:
    """Somebody who sends a part of a body and then nothing."""

    def __init__(self, *parts: bytes, length: int | None = None) -> None:
        self.parts, self.statuses = [*parts], list[int]()
        self.headers = [(b"content-length", str(length).encode())] if length is not None else []

    async def receive(self) -> Message:
        if not self.parts:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": self.parts.pop(0), "more_body": bool(self.parts) or not self.is_whole}

    is_whole = False

    async def send(self, message: Message) -> None:
        self.statuses.extend([message["status"]] if message["type"] == "http.response.start" else [])

    def ask(self, door: Door, method: str, path: str) -> list[int]:
        scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": self.headers}

        async def asked() -> None:
            await asyncio.wait_for(door(scope, self.receive, self.send), LONGEST_SECONDS)

        in_a_loop(asked())
        return self.statuses


@pytest.mark.parametrize("length", [None, 500])
@pytest.mark.parametrize("parts", [(), (b"{", b"", b'"data"')], ids=len)
@pytest.mark.parametrize(("method", "path"), [("POST", CALLS[0]), ("POST", TOOLS[0]), ("GET", "/")])
def test_a_request_that_does_not_arrive_is_given_up(
    method: str, path: str, parts: tuple[bytes, ...], length: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert BODY_SECONDS == 30
    monkeypatch.setattr("sharding.page.serving.guard.BODY_SECONDS", 0.02)
    reached: list[str] = []

    async def inside(scope: Scope, receive: Receive, send: Send) -> None:
        reached.append(scope["path"])

    assert Slow(*parts, length=length).ask(Door(inside), method, path) == [413]
    assert reached == []


def test_an_answer_may_take_longer_than_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sharding.page.serving.guard.BODY_SECONDS", 0.01)

    async def inside(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(0.05)
        await page(scope, receive, send)

    whole = Slow(b"{", b"}")
    whole.is_whole = True
    assert whole.ask(Door(inside), "POST", CALLS[0]) == [200]


@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError])
def test_a_tool_that_fails_or_is_hung_up_on_makes_room_for_the_next(error: type[BaseException]) -> None:
    is_broken = True

    async def inside(scope: Scope, receive: Receive, send: Send) -> None:
        if is_broken:
            raise error
        await page(scope, receive, send)

    door = Door(inside)
    for path in TOOLS * MAX_TOOL_CALLS:
        with pytest.raises(error):
            post(door, path, b"{}")
    is_broken = False
    assert post(door, TOOLS[0], b"{}").status_code == 200


NAMES: dict[int, list[Any]] = {
    200: ["s", "a" * 100, "Session-1.2_3", None],
    422: ["", "a" * 101, "good bad", "good\n", "a<gradio-sep>b", " good", "gut\xe4", 7, True, ["s"], {"s": 1}],
}


@promise("docs/security.md#disturb-other-calls-with-the-name")
def test_a_session_is_called_by_letters_digits_and_few_other_characters() -> None:
    def answers(path: str, name: object) -> int:
        return post(Door(page), path, json.dumps({"data": [], "session_hash": name}).encode()).status_code

    for path in (CALLS[0], CALLS[2], TOOLS[0], "/gradio_api/reset"):
        for status, names in NAMES.items():
            assert {answers(path, name) for name in names} == {status}, path


@promise("docs/security.md#block-the-page-by-watching-one")
def test_only_so_many_tools_are_called_at_a_time() -> None:
    go, statuses = asyncio.Event(), list[int]()

    async def inside(scope: Scope, receive: Receive, send: Send) -> None:
        await go.wait()
        await page(scope, receive, send)

    async def crowd() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(Door(inside)), base_url="http://page") as client:

            async def ask(path: str) -> None:
                statuses.append((await client.post(path, content=b"{}")).status_code)

            calls = [asyncio.create_task(ask(TOOLS[0])) for _ in range(MAX_TOOL_CALLS + 3)]
            calls.append(asyncio.create_task(ask(CALLS[2])))
            while len(statuses) < 3:
                await asyncio.sleep(0)
            go.set()
            await asyncio.gather(*calls)
            assert statuses == [503] * 3 + [200] * (MAX_TOOL_CALLS + 1)
            await ask(TOOLS[0])
            assert statuses[-1] == 200

    in_a_loop(crowd())


SECRET = "hf_secret" * 1000
ODD: dict[str, Callable[[], Exception]] = {
    "validation": lambda: RequestValidationError([{"msg": SECRET, "input": SECRET}], body=SECRET),
    "function": lambda: FnIndexInferError(f"There is no {SECRET}"),
    "key": lambda: KeyError(SECRET),
    "type": lambda: TypeError(SECRET),
    "value": lambda: ValueError(SECRET),
}


@pytest.mark.parametrize("kind", ODD)
def test_what_is_wrong_with_a_request_is_said_in_the_same_words_whatever_it_held(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def inside(request: Request) -> Response:
        raise ODD[kind]()

    routes = [Route("/{path:path}", inside, methods=["POST"])]
    answer = post(Door(Starlette(routes=routes, exception_handlers=MALFORMED)), CALLS[0], b"{}")
    said = {"detail": "This request does not have the form that the page's API describes."}
    assert (answer.status_code, answer.json()) == (422, said)
    assert "hf_secret" not in caplog.text + str(Headers(raw=answer.headers.raw))
