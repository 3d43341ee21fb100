"""Break answers on purpose, by rules, as networks, proxies and busy servers sometimes do."""

import gzip
import random
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from threading import Lock

import anyio
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sharding.localhub.store import HUBS_OWN, name_of_grant

_BUFFERED_SECONDS = 0.02  # The buffers of a network hold so much: a receiver that is late for a moment loses no time.


@dataclass(slots=True)
class Fault:
    """A rule that breaks answers to requests whose "METHOD path" contains a match of `pattern`.

    It breaks the next `left` of them (None: all), each with the probability `chance`. The kinds are:

    - `delay` waits `value` seconds before it carries out the request.
    - `stall` waits `value` seconds in the middle of the answer's body.
    - `status` answers with the status `value` and does nothing. With 429 and 503 it sends Retry-After: 0.
      `status:403=TEXT` says TEXT instead of the usual message.
    - `busy` answers with the status 429 and says that the limit ends in `value` seconds, as the Hub does.
    - `cut` carries out the request and breaks the connection after `value` bytes of the body.
    - `short` and `long` send `value` bytes less or more, with the matching Content-Length.
    - `corrupt` flips a bit in the middle. `whole` ignores a range.
    - `other` sends the ids of another commit and of another content.
    - `null`, `list`, `text`, `empty`, `html`, `gone` and `wall` do nothing and answer with what no Hub sends. The
      status of `gone` is 404. That of `wall` is 403, as of a firewall.
    - `slow` receives and sends bodies at `value` bytes per second. With `link`, all requests share that rate. With
      `line`, requests with the same grant of the Xet store share it, like those of one machine. `link=FILE` also writes
      a line into FILE whenever bytes have passed: the time in seconds and their number.

    The other kinds are those of a malicious Hub:

    - `endless` answers with JSON that never ends, and `drip` with one byte every `value` seconds, for ever.
    - `bomb` answers with `value` bytes of blanks in compressed JSON.
    - `trickle` sends the correct answer, one byte every `value` seconds.
    - `next=ADDRESS` names that address as the next page of a list. `away=ADDRESS` redirects to it.
    """

    kind: str
    value: float
    pattern: re.Pattern[str]
    chance: float = 1.0
    left: int | None = None
    address: str = ""
    rates: "dict[str, _Rate]" = field(default_factory=dict)


async def _for_ever(seconds: float) -> AsyncIterator[bytes]:
    yield b"["
    while True:
        await anyio.sleep(seconds)
        yield b"0" if seconds else b'"many bytes", ' * 5000


_JSON = "application/json"
_PAGE = "<!doctype html><title>Welcome</title><p>This network asks you to sign in."
_INSTEAD: dict[str, Callable[[Fault], ASGIApp]] = {  # Kinds that do nothing and answer with something else.
    "status": lambda fault: JSONResponse(
        {"error": fault.address or "A fault on purpose."},
        int(fault.value),
        {"Retry-After": "0"} if fault.value in (429, 503) else {},
    ),
    "busy": lambda fault: JSONResponse(
        {"error": "Too many requests."}, 429, {"RateLimit": f'"api";r=0;t={fault.value:.0f}'}
    ),
    "null": lambda _: JSONResponse(None),
    "list": lambda _: JSONResponse([]),
    "text": lambda _: JSONResponse("a text"),
    "empty": lambda _: Response(b""),
    "html": lambda _: HTMLResponse(_PAGE),
    "gone": lambda _: HTMLResponse(_PAGE, 404),
    "wall": lambda _: HTMLResponse(_PAGE, 403),
    "endless": lambda _: StreamingResponse(_for_ever(0.0), media_type=_JSON),
    "drip": lambda fault: StreamingResponse(_for_ever(fault.value), media_type=_JSON),
    "bomb": lambda fault: Response(
        gzip.compress(b"[" + b" " * int(fault.value) + b"]"), 200, {"Content-Encoding": "gzip"}, _JSON
    ),
    "next": lambda fault: JSONResponse([], headers={"Link": f'<{fault.address}>; rel="next"'}),
    "away": lambda fault: RedirectResponse(fault.address),
}
_MEANWHILE = ("delay", "cut", "short", "long", "corrupt", "stall", "whole", "other", "slow", "link", "line", "trickle")
_RULE = re.compile(
    rf"(?P<kind>{'|'.join((*_INSTEAD, *_MEANWHILE))})(:(?P<value>\d+(\.\d+)?))?(=(?P<address>[^@]+))?"
    r"@(?P<pattern>.+?)(%(?P<chance>[\d.]+))?(#(?P<times>\d+))?"
)


def parse_fault(text: str) -> Fault:
    """Return the fault for the text `KIND[:VALUE][=ADDRESS]@PATTERN[%CHANCE][#TIMES]`. Raises ValueError.

    >>> parse_fault("status:503@POST .*/commit/#2").left
    2
    """
    match = _RULE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a fault. Write KIND[:VALUE][=ADDRESS]@PATTERN[%CHANCE][#TIMES].")
    value, pattern, times = float(match["value"] or 0), re.compile(match["pattern"]), match["times"]
    left, address = int(times) if times else None, match["address"] or ""
    return Fault(match["kind"], value, pattern, float(match["chance"] or 1), left, address)


class ConnectionCut(Exception):  # noqa: N818 - it is not an error of this program
    """Makes the server drop the connection in the middle of an answer."""


class Faults:
    """Middleware that breaks answers by `rules`. The same `seed` gives the same chances."""

    def __init__(self, app: ASGIApp, rules: Sequence[Fault], seed: int = 0) -> None:
        self._app, self._rules = app, rules
        self._random, self._lock = random.Random(seed), Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for fault in self._due(scope) if scope["type"] == "http" else ():
            if instead := _INSTEAD.get(fault.kind):
                return await instead(fault)(scope, receive, send)
            match fault.kind:
                case "delay":
                    await anyio.sleep(fault.value)
                case "trickle":
                    send = _bytewise(send, fault.value)
                case "whole":
                    scope["headers"] = [line for line in scope["headers"] if line[0] != b"range"]
                case "slow" | "link" | "line":
                    receive, send = _slowed(receive, send, _rate(fault, scope))
                case _:
                    send = _Breaker(send, fault)
        await self._app(scope, receive, send)

    def _due(self, scope: Scope) -> list[Fault]:
        request = f"{scope['method']} {scope['path']}"
        due = []
        with self._lock:
            for fault in self._rules:
                if fault.left != 0 and fault.pattern.search(request) and self._random.random() < fault.chance:
                    fault.left = None if fault.left is None else fault.left - 1
                    due.append(fault)
        return due


class _Rate:
    def __init__(self, bytes_per_second: float, log: str = "") -> None:
        self._bytes_per_second = bytes_per_second
        self._free_at = 0.0
        self._log = log
        if log:
            Path(log).write_text("")

    async def wait(self, count: int) -> None:
        now = anyio.current_time()
        if now - self._free_at > _BUFFERED_SECONDS:
            self._free_at = now
        self._free_at += count / self._bytes_per_second
        await anyio.sleep(max(0.0, self._free_at - now))
        if self._log and count:
            with open(self._log, "a") as log:
                log.write(f"{anyio.current_time():.3f} {count}\n")


def _rate(fault: Fault, scope: Scope) -> _Rate:
    """Return the rate of a request, its own or that of its link or line. Requests of the Hub itself have no limit."""
    if fault.kind == "slow":
        return _Rate(fault.value)
    request = Request(scope)
    granted = name_of_grant(request.headers.get("authorization", "")) or request.query_params.get("grant", "")
    if granted == HUBS_OWN:
        return _Rate(inf)
    name = granted if fault.kind == "line" else ""
    if name not in fault.rates:
        fault.rates[name] = _Rate(fault.value, fault.address)
    return fault.rates[name]


def _slowed(receive: Receive, send: Send, rate: _Rate) -> tuple[Receive, Send]:
    async def slow_receive() -> Message:
        message = await receive()
        await rate.wait(len(message.get("body", b"")))
        return message

    async def slow_send(message: Message) -> None:
        await rate.wait(len(message.get("body", b"")))
        await send(message)

    return slow_receive, slow_send


def _bytewise(send: Send, seconds: float) -> Send:
    async def slow(message: Message) -> None:
        for byte in message.get("body", b""):
            await anyio.sleep(seconds)
            await send({"type": "http.response.body", "body": bytes([byte]), "more_body": True})
        await send({**message, "body": b""} if "body" in message else message)

    return slow


class _Breaker:
    def __init__(self, send: Send, fault: Fault) -> None:
        self._send, self._kind, self._value = send, fault.kind, fault.value
        self._sent = self._size = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=list(message["headers"]))
            self._size = int(headers.get("content-length", 0))
            if self._kind in ("short", "long", "cut"):
                more = {"short": -min(self._value, self._size), "long": self._value, "cut": 1}[self._kind]
                headers["content-length"] = str(int(self._size + more))
            for name in ("x-repo-commit", "etag", "x-linked-etag") if self._kind == "other" else ():
                if name in headers:
                    headers[name] = headers[name][::-1]
            message = {**message, "headers": headers.raw}
        elif message["type"] == "http.response.body":
            message = {**message, "body": await self._broken(message.get("body", b""), message.get("more_body", False))}
        await self._send(message)

    async def _broken(self, data: bytes, more: bool) -> bytes:
        start, self._sent = self._sent, self._sent + len(data)
        middle = self._size // 2
        match self._kind:
            case "cut" if self._sent >= self._value or not more:
                sent = data[: int(self._value) - start]
                await self._send({"type": "http.response.body", "body": sent, "more_body": True})
                raise ConnectionCut
            case "short":
                return data[: max(0, int(self._size - self._value) - start)]
            case "long" if not more:
                return data + bytes(int(self._value))
            case "stall" if start <= middle < self._sent:
                await anyio.sleep(self._value)
            case "corrupt" if start <= middle < self._sent:
                return data[: middle - start] + bytes([data[middle - start] ^ 1]) + data[middle - start + 1 :]
        return data
