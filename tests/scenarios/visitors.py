"""Ask the page as a visitor does, and note every answer."""

import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from random import Random
from socket import create_connection
from statistics import median
from threading import Event, Lock
from typing import Any

import httpx
from rich import box
from rich.table import Table

from tests.scenarios.served import Page

PATIENCE_SECONDS = 120.0
"""How long a visitor waits for an answer. None by then is a fault, but how long each takes is only shown."""

_BUSY = re.compile(r"busy|too many|full|try again|are waiting", re.I)
REGULAR = frozenset({"200", "complete", "busy"})
"""What may come of a question that makes sense."""


@dataclass
class Notes:
    """What came of all requests: outcomes and seconds of each kind, and the faults."""

    outcomes: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    faults: Counter[str] = field(default_factory=Counter)
    _lock: Lock = field(default_factory=Lock)

    def take(self, kind: str, outcome: str, seconds: float, fault: str = "") -> None:
        """Note an answer, and where it is a `fault` what was asked."""
        with self._lock:
            self.outcomes[kind][outcome] += 1
            self.seconds[kind].append(seconds)
            if fault:
                self.faults[f"{kind}: {outcome}: {fault}"[:600]] += 1

    def table(self) -> Table:
        """Return a row for each kind of request."""
        table = Table("what was asked", "requests", "answers", "median", "worst", box=box.MARKDOWN)
        for kind in sorted(self.outcomes):
            answers = ", ".join(f"{number} {outcome}" for outcome, number in self.outcomes[kind].most_common())
            seconds = self.seconds[kind]
            table.add_row(kind, f"{len(seconds):,}", answers, f"{median(seconds):.2f} s", f"{max(seconds):.1f} s")
        return table


class Visitor:
    """One of the crowd: with a token or none, and dice of their own."""

    def __init__(self, page: Page, notes: Notes, dice: Random, user: str | None, ended: Event) -> None:
        """Visit `page` until `ended`, as `user`."""
        self.page, self.notes, self.dice, self.user, self.ended = page, notes, dice, user, ended
        self.headers = {"Authorization": f"Bearer hf_{user}"} if user else {}
        # The page keeps an idle connection for five seconds: one of ours must not be used as it is closed.
        limits = httpx.Limits(keepalive_expiry=2)
        self.client = httpx.Client(
            base_url=page.site.address, headers=self.headers, timeout=PATIENCE_SECONDS, limits=limits
        )

    def ask(self, kind: str, method: str, path: str, **options: Any) -> httpx.Response | None:
        """Ask for something; return the answer, if any. What is no mistake of the visitor has to be answered with 200."""
        started = time.monotonic()
        try:
            # The page may close the connection of who sends too much before all of it has come.
            asker = httpx if kind == "odd" else self.client
            answer = asker.request(method, f"{self.page.site.address}{path}", timeout=PATIENCE_SECONDS, **options)
        except httpx.TransportError as error:
            is_fault = kind != "odd" or isinstance(error, httpx.TimeoutException)
            fault = f"{method} {path[:200]}" if is_fault else ""
            self.notes.take(kind, type(error).__name__, time.monotonic() - started, fault)
            return None
        self._note(kind, answer.status_code, answer.text, started, f"{method} {path[:200]} {_shown(options)}")
        return answer

    def _note(self, kind: str, status: int, text: str, started: float, asked: str) -> None:
        outcome = "busy" if status in (429, 503) and _BUSY.search(text) else str(status)
        is_fault = outcome not in REGULAR if kind != "odd" else outcome >= "5" and outcome != "busy"
        fault = f"{asked} -> {text[:200]!r}" if is_fault else ""
        self.notes.take(kind, outcome, time.monotonic() - started, fault)

    def call(self, kind: str, endpoint: str, data: list[Any], refusals: bool = False) -> Any:
        """Call an endpoint as gradio_client does; return its answer or None. `refusals`: whether it may refuse."""
        return self._event(kind, f"call/{endpoint}", {"data": data}, f"call/{endpoint}/{{}}", refusals)

    def press(self, kind: str, function: int, data: list[Any], session: str) -> list[Any] | None:
        """Have the page do what a visitor's click does; return what it shows then."""
        body = {"data": data, "fn_index": function, "session_hash": session, "trigger_id": None, "event_data": None}
        found = self._event(kind, "queue/join", body, f"queue/data?session_hash={session}", False)
        return found["data"] if isinstance(found, dict) else None

    def _event(self, kind: str, path: str, body: dict[str, Any], way_back: str, refusals: bool) -> Any:
        started, asked = time.monotonic(), f"{path} {json.dumps(body)[:300]}"
        try:
            taken = self.client.post(f"/gradio_api/{path}", json=body)
            if taken.status_code != 200:
                self._note(kind, taken.status_code, taken.text, started, asked)
                return None
            with self.client.stream("GET", f"/gradio_api/{way_back.format(taken.json()['event_id'])}") as stream:
                if stream.status_code != 200:
                    self._note(kind, stream.status_code, stream.read().decode(), started, f"{asked} -> {way_back}")
                    return None
                outcome, answer = _last_event(stream.iter_lines(), started)
        except httpx.TransportError as error:
            self.notes.take(kind, type(error).__name__, time.monotonic() - started, asked)
            return None
        is_fault = outcome not in REGULAR and not (refusals and outcome == "refused")
        self.notes.take(
            kind, outcome, time.monotonic() - started, f"{asked} -> {str(answer)[:200]}" if is_fault else ""
        )
        return answer if outcome == "complete" else None

    def token(self, length: int = 10) -> str:
        """Return a name that nobody else has."""
        return "".join(self.dice.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=length))

    @contextmanager
    def connection(self) -> Iterator[Any]:
        """Give a bare connection to the page, which ends with the block, whatever was sent."""
        with closing(create_connection(("127.0.0.1", self.page.site.port), timeout=PATIENCE_SECONDS)) as socket:
            yield socket


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


def _shown(options: dict[str, Any]) -> str:
    return " ".join(f"{name}={str(value)[:150]}" for name, value in options.items())
