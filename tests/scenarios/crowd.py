"""A crowd on the page, and note of every answer: plans, jobs, large and odd requests, sessions that are abandoned."""

import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from io import StringIO
from random import Random
from socket import create_connection
from statistics import median
from threading import Event, Lock
from typing import Any

import httpx
from rich import box
from rich.console import Console
from rich.table import Table

from tests.page.site import choices
from tests.scenarios.served import GUEST, HOSTILE, LLAMA, LORAS, MANY, MERGED, PUBLIC, RESULT, SMALL, Page

PATIENCE_SECONDS = 600.0
"""How long a visitor waits for an answer. None by then is a fault, but how long each takes is only shown."""
PAUSE_SECONDS = 0.5
"""What a visitor waits between two acts, on average."""
RUSH = 80
"""How many ask at once what takes long."""

_BUSY = re.compile(r"busy|too many|full|try again|are waiting", re.I)
_REGULAR = frozenset({"200", "complete", "busy"})
"""What may come of a question that makes sense."""
_LARGE = "x" * 900_000
_CALL, _JOIN = "/gradio_api/call/plan", "/gradio_api/queue/join"


@dataclass
class Notes:
    """What came of all requests: outcomes and seconds of each kind, and the faults."""

    outcomes: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    faults: Counter[str] = field(default_factory=Counter)
    _lock: Lock = field(default_factory=Lock)

    def take(self, kind: str, outcome: str, seconds: float, fault: str = "") -> None:
        with self._lock:
            self.outcomes[kind][outcome] += 1
            self.seconds[kind].append(seconds)
            if fault:
                self.faults[f"{kind}: {outcome}: {fault}"[:600]] += 1

    def table(self) -> str:
        table = Table("what was asked", "requests", "answers", "median", "worst", box=box.MARKDOWN)
        for kind in sorted(self.outcomes):
            answers = ", ".join(f"{number} {outcome}" for outcome, number in self.outcomes[kind].most_common())
            seconds = self.seconds[kind]
            table.add_row(kind, f"{len(seconds):,}", answers, f"{median(seconds):.2f} s", f"{max(seconds):.1f} s")
        Console(file=(text := StringIO()), width=200).print(table)
        return text.getvalue().strip()


class Visitor:
    """One of the crowd: with a token or none, and dice of their own."""

    def __init__(self, page: Page, notes: Notes, dice: Random, user: str | None, ended: Event) -> None:
        self.page, self.notes, self.dice, self.user, self.ended = page, notes, dice, user, ended
        headers = {"Authorization": f"Bearer hf_{user}"} if user else {}
        # The page keeps an idle connection for five seconds: one of ours must not be used as it is closed.
        limits = httpx.Limits(keepalive_expiry=2)
        self.client = httpx.Client(base_url=page.site.address, headers=headers, timeout=PATIENCE_SECONDS, limits=limits)

    def ask(self, kind: str, method: str, path: str, **options: Any) -> httpx.Response | None:
        """Ask for something; return the answer, if any. What is no mistake of the visitor has to be answered with 200."""
        started = time.monotonic()
        asked = f"{method} {path[:200]} " + " ".join(f"{name}={str(value)[:150]}" for name, value in options.items())
        try:
            # The page may close the connection of who sends too much before all of it has come.
            asker = httpx if kind == "odd" else self.client
            answer = asker.request(method, f"{self.page.site.address}{path}", timeout=PATIENCE_SECONDS, **options)
        except httpx.TransportError as error:
            is_fault = kind != "odd" or isinstance(error, httpx.TimeoutException)
            self.notes.take(kind, type(error).__name__, time.monotonic() - started, asked if is_fault else "")
            return None
        self._note(kind, answer.status_code, answer.text, started, asked)
        return answer

    def _note(self, kind: str, status: int, text: str, started: float, asked: str) -> None:
        outcome = "busy" if status in (429, 503) and _BUSY.search(text) else str(status)
        is_fault = outcome not in _REGULAR if kind != "odd" else outcome >= "5" and outcome != "busy"
        self.notes.take(kind, outcome, time.monotonic() - started, f"{asked} -> {text[:200]!r}" if is_fault else "")

    def call(self, kind: str, endpoint: str, data: list[Any], refusals: bool = False) -> Any:
        """Call an endpoint as gradio_client does; return its answer or None. `refusals`: whether it may refuse."""
        return self._event(kind, f"call/{endpoint}", {"data": data}, f"call/{endpoint}/{{}}", refusals)

    def press(self, kind: str, function: int, data: list[Any], session: str) -> list[Any] | None:
        body = {"data": data, "fn_index": function, "session_hash": session, "trigger_id": None, "event_data": None}
        found = self._event(kind, "queue/join", body, f"queue/data?session_hash={session}", False)
        return found["data"] if isinstance(found, dict) else None

    def _event(self, kind: str, path: str, body: dict[str, Any], way_back: str, refusals: bool) -> Any:
        started, asked = time.monotonic(), f"{path} {json.dumps(body)[:300]}"
        try:
            taken = self.client.post(f"/gradio_api/{path}", json=body)
            if taken.status_code != 200:
                return self._note(kind, taken.status_code, taken.text, started, asked)
            with self.client.stream("GET", f"/gradio_api/{way_back.format(taken.json()['event_id'])}") as stream:
                if stream.status_code != 200:
                    return self._note(kind, stream.status_code, stream.read().decode(), started, f"{asked}, the answer")
                outcome, answer = _last_event(stream.iter_lines(), started)
        except httpx.TransportError as error:
            outcome, answer = type(error).__name__, None
        is_fault = outcome not in _REGULAR and not (refusals and outcome == "refused")
        fault = f"{asked} -> {str(answer)[:200]}" if is_fault else ""
        self.notes.take(kind, outcome, time.monotonic() - started, fault)
        return answer if outcome == "complete" else None

    def token(self, length: int = 10) -> str:
        return "".join(self.dice.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=length))

    def drop(self, request: bytes, waits: bool = True) -> None:
        """Send this; wait for the first bytes of an answer, if it `waits`; drop the connection."""
        started, outcome = time.monotonic(), "dropped"
        place = ("127.0.0.1", self.page.site.port)
        with suppress(OSError), closing(create_connection(place, timeout=PATIENCE_SECONDS)) as socket:
            socket.sendall(request)
            if waits:
                outcome = socket.recv(4096)[9:12].decode() or "none"
            self.ended.wait(self.dice.random())
        self.notes.take("dropped", outcome, time.monotonic() - started, str(request[:200]) if outcome[0] == "5" else "")


def _last_event(lines: Iterator[str], started: float) -> tuple[str, Any]:
    """Read a stream of events up to the last of a question; return what came of it, and the answer or the refusal."""
    event = ""
    for line in lines:
        if time.monotonic() - started > PATIENCE_SECONDS:
            return "no answer", None
        word, _, text = line.partition(": ")
        if word == "event":
            event = text
        elif word == "data" and event in ("complete", "error"):
            answer = json.loads(text)
            return ("complete", answer[0]) if event == "complete" else _refusal(answer)
        elif word == "data" and not event:
            message = json.loads(text)
            if message["msg"] == "process_completed":
                output = message["output"]
                return ("complete", output) if message["success"] else _refusal(output)
            if message["msg"] in ("unexpected_error", "close_stream"):
                return message["msg"], message
    return "no end", None


def _refusal(answer: Any) -> tuple[str, Any]:
    """Return whether the page is busy or refuses in words; an error without a sentence is one that it did not expect."""
    text = answer.get("error") if isinstance(answer, dict) else answer
    if not text:
        return "error without a sentence", answer
    return "busy" if _BUSY.search(text) else "refused", text


Act = Callable[[Visitor], object]


@contextmanager
def _visitor(page: Page, notes: Notes, seed: int | str, user: str | None, ended: Event) -> Iterator[Visitor]:
    visitor = Visitor(page, notes, Random(seed), user, ended)
    with visitor.client:
        yield visitor


def visit(page: Page, notes: Notes, number: int, seed: int, ended: Event) -> None:
    """Do one thing after another until `ended`. Each user's first visitor has jobs, all others do what comes to mind."""
    works = number < len(page.users)
    user = page.users[number] if works else (None, GUEST)[number % 2]
    with _visitor(page, notes, f"{seed}/{number}", user, ended) as visitor:
        while not ended.is_set():
            (act,) = [run_a_job] if works else visitor.dice.choices(list(ACTS), list(ACTS.values()))
            act(visitor)
            ended.wait(visitor.dice.expovariate(1 / PAUSE_SECONDS))


def once(page: Page, notes: Notes) -> None:
    with _visitor(page, notes, 0, "alice", Event()) as visitor:
        for act in (run_a_job, *ACTS):
            act(visitor)


def rush(page: Page) -> tuple[Notes, Notes]:
    """Ask what takes long, all at once, each of other ranks, so that no two of them are one question.

    Return what came of that, and of what two visitors asked meanwhile, again and again.
    """
    notes, others, ended = Notes(), Notes(), Event()

    def ask(number: int) -> None:
        with _visitor(page, notes, number, None, ended) as visitor:
            # The model has fewer layers than most want ranks.
            visitor.call("question", "plan", _choices(LLAMA, strategy=f"pp:{number + 2}"), refusals=True)

    def come(act: Act) -> None:
        with _visitor(page, others, 0, None, ended) as visitor:
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


def _choices(
    source: str, size: str = "100kB", strategy: str = "size", dtype: str = "keep", adapter: str = ""
) -> list[Any]:
    return [source, *choices("plan", max_shard_size=size, strategy=strategy, dtype=dtype, adapter=adapter)]


# --- What makes sense -----------------------------------------------------------------------------------


def plan(visitor: Visitor) -> None:
    """Plan by size, which reads headers only."""
    size = f"{visitor.dice.randrange(20, 400)}kB"
    visitor.call("plan by size", "plan", _choices(visitor.dice.choice(PUBLIC), size))


def ask_transformers(visitor: Visitor) -> None:
    """Plan what takes a process that builds the model: it is answered, or the page is busy."""
    strategy, dtype = f"pp:{visitor.dice.randrange(2, 10)}", visitor.dice.choice(["bf16", "fp16", "keep"])
    # The model has fewer layers than some of these want ranks.
    visitor.call("plan that asks transformers", "plan", _choices(LLAMA, "100kB", strategy, dtype), refusals=True)


def merge_hostile(visitor: Visitor) -> None:
    """Plan a merge with an adapter that wants too much, and look at a report of a merge that never happened."""
    adapter = f"{LORAS}/{visitor.dice.choice(list(HOSTILE))}"
    visitor.call("merge with a hostile adapter", "plan", _choices(LLAMA, "1GB", adapter=adapter), refusals=True)
    visitor.call("result of a merge that never happened", "result", [MERGED], refusals=True)
    visitor.ask("odd", "GET", f"/badge.svg?result={MERGED}")


def judge(visitor: Visitor) -> None:
    visitor.call("result", "result", [RESULT])
    visitor.call("result that is none", "result", [f"alice/{visitor.token()}"], refusals=True)
    visitor.ask("page", "GET", f"/?result={RESULT}")


def look(visitor: Visitor) -> None:
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
    chosen = choices("shard", max_shard_size=f"{visitor.dice.randrange(60, 300)}kB")
    taken = visitor.call("job", "shard", [source, name, *chosen])
    if taken is None:
        return
    job, page = taken["job"], _Functions(visitor)
    JOBS[job] = None
    if visitor.dice.random() < 0.3:  # watch it as the page does, and leave
        page.leave("follow", visitor.token(), page.job, job)
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
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        status = visitor.call("job, its status", "status", [job])
        if status and status["state"] not in ("queued", "running", "cancelling"):
            fault = "" if status["state"] in ("done", "cancelled") else str(status)[:400]
            return visitor.notes.take("job, its end", status["state"], 0, fault)
        time.sleep(1)
    return visitor.notes.take("job, its end", "none", PATIENCE_SECONDS, job)


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

    def _filled(self, name: str, field: int, value: str) -> tuple[int, list[Any]]:
        function = self.functions[name]
        return function["id"], [value if part == field else self._form.get(part) for part in function["inputs"]]

    def press(self, kind: str, name: str, session: str, field: int, value: str = SMALL) -> Any:
        number, data = self._filled(name, field, value)
        return self._visitor.press(kind, number, data, session)

    def leave(self, name: str, session: str, field: int, value: str) -> None:
        number, data = self._filled(name, field, value)
        body = {"data": data, "fn_index": number, "session_hash": session}
        self._visitor.ask("abandoned", "POST", _JOIN, json=body)
        self._visitor.drop(f"GET /gradio_api/queue/data?session_hash={session} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


# --- What is odd, and what is abandoned -------------------------------------------------------------------


def ask_oddly(visitor: Visitor) -> None:
    """Ask what makes no sense, in one of the ways that `fuzzed_routes` does not draw: most of them are large."""
    path, options = visitor.dice.choice(ODD)
    visitor.ask("odd", "POST", path, **options)


_JSON = {"Content-Type": "application/json"}
_QUEUE = {"data": [], "fn_index": 2, "session_hash": "x"}
_TOOL = {"method": "tools/call", "params": {"name": "shard_my_repo_plan", "arguments": {"source": 1}}}
ODD: list[tuple[str, dict[str, Any]]] = [
    *((_CALL, {"content": body, "headers": _JSON}) for body in (b"", b"[" * 99999, b"x" * 2_000_000)),
    *((_CALL, {"json": {"data": data}}) for data in ([], [1], [_LARGE], "x")),
    (_CALL, {"json": {"data": [SMALL]}, "headers": {"Authorization": "Bearer hf_nobody"}}),
    *((_JOIN, {"json": {**_QUEUE, **wrong}}) for wrong in ({"session_hash": "x" * 100_000}, {"data": [_LARGE]})),
    ("/gradio_api/upload", {"files": {"files": ("x.txt", b"x" * 1_000_000)}}),
    (
        "/gradio_api/mcp/",
        {"json": {"jsonrpc": "2.0", "id": 1, **_TOOL}, "headers": {"Accept": "application/json, text/event-stream"}},
    ),
]


def abandon(visitor: Visitor, what: str) -> None:
    session = visitor.token()
    match what:
        case "call":
            visitor.ask("abandoned", "POST", _CALL, json={"data": _choices(MANY, "1GB")})
        case "large call":
            # How a page that has too much of this to keep refuses it is up to the page.
            visitor.ask("odd", "POST", _CALL, json={"data": _choices(visitor.token() + _LARGE, "1GB")})
        case "session":
            page = _Functions(visitor)
            if page.functions:
                page.leave("see", session, page.repo, MANY)
        case "stream":
            visitor.drop(f"GET /gradio_api/heartbeat/{session} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        case "half a body":
            body = json.dumps({"data": [_LARGE]}).encode()
            head = f"POST {_CALL} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
            visitor.drop(head.encode() + b"\r\n\r\n" + body[: visitor.dice.randrange(len(body))], waits=False)
        case "endless headers":
            visitor.drop(b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-A: " + b"b" * 100_000 + b"\r\n", waits=False)


_ABANDONED = ("call", "large call", "session", "stream", "half a body", "endless headers")
ACTS: dict[Act, int] = {
    **{plan: 8, ask_transformers: 1, judge: 2, merge_hostile: 2, look: 3, browse: 3, pry: 1, ask_oddly: 4},
    **{partial(abandon, what=what): 1 for what in _ABANDONED},
}
"""What comes to a visitor's mind, and how often."""
