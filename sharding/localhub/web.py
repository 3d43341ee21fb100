"""Turn HTTP requests into calls of plain functions, and their results or errors into answers."""

import hashlib
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from sharding.localhub.hub import Hub
from sharding.localhub.records import KINDS
from sharding.localhub.refusals import Refusal

MAX_BODY_BYTES = 256_000_000  # Of a request, which is held in memory, such as a part of an LFS file.
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
    body: bytes

    def json(self) -> Json:
        try:
            value = json.loads(self.body or b"{}")
        except ValueError as error:
            raise Refusal(400, "The body is not JSON.") from error
        if not isinstance(value, dict):
            raise Refusal(400, "The body is not a JSON object.")
        return value

    def form(self) -> dict[str, list[str]]:
        """Return the fields of a form, each with all its values. Raises Refusal (400)."""
        try:
            return parse_qs(self.body.decode(), keep_blank_values=True)
        except ValueError as error:
            raise Refusal(400, "The body is not a form.") from error

    def asks(self, name: str) -> bool:
        return is_true(self.query.get(name))


Handler = Callable[[Call], Answer]


def routes(hub: Hub, rules: Iterable[tuple[str, str, Handler]]) -> list[Route]:
    """Return the routes of (method, path, function), in order. `{kind}` in a path matches all kinds of repo."""
    table = []
    for method, rule, handler in rules:
        for kind in KINDS if "{kind" in rule else ("",):
            path = rule.replace("/{kind_prefix}", "" if kind == "model" else f"/{kind}s").replace("{kind}", kind)
            table.append(Route(path, _endpoint(hub, handler, kind), methods=[method]))
    return table


def _endpoint(hub: Hub, handler: Handler, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise Refusal(413, f"The request is larger than {MAX_BODY_BYTES} bytes.")
        parameters = {name: unquote(value) for name, value in request.path_params.items()} | {"kind": kind}
        where = request.method, hub.address + request.scope["path"], parameters
        call = Call(hub, *where, request.query_params, request.headers, bytes(body))
        answer = await run_in_threadpool(handler, call)
        if isinstance(answer, Response):
            return answer
        return Response("OK", media_type="text/plain") if answer is None else JSONResponse(answer)

    return endpoint


def with_raw_paths(app: ASGIApp) -> ASGIApp:
    """Match paths in their encoded form: in `tree/refs%2Fpr%2F1/a%2Fb` only the plain slashes separate."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "path": scope["raw_path"].decode("ascii", "replace")}
        await app(scope, receive, send)

    return run


async def refuse(request: Request, error: Exception) -> Response:
    """Turn an error into an answer: a refusal, a path or a method without a rule, or a failure, which is logged."""
    if isinstance(error, Refusal):
        return JSONResponse(error.body, error.status, error.headers)
    status, message, path = 500, f"Internal Server Error: {type(error).__name__}", request.scope["path"]
    if isinstance(error, HTTPException):
        status, message = error.status_code, f"Sorry, we can't find {path}."
        if status == 405:
            message = f"{request.method} is not allowed for {path}."
    return JSONResponse({"error": message}, status)


def unknown(call: Call) -> Answer:
    raise Refusal(404, f"Sorry, we can't find {call.address}.")


def page(call: Call, items: Sequence[Json], size: int) -> Response:
    """Return one page of a list. The header `Link` has the address of the next one."""
    try:
        start = max(0, int(call.query.get("cursor", 0)))
    except ValueError as error:
        raise Refusal(400, "Invalid cursor") from error
    headers = {}
    if start + size < len(items):
        others = [(key, value) for key, value in call.query.multi_items() if key != "cursor"]
        headers["Link"] = f'<{call.address}?{urlencode([*others, ("cursor", start + size)])}>; rel="next"'
    return JSONResponse(list(items[start : start + size]), headers=headers)


def text_of(values: Json, name: str, default: str | None = None) -> str:
    """Return a string from a JSON object. Raises Refusal (400) if it is missing or not a string."""
    value = default if values.get(name) is None else values[name]
    if not isinstance(value, str):
        raise Refusal(400, f'"{name}" must be a string')
    return value


def is_true(value: str | None) -> bool:
    return (value or "").lower() in ("1", "true")


def iso(seconds: float) -> str:
    """Return a time in the Hub's format, such as 1970-01-01T00:00:00.000Z."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def stable_id(text: str) -> str:
    """Return 24 hexadecimal digits as the id of a repo or an account."""
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def link(hub: Hub, *parts: str) -> str:
    """Return a URL of this Hub. Each part is quoted, except its slashes."""
    return "/".join([hub.address, *(quote(part) for part in parts)])
