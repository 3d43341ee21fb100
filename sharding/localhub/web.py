"""Turn HTTP requests into calls of plain functions, and their results or errors into answers."""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from sharding.localhub.hub import Hub
from sharding.localhub.records import KINDS
from sharding.localhub.refusals import Refusal, bad_request

MAX_BODY_BYTES = 256_000_000
"""The limit of a request that is read whole. A commit has all its regular files in one request."""

Json = dict[str, Any]
Answer = Json | list[Any] | Response | None


@dataclass(frozen=True, slots=True)
class Call:
    """A decoded request. `parameters` are the parts of its path, and `address` is its URL without the query."""

    hub: Hub
    method: str
    address: str
    parameters: Mapping[str, str]
    query: QueryParams
    headers: Headers
    body: bytes = b""

    def json(self) -> Json:
        """Return the body as a JSON object. Raises Refusal (400)."""
        try:
            value = json.loads(self.body or b"{}")
        except ValueError as error:
            raise bad_request("The body is not JSON.") from error
        if not isinstance(value, dict):
            raise bad_request("The body is not a JSON object.")
        return value

    def form(self) -> dict[str, list[str]]:
        """Return the fields of a form, each with all its values. Raises Refusal (400)."""
        try:
            return parse_qs(self.body.decode(), keep_blank_values=True)
        except ValueError as error:
            raise bad_request("The body is not a form.") from error

    def asks(self, name: str) -> bool:
        """Return whether the query sets `name` to true."""
        return is_true(self.query.get(name))


Handler = Callable[[Call], Answer]


@dataclass(frozen=True, slots=True)
class Rule:
    """Which function answers which method at which path. `{kind}` in a path matches all three kinds of repo."""

    method: str
    path: str
    handler: Handler


def routes(hub: Hub, rules: Iterable[Rule]) -> list[Route]:
    """Return the routes of the rules, in order. GET also answers HEAD."""
    table = []
    for rule in rules:
        for kind in KINDS if "{kind" in rule.path else ("",):
            path = rule.path.replace("/{kind_prefix}", "" if kind == "model" else f"/{kind}s").replace("{kind}", kind)
            table.append(Route(path, _endpoint(hub, rule.handler, kind), methods=[rule.method]))
    return table


def to_call(hub: Hub, request: Request, kind: str = "", body: bytes = b"") -> Call:
    """Return a request as a call with this body."""
    parameters = {name: unquote(value) for name, value in request.path_params.items()}
    address = hub.address + request.scope["path"]
    query, headers = request.query_params, request.headers
    return Call(hub, request.method, address, {**parameters, "kind": kind}, query, headers, body)


def _endpoint(hub: Hub, handler: Handler, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise Refusal(413, f"The request is larger than {MAX_BODY_BYTES} bytes.")
        answer = await run_in_threadpool(handler, to_call(hub, request, kind, bytes(body)))
        if isinstance(answer, Response):
            return answer
        return Response("OK", media_type="text/plain") if answer is None else JSONResponse(answer)

    return endpoint


class RawPaths:
    """Matches paths in their encoded form: in `tree/refs%2Fpr%2F1/a%2Fb` only the plain slashes separate."""

    def __init__(self, app: ASGIApp) -> None:
        """Pass requests on to `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its encoded path."""
        if scope["type"] == "http":
            scope = {**scope, "path": scope["raw_path"].decode("ascii", "replace")}
        await self._app(scope, receive, send)


async def refuse(_: Request, error: Exception) -> Response:
    """Turn a refusal into an answer."""
    assert isinstance(error, Refusal)
    body = {"error": error.message, **error.extra}
    return JSONResponse(body, status_code=error.status, headers=error.all_headers())


def unknown(call: Call) -> Answer:
    """Refuse a path that this Hub does not know."""
    raise Refusal(404, f"Sorry, we can't find {call.address}.")


async def no_such_route(request: Request, _: Exception) -> Response:
    """Answer a request whose path no rule matches."""
    return JSONResponse({"error": f"Sorry, we can't find {request.scope['path']}."}, status_code=404)


async def wrong_method(request: Request, _: Exception) -> Response:
    """Answer a request with a method that its path does not allow."""
    return JSONResponse({"error": f"{request.method} is not allowed for {request.scope['path']}."}, status_code=405)


async def broken(_: Request, error: Exception) -> Response:
    """Answer after a handler has failed. The server logs the reason."""
    return JSONResponse({"error": f"Internal Server Error: {type(error).__name__}"}, status_code=500)


def page(call: Call, items: Sequence[Json], size: int) -> Response:
    """Return one page of a list. The header `Link` has the address of the next one."""
    try:
        start = max(0, int(call.query.get("cursor", 0)))
    except ValueError as error:
        raise bad_request("Invalid cursor") from error
    headers = {}
    if start + size < len(items):
        others = [(key, value) for key, value in call.query.multi_items() if key != "cursor"]
        headers["Link"] = f'<{call.address}?{urlencode([*others, ("cursor", start + size)])}>; rel="next"'
    return JSONResponse(list(items[start : start + size]), headers=headers)


def text_of(values: Json, name: str, default: str | None = None) -> str:
    """Return a string from a JSON object. Raises Refusal (400) if it is missing or not a string."""
    value = values.get(name)
    value = default if value is None else value
    if not isinstance(value, str):
        raise bad_request(f'"{name}" must be a string')
    return value


def is_true(value: str | None) -> bool:
    """Return whether a value in a query or a form means true."""
    return (value or "").lower() in ("1", "true")


def iso(seconds: float) -> str:
    """Return a time in the Hub's format.

    >>> iso(0)
    '1970-01-01T00:00:00.000Z'
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def link(hub: Hub, *parts: str) -> str:
    """Return a URL of this Hub. Each part is quoted, except its slashes."""
    return "/".join([hub.address, *(quote(part) for part in parts)])
