"""Draw requests that nobody would send: shaped like real ones, with something wrong in them. Asks nobody."""

import inspect
import json
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from hypothesis import strategies as st

from tests.scenarios.served import RESULT, SMALL

_ROUTE = re.compile(r"@(app|router)\.(\w+)\(\s*\"(/[^\"]*)\"")
_GET = (
    "/",
    "/login/huggingface",
    "/login/callback",
    "/logout",
    "/nothing",
    "/openapi.json",
    "/badge.svg",
    "/certificate.png",
)
_POST = ("/gradio_api/mcp", "/gradio_api/mcp/")


def routes() -> list[tuple[str, str]]:
    """Return the method and the path of every route of the installed Gradio, with its parameters in braces."""
    from gradio import routes

    found = _ROUTE.findall(inspect.getsource(routes))
    theirs = {(method.upper(), ("/gradio_api" if on == "router" else "") + path) for on, method, path in found}
    return sorted(theirs | {("GET", path) for path in _GET} | {("POST", path) for path in _POST})


_LONG = st.sampled_from("x[é").map(lambda letter: letter * 20_000)
_SESSIONS = st.sampled_from(["x", "y", "", "../../etc/passwd", "é\u202e\U0001f600", "\0", "%2e%2e", "{}"]) | _LONG
_NAMES = st.sampled_from(
    [*("inspect", "plan", "shard", "status", "result", "arrive", "see", "cancel", "follow"), "nothing"]
)
_TEXTS = st.one_of(
    st.sampled_from(
        [SMALL, RESULT, "1GB", "size", "natural", "keep", "pp:2", "", "\ud800", "\0", "x" * 20_000, "a/b@c"]
    ),
    st.text(max_size=20),
)
_NUMBERS = st.one_of(st.integers(-2, 130), st.sampled_from([2**63, 10**40, -1.5, float("nan"), float("inf"), 1e308]))
_LEAVES = st.one_of(st.none(), st.booleans(), _NUMBERS, _TEXTS)
_JSON = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=3), max_leaves=8
)
_FILE = st.fixed_dictionaries({"path": _TEXTS | st.just("/etc/passwd")}, optional={"url": _TEXTS, "meta": _JSON})
_PLAN = st.just([SMALL, "1GB", "size", "natural", "keep", "", "", False, ""])
_DATA = st.one_of(_PLAN, st.lists(_JSON | _FILE, max_size=14), _JSON, st.just("{event_id}").map(lambda text: [text]))
_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "data": _DATA,
    "fn_index": st.integers(-1, 90) | _JSON,
    "session_hash": _SESSIONS | _JSON,
    "trigger_id": st.integers(-1, 130) | _JSON,
    "event_data": st.dictionaries(st.sampled_from(["index", "value", "input_value", "target"]), _JSON) | _JSON,
    "event_id": st.just("{event_id}") | _TEXTS | _JSON,
    "component_id": st.integers(-1, 130) | _JSON,
    "fn_name": _NAMES | _JSON,
    "simple_format": _JSON,
    "batched": _JSON,
    "request": _JSON,
    "root_path": _JSON,
}
_MCP = st.fixed_dictionaries(
    {
        "jsonrpc": st.just("2.0") | _JSON,
        "method": st.sampled_from(["initialize", "tools/list", "tools/call", "ping", "resources/read"]) | _TEXTS,
        "id": st.just(1) | _JSON,
        "params": st.fixed_dictionaries(
            {}, optional={"name": st.just("shard_my_repo_plan") | _TEXTS, "arguments": _JSON, "_meta": _JSON}
        )
        | _JSON,
    }
)
_ASKED = st.one_of(
    st.fixed_dictionaries({"data": _DATA, "fn_index": _FIELDS["fn_index"], "session_hash": _FIELDS["session_hash"]}),
    st.fixed_dictionaries({"data": _DATA}),
    st.fixed_dictionaries({}, optional=_FIELDS),
    _MCP,
    _JSON,
)
_BOUNDARY = b'--b\r\nContent-Disposition: form-data; name="files"; filename="../x"\r\n\r\nx\r\n--b--\r\n'
_BODIES = st.one_of(
    _ASKED.map(lambda value: json.dumps(value).encode()),
    st.sampled_from([b"", b"{", b"\xff\xfe", b"NaN", _BOUNDARY]),
    st.sampled_from(["[", '{"data":', "9"]).map(lambda text: text.encode() * 20_000),
    st.binary(max_size=40),
)
_TYPES = [
    "application/json",
    "text/plain",
    "multipart/form-data; boundary=b",
    "multipart/form-data",
    "x",
    "a/b; charset=y",
]
_HEADERS = {
    "Content-Type": _TYPES,
    "Accept": ["application/json, text/event-stream", "*/*", "x"],
    "Authorization": ["Bearer hf_alice", "Bearer hf_nobody", "Bearer", "Basic !", "Bearer \xe9", "x" * 5000],
    "Cookie": ["session=x", "session=eyJ9.x.y", "a=b; ;=", "access-token=\xe9", "session=" + "x" * 5000],
    "Origin": ["https://evil.example", "null", "http://[", "\xe9"],
    "Range": ["bytes=0-1", "bytes=5-1", "bytes=-", "bytes=" + "0-1," * 500, "x"],
    "Host": ["evil.example", "[", "\xe9", ""],
    "X-Forwarded-Host": ["evil.example", "[::1", "\xe9"],
    "X-Forwarded-Proto": ["https", "javascript", "http,https"],
    "Referer": ["http://[", "https://evil.example/?__theme=x", "x"],
    "X-Gradio-User": ["x", "{}"],
    "Mcp-Session-Id": ["x", "\xe9"],
    "Sec-Fetch-Site": ["same-origin", "cross-site", "x"],
    "Accept-Language": ["\xe9", "de", "x;q=y"],
}
_HEADER = st.sampled_from([(name, text) for name, texts in _HEADERS.items() for text in texts])
_PARAMETERS = st.one_of(
    st.just("{event_id}"),
    _NAMES,
    _SESSIONS,
    st.sampled_from(["..", "/etc/passwd", "http://127.0.0.1:1/x", "//x", "http://[", "index.html", "x.ts", "1"]),
)
_METHODS = st.sampled_from([*[""] * 24, "GET", "POST", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "ODD"])
_QUERIES = st.dictionaries(
    st.sampled_from(
        ["session_hash", "repo", "result", "job", "size", "view", "__theme", "_target_url", "code", "state", "key"]
    ),
    _TEXTS | _SESSIONS | st.sampled_from(["http://[", "//x", "javascript:0"]),
    max_size=3,
)


@dataclass(frozen=True)
class Request:
    """A request, whose "{event_id}" is that of the last event before it in its conversation."""

    method: str
    path: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def encoded(self, event_id: str) -> bytes:
        """Return the bytes that are sent; Host and length are told unless the headers say otherwise."""
        body = self.body.replace(b"{event_id}", event_id.encode())
        headers = {"Host": "127.0.0.1", "Content-Length": str(len(body)), "Connection": "close", **self.headers}
        lines = [f"{self.method} {self.path.replace('{event_id}', event_id)} HTTP/1.1"]
        lines += [f"{name}: {text}" for name, text in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body

    def __str__(self) -> str:
        """Return it as it would be sent, cut where it is long."""
        headers = "".join(f" {name}: {text[:80]!r}" for name, text in self.headers.items())
        return f"{self.method} {self.path[:200]}{headers} {self.body[:300]!r}"


@st.composite
def requests(draw: st.DrawFn, known: list[tuple[str, str]]) -> Request:
    """Draw a request for one of the `known` routes, mostly by the method that it has."""
    method, path = draw(st.sampled_from(known))
    method = draw(_METHODS) or method
    safe = draw(st.sampled_from(["", "/:?#[]@!$&'()*+,;="]))
    for parameter in re.findall(r"\{[^}]*\}", path):
        text = draw(_PARAMETERS)
        named = text if text == "{event_id}" else quote(text, safe, errors="surrogatepass")
        path = path.replace(parameter, named, 1)
    query = draw(_QUERIES)
    asked = "&".join(f"{name}={quote(text, errors='surrogatepass')}" for name, text in query.items())
    headers = dict(draw(st.lists(_HEADER, max_size=4)))
    body = b"" if method in ("GET", "HEAD", "TRACE") else draw(_BODIES)
    if body and "Content-Type" not in headers and draw(st.booleans()):
        headers["Content-Type"] = "application/json"
    return Request(method, path + (f"?{asked}" if asked else ""), headers, body)
