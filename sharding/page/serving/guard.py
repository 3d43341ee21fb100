"""Keep other sites from acting as a visitor of the page, or as the person who runs it.

A browser adds the cookies of the page to the requests of any site, and lets any site reach a page on this machine. So a
request of another site is not the visitor's own. On a Space it counts as anonymous, elsewhere it is refused. The guard
recognises it by the browser's fetch metadata (https://www.w3.org/TR/fetch-metadata/), or by `Origin` if an old browser
sends none.
"""

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sharding.core.environment import page_hosts, space_hosts
from sharding.page.serving.door import Door
from sharding.page.serving.pictures import Judge, Pictures, Preview
from sharding.page.site import PUBLIC_HUB, Site

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
        return _name(host) in self._hosts or (not self._on_space and _is_loopback(_name(host)))

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


def _name(host: str) -> str:
    with suppress(ValueError):
        return urlsplit(f"//{host}").hostname or ""
    return ""


def _is_loopback(name: str) -> bool:
    with suppress(ValueError):
        return ip_address(name).is_loopback
    return name == "localhost"
