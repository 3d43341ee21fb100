"""What a crowd does to the page: plans, jobs, odd requests, sessions that it abandons."""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from random import Random
from threading import Event
from typing import Any

import httpx

from tests.scenarios.served import GUEST, HOSTILE, LLAMA, LORAS, MANY, MERGED, PUBLIC, RESULT, SMALL, Page
from tests.scenarios.visitors import PATIENCE_SECONDS, Notes, Visitor

PAUSE_SECONDS = 0.5
"""What a visitor waits between two acts, on average."""
RUSH = 80
"""How many ask at once what takes long."""

Act = Callable[[Visitor], object]
_LARGE = "x" * 900_000
_JSON = {"Content-Type": "application/json"}
_MCP = {"Accept": "application/json, text/event-stream"}


def visit(page: Page, notes: Notes, number: int, seed: int, ended: Event) -> None:
    """Do one thing after another until `ended`. Each user's first visitor has jobs, all others do what comes to mind."""
    dice, works = Random(f"{seed}/{number}"), number < len(page.users)
    user = page.users[number] if works else dice.choice((None, GUEST))
    visitor = Visitor(page, notes, dice, user, ended)
    with visitor.client:
        while not ended.is_set():
            if works:
                run_a_job(visitor)
            else:
                (act,) = visitor.dice.choices(list(ACTS), list(ACTS.values()))
                act(visitor)
            ended.wait(visitor.dice.expovariate(1 / PAUSE_SECONDS))


def once(page: Page, notes: Notes) -> None:
    """Do all of it once, as one visitor."""
    visitor = Visitor(page, notes, Random(0), "alice", Event())
    with visitor.client:
        run_a_job(visitor)
        for act in ACTS:
            act(visitor)


def rush(page: Page) -> tuple[Notes, Notes]:
    """Ask what takes long, all at once, each of other ranks, so that no two of them are one question.

    Return what came of that, and of what two visitors asked meanwhile, again and again.
    """
    notes, others, ended = Notes(), Notes(), Event()

    def ask(number: int) -> None:
        visitor = Visitor(page, notes, Random(number), None, ended)
        with visitor.client:
            choices = [LLAMA, "100kB", f"pp:{number + 2}", "natural", "keep", "", "", False, ""]
            visitor.call("question", "plan", choices, refusals=True)  # the model has fewer layers than most want ranks

    def come(act: Act) -> None:
        visitor = Visitor(page, others, Random(0), None, ended)
        with visitor.client:
            while not ended.is_set():
                act(visitor)
                ended.wait(0.2)

    with ThreadPoolExecutor(RUSH + 2) as pool:
        meanwhile = [pool.submit(come, act) for act in (plan, lambda visitor: visitor.ask("page", "GET", "/"))]
        questions = [pool.submit(ask, number) for number in range(RUSH)]
        wait(questions)
        ended.set()
    for each in (*questions, *meanwhile):
        each.result()  # a mistake in a visitor is not the page's
    return notes, others


# --- What makes sense -----------------------------------------------------------------------------------


def plan(visitor: Visitor) -> None:
    """Plan by size, which reads headers only."""
    size = f"{visitor.dice.randrange(20, 400)}kB"
    source = visitor.dice.choice(PUBLIC)
    visitor.call("plan by size", "plan", [source, size, "size", "natural", "keep", "", "", False, ""])


def ask_transformers(visitor: Visitor) -> None:
    """Plan what takes a process that builds the model: it is answered, or the page is busy."""
    strategy = f"pp:{visitor.dice.randrange(2, 10)}"
    choices = [LLAMA, "100kB", strategy, "natural", visitor.dice.choice(["bf16", "fp16", "keep"]), "", "", False, ""]
    # The model has fewer layers than some of these want ranks.
    visitor.call("plan that asks transformers", "plan", choices, refusals=True)


def merge_hostile(visitor: Visitor) -> None:
    """Plan a merge with an adapter that wants too much, and look at a report of a merge that never happened."""
    adapter = f"{LORAS}/{visitor.dice.choice(list(HOSTILE))}"
    choices = [LLAMA, "1GB", "size", "natural", "keep", "", "", False, adapter]
    visitor.call("merge with a hostile adapter", "plan", choices, refusals=True)
    visitor.call("result of a merge that never happened", "result", [MERGED], refusals=True)
    visitor.ask("odd", "GET", f"/badge.svg?result={MERGED}")


def judge(visitor: Visitor) -> None:
    """Follow a link to a result, or to what is none."""
    visitor.call("result", "result", [RESULT])
    visitor.call("result that is none", "result", [f"alice/{visitor.token()}"], refusals=True)
    visitor.ask("page", "GET", f"/?result={RESULT}")


def look(visitor: Visitor) -> None:
    """Load what a browser loads."""
    visitor.ask("page", "GET", f"/?repo={SMALL}&size=70kB")
    for path in ("/config", "/theme.css", "/favicon.ico", "/gradio_api/info"):
        visitor.ask("page, parts of it", "GET", path)


def browse(visitor: Visitor) -> None:
    """Be a whole session of a browser: arrive, choose a model, see its plan. Sometimes leave in the middle."""
    session, page = visitor.token(), _Functions(visitor)
    if not page.functions:
        return
    with suppress(httpx.TransportError), visitor.client.stream("GET", f"/gradio_api/heartbeat/{session}"):
        for name in ("arrive", "show", "follow", "begin", "see", "propose", "draw", "list_tensors"):
            if visitor.dice.random() < 0.05:
                return
            page.press("session of a browser", name, session, page.repo)


def pry(visitor: Visitor) -> None:
    """Ask for the job of somebody else, which nobody may see."""
    for job in list(JOBS)[-3:]:
        if visitor.call("job of somebody else", "status", [job], refusals=True) is not None:
            visitor.notes.take("job of somebody else", "SHOWN", 0, job)


JOBS: dict[str, None] = {}
"""The jobs that were begun, the newest last."""


def run_a_job(visitor: Visitor) -> None:
    """Copy a model; watch, cancel, resume. It has ended when this returns."""
    name, source = f"{visitor.user}/copy-{visitor.token()}", visitor.dice.choice(PUBLIC[:2])
    choices = [source, name, f"{visitor.dice.randrange(60, 300)}kB", "size", "natural", "keep"]
    taken = visitor.call("job", "shard", [*choices, False, None, False, False, False, "", "", False, ""])
    if taken is None:
        return
    job, page = taken["job"], _Functions(visitor)
    JOBS[job] = None
    if visitor.dice.random() < 0.3:  # watch it as the page does, and leave
        page.leave("follow", visitor.token(), {page.job: job})
    if visitor.dice.random() < 0.3:
        visitor.ended.wait(visitor.dice.random() * 3)
        page.press("job, cancelled", "cancel", visitor.token(), page.job, job)
        _wait(visitor, job)
        if visitor.dice.random() < 0.5:
            shown = page.press("job, resumed", "resume", visitor.token(), page.job, job)
            again = shown[page.functions["resume"]["outputs"].index(page.job)] if shown else None
            job = again if isinstance(again, str) else job
            JOBS[job] = None
    _wait(visitor, job)


def _wait(visitor: Visitor, job: str) -> None:
    """Ask how a job is until it has ended."""
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        status = visitor.call("job, its status", "status", [job])
        if status and status["state"] not in ("queued", "running", "cancelling"):
            visitor.notes.take(
                "job, its end", status["state"], 0, "" if status["state"] in _ENDS else str(status)[:400]
            )
            return
        time.sleep(1)
    visitor.notes.take("job, its end", "none", PATIENCE_SECONDS, job)


_ENDS = ("done", "cancelled")


class _Functions:
    """The functions behind the page, with what a form that nobody has touched hands over to them."""

    def __init__(self, visitor: Visitor) -> None:
        self._visitor = visitor
        answer = visitor.ask("page, parts of it", "GET", "/config")
        config = answer.json() if answer is not None and answer.status_code == 200 else {}
        self.functions = {entry["api_name"]: entry for entry in config.get("dependencies", ())}
        self._form = {part["id"]: part["props"].get("value") for part in config.get("components", ())}
        self.repo = self.functions["begin"]["inputs"][0] if self.functions else 0
        self.job = self.functions["cancel"]["inputs"][0] if self.functions else 0

    def press(self, kind: str, name: str, session: str, field: int, value: str = SMALL) -> Any:
        """Call a function with a form in which one field is filled in."""
        function = self.functions[name]
        data = [value if part == field else self._form.get(part) for part in function["inputs"]]
        return self._visitor.press(kind, function["id"], data, session)

    def leave(self, name: str, session: str, filled: dict[int, str]) -> None:
        """Call a function and fetch nothing."""
        function = self.functions[name]
        data = [filled.get(part, self._form.get(part)) for part in function["inputs"]]
        body = {"data": data, "fn_index": function["id"], "session_hash": session}
        self._visitor.ask("abandoned", "POST", "/gradio_api/queue/join", json=body)
        _drop(self._visitor, f"GET /gradio_api/queue/data?session_hash={session} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


# --- What is odd ----------------------------------------------------------------------------------------


def ask_oddly(visitor: Visitor) -> None:
    """Ask what makes no sense, in one of many ways."""
    method, path, options = visitor.dice.choice(ODD)
    visitor.ask("odd", method, path, **options)


def _queue(**fields: Any) -> dict[str, Any]:
    return {"json": {"data": [], "fn_index": 2, "session_hash": "x", **fields}}


def _mcp(method: str, **parameters: Any) -> dict[str, Any]:
    return {"json": {"jsonrpc": "2.0", "id": 1, "method": method, "params": parameters}, "headers": _MCP}


_CALL, _JOIN = "/gradio_api/call/plan", "/gradio_api/queue/join"
ODD: list[tuple[str, str, dict[str, Any]]] = [
    *((method, "/", {}) for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE")),
    *(("GET", path, {}) for path in ("/nothing", "/.env", "/wp-login.php", "/static/../../etc/passwd", "//", "/%00")),
    *(("GET", f"/gradio_api/{path}", {}) for path in ("file=/etc/passwd", "proxy=http://127.0.0.1:1/x", "call/plan/x")),
    *(("GET", path, {}) for path in ("/gradio_api/queue/data", "/gradio_api/queue/data?session_hash=x", "/monitoring")),
    *(
        ("POST", _CALL, {"content": body, "headers": _JSON})
        for body in (b"", b"{", b"[]", b"null", b"\xff", b"[" * 99999)
    ),
    *(("POST", _CALL, {"json": {"data": data}}) for data in ([], [1], [None] * 8, [_LARGE], {}, "x", [["a"]] * 8)),
    ("POST", _CALL, {"content": b'{"data":["\\ud800","1GB","size","natural","keep","","",false]}', "headers": _JSON}),
    ("POST", _CALL, {"content": b"data=1", "headers": {"Content-Type": "text/plain"}}),
    ("POST", _CALL, {"content": b"x" * 2_000_000, "headers": _JSON}),
    ("POST", _CALL, {"json": {"data": [SMALL]}, "headers": {"Origin": "https://evil.example"}}),
    ("POST", _CALL, {"json": {"data": [SMALL]}, "headers": {"Authorization": "Bearer hf_nobody"}}),
    *(("POST", _JOIN, _queue(fn_index=number)) for number in (-1, 9999, None, "x", 10**30)),
    *(("POST", _JOIN, _queue(session_hash=name)) for name in ("", None, "../../etc", "x" * 100_000, "\0")),
    ("POST", _JOIN, _queue(data=[_LARGE])),
    ("POST", "/gradio_api/upload", {"files": {"files": ("x.txt", b"x" * 1_000_000)}}),
    ("POST", "/gradio_api/cancel", {"json": {"session_hash": "x", "fn_index": 1, "event_id": "x"}}),
    ("POST", "/gradio_api/component_server", {"json": {"session_hash": "x", "component_id": 1, "fn_name": "y"}}),
    ("POST", "/gradio_api/mcp/", _mcp("tools/list")),
    ("POST", "/gradio_api/mcp/", _mcp("tools/call", name="nothing", arguments={})),
    ("POST", "/gradio_api/mcp/", _mcp("tools/call", name="shard_my_repo_plan", arguments={"source": 1})),
    ("POST", "/gradio_api/mcp/", {"json": [], "headers": _MCP}),
    ("GET", "/config", {"headers": {"Cookie": "session=x; " + "a=b; " * 500, "Range": "bytes=5-1"}}),
]


# --- What is abandoned ----------------------------------------------------------------------------------


def abandon(visitor: Visitor, what: str) -> None:
    """Begin something and go away."""
    session = visitor.token()
    choices = ["1GB", "size", "natural", "keep", "", "", False, ""]
    match what:
        case "call":
            visitor.ask("abandoned", "POST", _CALL, json={"data": [MANY, *choices]})
        case "large call":
            # How a page that has too much of this to keep refuses it is up to the page.
            visitor.ask("odd", "POST", _CALL, json={"data": [visitor.token() + _LARGE, *choices]})
        case "session":
            functions = _Functions(visitor)
            if functions.functions:
                functions.leave("see", session, {functions.repo: MANY})
        case "stream":
            _drop(visitor, f"GET /gradio_api/heartbeat/{session} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        case "half a body":
            body = json.dumps({"data": [_LARGE]}).encode()
            head = f"POST {_CALL} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
            _drop(visitor, head.encode() + b"\r\n\r\n" + body[: visitor.dice.randrange(len(body))], waits=False)
        case "endless headers":
            _drop(visitor, b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-A: " + b"b" * 100_000 + b"\r\n", waits=False)


def _drop(visitor: Visitor, request: bytes, waits: bool = True) -> None:
    """Send this; wait for the first bytes of an answer, if it `waits`; drop the connection."""
    started, outcome = time.monotonic(), "dropped"
    with suppress(OSError), visitor.connection() as socket:
        socket.sendall(request)
        if waits:
            outcome = socket.recv(4096)[9:12].decode() or "none"
        visitor.ended.wait(visitor.dice.random())
    visitor.notes.take("dropped", outcome, time.monotonic() - started, str(request[:200]) if outcome[0] == "5" else "")


_ABANDONED = ("call", "large call", "session", "stream", "half a body", "endless headers")
ACTS: dict[Act, int] = {
    plan: 8,
    ask_transformers: 1,
    judge: 2,
    merge_hostile: 2,
    look: 3,
    browse: 3,
    pry: 1,
    ask_oddly: 8,
} | {partial(abandon, what=what): 1 for what in _ABANDONED}
