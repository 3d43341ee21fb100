"""Let in only what the page, gradio_client and MCP ask for, and of that no more than fits.

Gradio has more routes than this page needs: uploads, a proxy, run histories, a monitor. Who asks for one of those finds
nothing.
"""

import asyncio
import logging
import re
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
from fastapi.exceptions import RequestValidationError
from gradio import http_server, processing_utils
from gradio.route_utils import FnIndexInferError
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sharding.core.limits import (
    BODY_SECONDS,
    MAX_BODY_BYTES,
    MAX_PATH_CHARACTERS,
    MAX_QUERY_BYTES,
    MAX_TOOL_BYTES,
    MAX_TOOL_CALLS,
)

_LOG = logging.getLogger(__name__)
_API = "/gradio_api"
_NAME = r"[\w.-]{1,100}"

_READ = (
    *("/", "/config/?", "/theme.css", r"/favicon\.ico", r"/robots\.txt", r"/manifest\.json", "/pwa_icon"),
    *("/(static|assets|svelte)/.+", "/login/(huggingface|callback)", "/logout"),
    *(f"{_API}/info/?", rf"{_API}/openapi\.json", f"{_API}/app_id/?", f"{_API}/startup-events", f"{_API}/theme.css"),
    *(f"{_API}/heartbeat/{_NAME}", f"{_API}/queue/data", f"{_API}/call/(v2/)?{_NAME}/{_NAME}"),
)
"""What is read: the page and its parts, the description of its API, the answers."""

_DO = (f"{_API}/queue/join", f"{_API}/call/(v2/)?{_NAME}/?", f"{_API}/cancel", f"{_API}/reset/?")
"""What is asked for: a call, and its end."""

_MCP = (f"{_API}/mcp(/http)?/?", f"{_API}/mcp/schema/?")


def close_side_doors() -> None:
    """Close what Gradio 6.31 opens beside its routes; to be called before the page is launched.

    On a Space it lets whoever reaches port 7887 replace this program's code, for `hf spaces hot-reload`; nobody has to
    sign in there (spaces 0.51, `reloading/server.py`). And wherever a call brings the description of a file in place of
    a text, it downloads that file from the address in it, of whatever size. This page takes and makes no files.
    """
    http_server.get_space = lambda: None  # type: ignore[attr-defined]
    processing_utils.async_move_files_to_cache = _as_it_is


async def _as_it_is(data: Any, *_: object, **__: object) -> Any:
    return data


def _pattern(paths: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(paths), re.ASCII)


_TOOLS = _pattern(_MCP)
_ROUTES = (
    (_pattern(_READ), {"GET", "HEAD"}),
    (_pattern(_DO), {"POST"}),
    (_TOOLS, {"GET", "HEAD", "POST", "DELETE"}),
)


class _TooMuch(Exception):
    """A body is longer than it may be."""


class Door:
    """An ASGI application around that of the page: other routes are not there, and bodies have a bound."""

    def __init__(self, app: ASGIApp) -> None:
        """Let in to `app`."""
        self._app = app
        self._tools_called = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or refuse."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "There are no websockets here."})
        elif scope["type"] != "http":
            await self._app(scope, receive, send)
        elif refusal := _refusal(scope):
            await refusal(scope, receive, send)
        else:
            await self._with_body(scope, receive, send)

    async def _with_body(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on with the whole body, which is counted as it comes."""
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await _body_of(receive, _most_bytes(scope))
        except (_TooMuch, TimeoutError):
            await _too_large(scope, receive, send)
            return
        if scope["method"] == "POST" and not _is_call(body):
            await _NO_CALL(scope, receive, send)
            return
        is_whole = False

        async def replay() -> Message:
            nonlocal is_whole
            if is_whole:
                return await receive()  # that the other side has gone, which may take as long as it likes
            is_whole = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._in_turn(scope, replay, send)

    async def _in_turn(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on; of calls of tools only so many at a time, each of which holds a thread that the page needs too."""
        if not _is_tool(scope):
            await self._app(scope, receive, send)
            return
        if self._tools_called >= MAX_TOOL_CALLS:
            await _BUSY(scope, receive, send)
            return
        self._tools_called += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._tools_called -= 1


async def _body_of(receive: Receive, most_bytes: int) -> bytes:
    """Return a body. Raises _TooMuch."""
    body, is_whole = bytearray(), False
    while not is_whole:
        message = await receive()
        body += message.get("body", b"")
        is_whole = not message.get("more_body", False)
        if len(body) > most_bytes:
            raise _TooMuch
    return bytes(body)


def _is_tool(scope: Scope) -> bool:
    return scope["method"] == "POST" and _TOOLS.fullmatch(scope["path"]) is not None


def _most_bytes(scope: Scope) -> int:
    # What is wrong with the call of a tool is told with its arguments.
    return MAX_TOOL_BYTES if _is_tool(scope) else MAX_BODY_BYTES


def _is_call(body: bytes) -> bool:
    """Return whether a body is JSON, and the session in it, if there is one, has the name of one: Gradio keeps them."""
    try:
        call = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    session = call.get("session_hash") if isinstance(call, dict) else None
    return session is None or (isinstance(session, str) and re.fullmatch(_NAME, session, re.ASCII) is not None)


_PACKAGE, _AROUND = str(Path(__file__).parent.parent), ("door.py", "guard.py")
"""Where our code is, and what of it stands around every request."""

_OTHER_FORM = "This request is not of the form that the page's API describes."


async def _malformed(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, (RequestValidationError, FnIndexInferError)):
        places = traceback.extract_tb(error.__traceback__)
        if any(place.filename.startswith(_PACKAGE) and not place.filename.endswith(_AROUND) for place in places):
            raise error  # a fault of this program
        # Gradio raises these at odd requests; were it a fault of Gradio's, the log has where it was.
        kind, place = type(error).__name__, places[-1]
        _LOG.warning("Refused as malformed: %s in %s, line %s", kind, place.filename, place.lineno)
    return JSONResponse({"detail": _OTHER_FORM}, 422)


MALFORMED = dict.fromkeys((RequestValidationError, FnIndexInferError, KeyError, TypeError, ValueError), _malformed)
"""Handlers for what FastAPI and Gradio raise at a request of another form, such as a call of no function.

They say so, and repeat nothing of what it held; nor does the log.
"""


def _refusal(scope: Scope) -> PlainTextResponse | None:
    """Return the answer to what is not let in, else None."""
    method, path = scope["method"], scope["path"]
    methods = set[str]().union(*(methods for pattern, methods in _ROUTES if pattern.fullmatch(path)))
    if len(scope["query_string"]) > MAX_QUERY_BYTES:
        return PlainTextResponse("This address is too long.\n", 414)
    if not methods or len(path) > MAX_PATH_CHARACTERS:
        return PlainTextResponse("There is nothing here.\n", 404)
    if method != "OPTIONS" and method not in methods:
        return PlainTextResponse("That cannot be done here.\n", 405, {"Allow": ", ".join(sorted(methods))})
    length = Headers(scope=scope).get("content-length", "0")
    if not length.isdecimal() or len(length) > 9 or int(length) > _most_bytes(scope):
        return _too_large
    return None


_too_large = PlainTextResponse(
    f"A request has at most {MAX_BODY_BYTES:,} bytes, the call of a tool {MAX_TOOL_BYTES:,}, and {BODY_SECONDS:.0f} "
    "seconds to arrive.\n",
    413,
)
_BUSY = PlainTextResponse("This page is busy: too many tools are being called. Try again in 10 seconds.\n", 503)
_NO_CALL = JSONResponse({"detail": _OTHER_FORM}, 422)
