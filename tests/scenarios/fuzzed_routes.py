"""Ask every route of the page, and of Gradio, for what nobody would ask: no answer has a status of 500.

Hypothesis draws short conversations: methods, paths, headers, and bodies shaped like real ones with something wrong in
them. What it finds it makes as small as it can; the seed finds it again.
"""

import inspect
import json
import re
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from socket import create_connection
from typing import Any
from urllib.parse import quote

import httpx
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisWarning

from tests.page.site import choices
from tests.scenarios.served import RESULT, SMALL, Page, origin

PATIENCE_SECONDS = 60
READ_BYTES = 200_000
"""What is read of an answer: streams do not end."""
_EXAMPLES = 250
_TRACEBACK_LINES = 16

# --- What is drawn: asks nobody ---------------------------------------------------------------------------

_ROUTE = re.compile(r"@(app|router)\.(\w+)\(\s*\"(/[^\"]*)\"")
_GET = ("/", "/login/huggingface", "/login/callback", "/logout", "/nothing", "/openapi.json", "/badge.svg")
_OURS = {*(("GET", path) for path in (*_GET, "/certificate.png")), ("POST", "/gradio_api/mcp"), ("POST", "/gradio_api/mcp/")}  # fmt: skip


def routes() -> list[tuple[str, str]]:
    """Return the method and the path of every route of the installed Gradio, with its parameters in braces, and ours."""
    from gradio import routes

    found = _ROUTE.findall(inspect.getsource(routes))
    return sorted({(method.upper(), "/gradio_api" * (on == "router") + path) for on, method, path in found} | _OURS)


def _some(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


_SESSIONS = _some(
    "x", "y", "", "../../etc/passwd", "é\u202e\U0001f600", "\0", "%2e%2e", "{}", "x" * 20_000, "[" * 20_000
)
_NAMES = _some("inspect", "plan", "shard", "status", "result", "arrive", "see", "cancel", "follow", "nothing")
_WORDS = (SMALL, RESULT, "1GB", "size", "natural", "keep", "pp:2", "", "\ud800", "\0", "x" * 20_000, "a/b@c")
_TEXTS = _some(*_WORDS) | st.text(max_size=20)
_NUMBERS = st.integers(-2, 130) | _some(2**63, 10**40, -1.5, float("nan"), float("inf"), 1e308)
_JSON = st.recursive(
    st.none() | st.booleans() | _NUMBERS | _TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=8,
)
_FILE = st.fixed_dictionaries({"path": _TEXTS | st.just("/etc/passwd")}, optional={"url": _TEXTS, "meta": _JSON})
_PLAN = st.just([SMALL, *choices("plan")])
_DATA = _PLAN | st.lists(_JSON | _FILE, max_size=14) | _JSON | st.just(["{event_id}"])
_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "data": _DATA,
    "fn_index": st.integers(-1, 90) | _JSON,
    "session_hash": _SESSIONS | _JSON,
    "trigger_id": st.integers(-1, 130) | _JSON,
    "event_data": st.dictionaries(_some("index", "value", "input_value", "target"), _JSON) | _JSON,
    "event_id": st.just("{event_id}") | _TEXTS | _JSON,
    "component_id": st.integers(-1, 130) | _JSON,
    "fn_name": _NAMES | _JSON,
    **dict.fromkeys(("simple_format", "batched", "request", "root_path"), _JSON),
}
_TOOL = {"name": st.just("shard_my_repo_plan") | _TEXTS, "arguments": _JSON, "_meta": _JSON}
_MCP = st.fixed_dictionaries(
    {
        "jsonrpc": st.just("2.0") | _JSON,
        "method": _some("initialize", "tools/list", "tools/call", "ping", "resources/read") | _TEXTS,
        "id": st.just(1) | _JSON,
        "params": st.fixed_dictionaries({}, optional=_TOOL) | _JSON,
    }
)
_ASKED = st.one_of(
    st.fixed_dictionaries({name: _FIELDS[name] for name in ("data", "fn_index", "session_hash")}),
    st.fixed_dictionaries({"data": _DATA}),
    st.fixed_dictionaries({}, optional=_FIELDS),
    _MCP,
    _JSON,
)
_BOUNDARY = b'--b\r\nContent-Disposition: form-data; name="files"; filename="../x"\r\n\r\nx\r\n--b--\r\n'
_BODIES = st.one_of(
    _ASKED.map(lambda value: json.dumps(value).encode()),
    _some(b"", b"{", b"\xff\xfe", b"NaN", _BOUNDARY),
    _some(b"[", b'{"data":', b"9").map(lambda text: text * 20_000),
    st.binary(max_size=40),
)
_HEADERS = {
    "Content-Type": ["application/json", "text/plain", "multipart/form-data; boundary=b", "multipart/form-data", "x", "a/b; charset=y"],
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
}  # fmt: skip
_HEADER = _some(*((name, text) for name, texts in _HEADERS.items() for text in texts))
_PLACES = _some("..", "/etc/passwd", "http://127.0.0.1:1/x", "//x", "http://[", "index.html", "x.ts", "1")
_PARAMETERS = st.just("{event_id}") | _NAMES | _SESSIONS | _PLACES
_METHODS = _some(*[""] * 24, "GET", "POST", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "ODD")
_KEYS = ("session_hash", "repo", "result", "job", "size", "view", "__theme", "_target_url", "code", "state", "key")
_QUERIES = st.dictionaries(_some(*_KEYS), _TEXTS | _SESSIONS | _some("http://[", "//x", "javascript:0"), max_size=3)


@dataclass(frozen=True)
class Request:
    """A request, whose "{event_id}" is that of the last event before it in its conversation."""

    method: str
    path: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def encoded(self, event_id: str) -> bytes:
        body = self.body.replace(b"{event_id}", event_id.encode())
        headers = {"Host": "127.0.0.1", "Content-Length": str(len(body)), "Connection": "close", **self.headers}
        lines = [f"{self.method} {self.path.replace('{event_id}', event_id)} HTTP/1.1"]
        lines += [f"{name}: {text}" for name, text in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body

    def __str__(self) -> str:
        headers = "".join(f" {name}: {text[:80]!r}" for name, text in self.headers.items())
        return f"{self.method} {self.path[:200]}{headers} {self.body[:300]!r}"


@st.composite
def requests(draw: st.DrawFn, known: list[tuple[str, str]]) -> Request:
    """Draw a request for one of the `known` routes, mostly by the method that it has."""
    method, path = draw(st.sampled_from(known))
    method = draw(_METHODS) or method
    safe = draw(_some("", "/:?#[]@!$&'()*+,;="))
    for parameter in re.findall(r"\{[^}]*\}", path):
        text = draw(_PARAMETERS)
        named = text if text == "{event_id}" else quote(text, safe, errors="surrogatepass")
        path = path.replace(parameter, named, 1)
    asked = "&".join(f"{name}={quote(text, errors='surrogatepass')}" for name, text in draw(_QUERIES).items())
    headers = dict(draw(st.lists(_HEADER, max_size=4)))
    body = b"" if method in ("GET", "HEAD", "TRACE") else draw(_BODIES)
    if body and "Content-Type" not in headers and draw(st.booleans()):
        headers["Content-Type"] = "application/json"
    return Request(method, path + (f"?{asked}" if asked else ""), headers, body)


# --- What comes of it -------------------------------------------------------------------------------------


def send(page: Page, request: Request, event_id: str = "") -> tuple[int, bytes]:
    """Send a request; return the status, 0 for none, and the beginning of the answer."""
    data, until = b"", time.monotonic() + PATIENCE_SECONDS
    with create_connection(("127.0.0.1", page.site.port), timeout=PATIENCE_SECONDS) as socket:
        try:
            socket.sendall(request.encoded(event_id))
            while len(data) < READ_BYTES and time.monotonic() < until and (more := socket.recv(65536)):
                data += more
                if b"\r\n\r\n" in data:
                    socket.settimeout(0.3)  # of a stream, what comes at once
        except (ConnectionError, TimeoutError):
            pass
    status = re.match(rb"HTTP/1\.1 (\d+)", data)
    return int(status[1]) if status else 0, data


class Fault(AssertionError):
    """An answer that no request may get."""


@dataclass
class Fuzzed:
    """What came of it: how many conversations, the statuses, and the smallest that each fault takes."""

    text: str = ""
    conversations: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    """Faults that have been made small already, by where they were raised."""


def fuzz(page: Page, seconds: float, first_seed: int) -> Fuzzed:
    """Ask for so long, with one seed after another; afterwards the page still answers."""
    fuzzed, known, number = Fuzzed(), routes(), first_seed
    until = time.monotonic() + seconds
    while time.monotonic() < until and page.is_alive:
        _converse(page, fuzzed, known, number)
        number += 1
    if not page.is_alive:
        fuzzed.broken.append(f"The page has died.\n{page.site.log[-3000:]}")
    elif httpx.get(page.site.address, timeout=PATIENCE_SECONDS).status_code != 200:
        fuzzed.broken.append("The page does not answer any more.")
    statuses = ", ".join(f"{many:,} of {status or 'none'}" for status, many in sorted(fuzzed.statuses.items()))
    fuzzed.text = (
        f"Then {seconds / 60:.3g} minutes of fuzzing with Hypothesis, {len(known)} routes, seeds {first_seed} to "
        f"{number - 1}: {fuzzed.conversations:,} conversations. Statuses: {statuses}. "
        f"{len(fuzzed.broken)} broke a promise."
    )
    return fuzzed


def _converse(page: Page, fuzzed: Fuzzed, known: list[tuple[str, str]], number: int) -> None:
    """Draw conversations with one seed; keep the smallest one that shows a fault which is not known yet."""

    @seed(number)
    @settings(
        max_examples=_EXAMPLES, deadline=None, database=None, print_blob=False, report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck), phases=[Phase.generate, Phase.shrink],
    )  # fmt: skip
    @given(st.lists(requests(known), min_size=1, max_size=3))
    def conversation(asked: list[Request]) -> None:
        fuzzed.conversations += 1
        event_id, since = "none", len(page.site.log)
        for request in asked:
            status, answer = send(page, request, event_id)
            fuzzed.statuses[status] += 1
            if event := re.search(rb'"event_id":"(\w+)"', answer):
                event_id = event[1].decode()
            if status >= 500 and not (status == 503 and re.search(rb"(?i)busy|full|again", answer)):
                traceback = _printed(page, since)
                if origin(traceback) not in fuzzed.known:
                    raise Fault(traceback, asked)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HypothesisWarning)  # of how long it takes to print what is drawn
            conversation()
    except Fault as fault:
        traceback, asked = fault.args
        fuzzed.known.add(origin(traceback))
        lines = [f"Seed {number}: {origin(traceback)}", *(f"  {request}" for request in asked)]
        fuzzed.broken.append("\n".join([*lines, *traceback.splitlines()[-_TRACEBACK_LINES:]]))


def _printed(page: Page, since: int) -> str:
    """Return the last traceback that the page has printed since; it does so after it has answered."""
    until = time.monotonic() + 2
    while not (found := page.tracebacks(since)) and time.monotonic() < until:
        time.sleep(0.02)
    return found[-1] if found else "nothing printed"
