"""Let in only requests that the visitor's own page, gradio_client and MCP send, within a size.

A browser adds the cookies of the page to the requests of any site, and lets any site reach a page on this machine. So a
request of another site is not the visitor's own. On a Space it counts as anonymous, elsewhere it is refused. The guard
recognises it by the browser's fetch metadata (https://www.w3.org/TR/fetch-metadata/), or by `Origin` if an old browser
sends none. Gradio's other routes are hidden by the door.
"""

import asyncio
import logging
import re
import traceback
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, nullcontext, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
from fastapi.exceptions import RequestValidationError
from gradio import http_server, processing_utils
from gradio.route_utils import FnIndexInferError
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sharding.core.environment import page_hosts, space_hosts
from sharding.core.limits import MAX_BODY_BYTES, MAX_PATH_CHARACTERS, MAX_QUERY_BYTES, MAX_TOOL_BYTES, MAX_TOOL_CALLS
from sharding.page.serving.pictures import Judge, Pictures, Preview
from sharding.page.site import PUBLIC_HUB, Site

BODY_SECONDS = 30.0  # Longest time that the body of a request may take to arrive.
_LOG = logging.getLogger(__name__)
_API = "/gradio_api"
_NAME = r"[\w.-]{1,100}"

_READ = (
    *("/", "/config/?", "/theme.css", r"/favicon\.ico", r"/robots\.txt", r"/manifest\.json", "/pwa_icon"),
    *(r"/badge\.svg", r"/certificate\.png"),
    *("/(static|assets|svelte)/.+", "/login/(huggingface|callback)", "/logout"),
    *(f"{_API}/info/?", rf"{_API}/openapi\.json", f"{_API}/app_id/?", f"{_API}/startup-events", f"{_API}/theme.css"),
    *(f"{_API}/heartbeat/{_NAME}", f"{_API}/queue/data", f"{_API}/call/(v2/)?{_NAME}/{_NAME}"),
)
"""Routes to read: the page and its parts, the description of its API, the answers."""

_DO = (f"{_API}/queue/join", f"{_API}/call/(v2/)?{_NAME}/?", f"{_API}/cancel", f"{_API}/reset/?")
"""Routes that start a call or end it."""

_MCP = (f"{_API}/mcp(/http)?/?", f"{_API}/mcp/schema/?")


def close_side_doors() -> None:
    """Close what Gradio 6.31 opens beside its routes, before the page is launched. On a Space, port 7887 lets anybody
    replace this program's code (spaces 0.51). Files of any address in a call are downloaded."""
    http_server.get_space = lambda: None  # type: ignore[attr-defined]
    processing_utils.async_move_files_to_cache = _as_it_is


async def _as_it_is(data: Any, *_: object, **__: object) -> Any:
    return data


def _pattern(paths: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(paths), re.ASCII)


_TOOLS = _pattern(_MCP)
_ROUTES = ((_pattern(_READ), {"GET", "HEAD"}), (_pattern(_DO), {"POST"}), (_TOOLS, {"GET", "HEAD", "POST", "DELETE"}))


class Door:
    """An ASGI application around the page's own: it hides other routes and limits the size of bodies."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._tools = asyncio.Semaphore(MAX_TOOL_CALLS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "There are no websockets here."})
        elif scope["type"] != "http":
            await self._app(scope, receive, send)
        elif refusal := _refusal(scope):
            await refusal(scope, receive, send)
        else:
            await self._with_body(scope, receive, send)

    async def _with_body(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, is_whole, most = bytearray(), False, _most_bytes(scope)
        with suppress(TimeoutError):
            async with asyncio.timeout(BODY_SECONDS):
                while not is_whole and len(body) <= most:
                    message = await receive()
                    body += message.get("body", b"")
                    is_whole = not message.get("more_body", False)
        if not is_whole or len(body) > most:
            return await _too_large(scope, receive, send)
        if scope["method"] == "POST" and not _is_call(body):
            return await _NO_CALL(scope, receive, send)
        whole = iter([{"type": "http.request", "body": bytes(body), "more_body": False}])

        async def replay() -> Message:
            return next(whole, None) or await receive()  # until the client has gone, however long that takes

        if _is_tool(scope) and self._tools.locked():
            return await _BUSY(scope, receive, send)
        # Each tool call holds a thread that the page needs.
        async with self._tools if _is_tool(scope) else nullcontext():
            await self._app(scope, replay, send)


def _is_tool(scope: Scope) -> bool:
    return scope["method"] == "POST" and _TOOLS.fullmatch(scope["path"]) is not None


def _most_bytes(scope: Scope) -> int:
    # An error of a tool call repeats its arguments, so they must be small.
    return MAX_TOOL_BYTES if _is_tool(scope) else MAX_BODY_BYTES


def _is_call(body: bytearray) -> bool:
    """Return whether a body is JSON, and has a valid session name or none. Gradio keeps these names."""
    try:
        call = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    session = call.get("session_hash") if isinstance(call, dict) else None
    return session is None or (isinstance(session, str) and re.fullmatch(_NAME, session, re.ASCII) is not None)


_PACKAGE, _AROUND = (str(Path(__file__).parents[up]) for up in (2, 0))  # Our code, and the rooms around every request.
_OTHER_FORM = "This request does not have the form that the page's API describes."


async def _malformed(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, (RequestValidationError, FnIndexInferError)):
        places = traceback.extract_tb(error.__traceback__)
        if any(place.filename.startswith(_PACKAGE) and not place.filename.startswith(_AROUND) for place in places):
            raise error  # a fault of this program
        # Gradio raises these for malformed requests. If it is a bug of Gradio, the log shows the place.
        kind, place = type(error).__name__, places[-1]
        _LOG.warning("Refused as malformed: %s in %s, line %s", kind, place.filename, place.lineno)
    return JSONResponse({"detail": _OTHER_FORM}, 422)


MALFORMED = dict.fromkeys((RequestValidationError, FnIndexInferError, KeyError, TypeError, ValueError), _malformed)
"""Handlers for malformed requests. Neither their answer nor the log repeats anything from the request."""


def _refusal(scope: Scope) -> PlainTextResponse | None:
    method, path = scope["method"], scope["path"]
    methods = set[str]().union(*(methods for pattern, methods in _ROUTES if pattern.fullmatch(path)))
    if len(scope["query_string"]) > MAX_QUERY_BYTES:
        return PlainTextResponse("This address is too long.\n", 414)
    if not methods or len(path) > MAX_PATH_CHARACTERS:
        return PlainTextResponse("There is nothing here.\n", 404)
    if method != "OPTIONS" and method not in methods:
        return PlainTextResponse("This method is not allowed here.\n", 405, {"Allow": ", ".join(sorted(methods))})
    length = Headers(scope=scope).get("content-length", "0")
    if not length.isdecimal() or len(length) > 9 or int(length) > _most_bytes(scope):
        return _too_large
    return None


_too_large = PlainTextResponse(
    f"This request is too large or too slow. A request can have {MAX_BODY_BYTES:,} bytes, a tool call "
    f"{MAX_TOOL_BYTES:,}. It must arrive within {BODY_SECONDS:.0f} seconds.\n",
    413,
)
_BUSY = PlainTextResponse("This page is busy with other tool calls. Try again in 10 seconds.\n", 503)
_NO_CALL = JSONResponse({"detail": _OTHER_FORM}, 422)


_READING = ("GET", "HEAD")
_FOREIGN = "Another site sent this request, so it is refused. Open the page itself, or send your own token."


class Guard:
    """An ASGI application around the page's own. Off a Space it answers only to this machine's names and to `hosts`."""

    def __init__(self, app: ASGIApp, *, on_space: bool, hosts: Collection[str] = ()) -> None:
        """Pass requests on to `app`. `hosts` are the names of the page, without ports."""
        self._app = app
        self._on_space = on_space
        self._hosts = {host.lower() for host in hosts}
        self._policy = f"frame-ancestors 'self' {PUBLIC_HUB}" if on_space else "frame-ancestors 'self'"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, refuse it, or pass it on without cookies."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)  # of which the door lets no websocket in
        headers = Headers(scope=scope)
        if not self._on_space and not self._is_named(headers.get("host", "")):
            name = headers.get("host", "nothing")[:100]
            text = f"This page is not served as {name!r}. To serve it under that name, add it to SHARD_HOSTS."
            return await self._refusal(text, 421)(scope, receive, send)
        if scope["path"] == "/login/callback" and "error" in QueryParams(scope["query_string"]):
            # The visitor declined, which Gradio does not handle.
            return await RedirectResponse("/")(scope, receive, send)
        is_own = self._is_own(scope, headers)
        # A CORS preflight of a browser reveals and changes nothing.
        is_preflight = scope["method"] == "OPTIONS" and "access-control-request-method" in headers
        if not is_own and not self._on_space and "authorization" not in headers and not is_preflight:
            return await self._refusal(_FOREIGN, 403)(scope, receive, send)
        dropped = {b"x-forwarded-host"} if not self._is_named(headers.get("x-forwarded-host", "")) else set()
        dropped |= {b"cookie"} if not is_own else set()
        scope = {**scope, "headers": [pair for pair in scope["headers"] if pair[0].lower() not in dropped]}

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                told = MutableHeaders(scope=message)
                told.append("Content-Security-Policy", self._policy)
                del told["Access-Control-Allow-Credentials"]
                if not is_own:
                    del told["Set-Cookie"]
            await send(message)

        await self._app(scope, receive, answer)

    def _is_named(self, host: str) -> bool:
        """Return whether this is a name of the page. One that a proxy reports is where its links lead."""
        return _host_name(host) in self._hosts or (not self._on_space and _is_loopback(_host_name(host)))

    def _is_own(self, scope: Scope, headers: Headers) -> bool:
        """Return whether the request is the visitor's own: from the page itself, or by navigating to it."""
        method = scope["method"]
        match headers.get("sec-fetch-site"):
            case "same-origin" | "none":
                return True
            case None:
                origin = headers.get("origin")
                if origin is None and self._on_space and scope["path"] == "/logout":
                    return self._is_same_origin(headers.get("referer", "").rstrip("/"), headers.get("host", ""))
                if origin is None:
                    return not self._on_space or method in _READING
                return self._is_same_origin(origin, headers.get("host", ""))
            case _:
                # Navigating to the page only shows it. Only /logout changes something.
                goes_there = method in _READING and headers.get("sec-fetch-mode") == "navigate"
                return goes_there and scope["path"] != "/logout"

    def _is_same_origin(self, origin: str, host: str) -> bool:
        with suppress(ValueError):
            place = urlsplit(origin).netloc.lower()
            return place != "" and (place == host.lower() or (self._on_space and place in self._hosts))
        return False

    def _refusal(self, text: str, status: int) -> PlainTextResponse:
        return PlainTextResponse(f"{text}\n", status, {"Content-Security-Policy": self._policy})


def guarded(site: Site, judge: Judge) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    """Return a lifespan that puts a `Guard` around all. Gradio would run middleware inside its sessions."""
    hosts = space_hosts() if site.space else page_hosts()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        assert app.middleware_stack, "a lifespan starts once the application is complete"
        with closing(Pictures(Preview(app.middleware_stack, site), judge)) as pictures:
            app.middleware_stack = Guard(Door(pictures), on_space=site.space is not None, hosts=hosts)
            yield

    return lifespan


def _host_name(host: str) -> str:
    with suppress(ValueError):
        return urlsplit(f"//{host}").hostname or ""
    return ""


def _is_loopback(name: str) -> bool:
    with suppress(ValueError):
        return ip_address(name).is_loopback
    return name == "localhost"
