"""Ask every route of the page, and of Gradio, for what nobody would ask: no answer has a status of 500.

Hypothesis draws short conversations: methods, paths, headers, and bodies shaped like real ones with something wrong in
them. What it finds it makes as small as it can; the seed finds it again.
"""

import re
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from socket import create_connection

import httpx
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisWarning

from tests.scenarios.fuzzed_requests import Request, requests, routes
from tests.scenarios.served import Page, origin

PATIENCE_SECONDS = 60
READ_BYTES = 200_000
"""What is read of an answer: streams do not end."""

_EXAMPLES = 250
_TRACEBACK_LINES = 16


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


def fuzz(page: Page, seconds: float, first_seed: int, examples: int = _EXAMPLES) -> Fuzzed:
    """Ask for so long, with one seed after another; afterwards the page still answers."""
    fuzzed, known, number = Fuzzed(), routes(), first_seed
    until = time.monotonic() + seconds
    while time.monotonic() < until and page.is_alive:
        _converse(page, fuzzed, known, number, examples)
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


def _converse(page: Page, fuzzed: Fuzzed, known: list[tuple[str, str]], number: int, examples: int) -> None:
    """Draw conversations with one seed; keep the smallest one that shows a fault which is not known yet."""

    @seed(number)
    @settings(
        max_examples=examples, deadline=None, database=None, print_blob=False, report_multiple_bugs=False,
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
        since = len(page.site.log)
        if send(page, asked[-1])[0] >= 500 and origin(_printed(page, since)) == origin(traceback):
            asked = asked[-1:]
        lines = [f"Seed {number}: {origin(traceback)}", *(f"  {request}" for request in asked)]
        fuzzed.broken.append("\n".join([*lines, *traceback.splitlines()[-_TRACEBACK_LINES:]]))


def _printed(page: Page, since: int) -> str:
    """Return the last traceback that the page has printed since; it does so after it has answered."""
    until = time.monotonic() + 2
    while not (found := page.tracebacks(since)) and time.monotonic() < until:
        time.sleep(0.02)
    return found[-1] if found else "nothing printed"
