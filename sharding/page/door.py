"""Let in only what the page, gradio_client and MCP ask for, and of that no more than fits.

Gradio has more routes than this page needs: uploads, a proxy, run histories, a monitor. Who asks for one of those finds
nothing.
"""

import asyncio
import logging
import re
import traceback
from collections.abc import Iterable

from fastapi.exceptions import RequestValidationError
from gradio import http_server
from gradio.route_utils import FnIndexInferError
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sharding.core.limits import BODY_SECONDS, MAX_BODY_BYTES, MAX_PATH_CHARACTERS, MAX_QUERY_BYTES

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

_MCP = (f"{_API}/mcp(/http)?/?", f"{_API}/mcp/(sse|messages|schema)/?")


def close_side_door() -> None:
    """Have Gradio open no second port: on a Space, 6.31 lets whoever reaches 7887 replace this program's code.

    That is for `hf spaces hot-reload`. Nobody has to sign in there (spaces 0.51, `reloading/server.py`).
    """
    http_server.get_space = lambda: None  # type: ignore[attr-defined]


def _pattern(paths: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(paths), re.ASCII)


_ROUTES = (
    (_pattern(_READ), {"GET", "HEAD"}),
    (_pattern(_DO), {"POST"}),
    (_pattern(_MCP), {"GET", "HEAD", "POST", "DELETE"}),
)


class _TooMuch(Exception):
    """A body is longer than it may be."""


class Door:
    """An ASGI application around that of the page: other routes are not there, and bodies have a bound."""

    def __init__(self, app: ASGIApp) -> None:
        """Let in to `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or refuse."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "There are no websockets here."})
        elif scope["type"] != "http":
            await self._app(scope, receive, send)
        elif refusal := _refusal(scope):
            await refusal(scope, receive, send)
        else:
            await self._bounded(scope, receive, send)

    async def _bounded(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on with a body that is counted as it comes."""
        end = asyncio.get_running_loop().time() + BODY_SECONDS
        left, is_whole, is_refused, has_begun = MAX_BODY_BYTES, False, False, False

        async def count() -> Message:
            nonlocal left, is_whole, is_refused
            if is_whole:
                return await receive()  # that the other side has gone, which may take as long as it likes
            try:
                async with asyncio.timeout_at(end):
                    message = await receive()
            except TimeoutError:
                is_refused = True
                raise
            left -= len(message.get("body", b""))
            is_whole = not message.get("more_body", False)
            if left < 0:
                is_refused = True
                raise _TooMuch
            return message

        async def answer(message: Message) -> None:
            nonlocal has_begun
            if has_begun or not is_refused:  # else it is what the application says of a body that has broken off
                has_begun = True
                await send(message)

        try:
            await self._app(scope, count, answer)
        except (_TooMuch, TimeoutError):
            if not is_refused:
                raise
        if is_refused and not has_begun:
            await _too_large(scope, receive, send)


def _malformed(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, (RequestValidationError, FnIndexInferError)):
        # Gradio raises these at odd requests; a fault of ours would look the same, so the log has where it was.
        place = traceback.extract_tb(error.__traceback__)[-1]
        _LOG.warning("Refused as malformed: %s in %s, line %s", type(error).__name__, place.filename, place.lineno)
    return JSONResponse({"detail": "This request is not of the form that the page's API describes."}, 422)


MALFORMED = dict.fromkeys((RequestValidationError, FnIndexInferError, KeyError, TypeError, ValueError), _malformed)
"""Handlers for what FastAPI and Gradio raise at a request of another form, such as a call of no function.

They say so, and repeat nothing of what it held; nor does the log.
"""


def _refusal(scope: Scope) -> PlainTextResponse | None:
    """Return the answer to what is not let in, else None."""
    method, path = scope["method"], scope["path"]
    methods = next((methods for pattern, methods in _ROUTES if pattern.fullmatch(path)), None)
    if len(scope["query_string"]) > MAX_QUERY_BYTES:
        return PlainTextResponse("This address is too long.\n", 414)
    if methods is None or len(path) > MAX_PATH_CHARACTERS:
        return PlainTextResponse("There is nothing here.\n", 404)
    if method != "OPTIONS" and method not in methods:
        return PlainTextResponse("That cannot be done here.\n", 405, {"Allow": ", ".join(sorted(methods))})
    length = Headers(scope=scope).get("content-length", "0")
    if not length.isdecimal() or len(length) > 9 or int(length) > MAX_BODY_BYTES:
        return _too_large
    return None


_too_large = PlainTextResponse(
    f"A request has at most {MAX_BODY_BYTES:,} bytes, and {BODY_SECONDS:.0f} seconds to arrive.\n", 413
)
