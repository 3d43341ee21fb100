"""Let fifty visitors at the page for a long time: `python -m tests.scenarios.soak --minutes 15 --fuzz-minutes 20`.

First eighty ask what takes long, all at once (`rush`). The fifty plan, have jobs, ask oddly and abandon what they began.
Then the routes are asked at random (`fuzzed_routes`). No answer has a status of 500, and nothing that makes sense goes
without an answer. In the end the page has given back its memory, threads, processes, files and connections.
"""

import argparse
import os
import random
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from io import StringIO
from itertools import count
from threading import Event, Thread

from rich.console import Console

from bench.harness.sections import RESULTS, replace_section
from tests.scenarios.crowd import once, visit
from tests.scenarios.rush import rush
from tests.scenarios.served import Holdings, Page, origin, served_page
from tests.scenarios.visitors import Notes

HEADING = "## A soak"
GROWTH_BYTES = 100_000_000
"""So much more memory than after the first minute may be in use in the end."""

SETTLE_SECONDS = 180
MB = 1_000_000
_FIRST_SECONDS = 60
_POOL_THREADS = min(32, (os.cpu_count() or 1) + 4)
"""The threads of asyncio's own pool, which stay (`concurrent.futures.ThreadPoolExecutor`, Python 3.11)."""
_IDLE_CONNECTIONS = 20
"""Connections to the Hub that its client keeps open (`httpx.Limits`)."""


@dataclass
class Soak:
    """What became of a page and its crowd."""

    notes: Notes
    seed: int
    seconds: float
    start: Holdings
    end: Holdings
    memory: list[int]
    """Bytes, once a second while there were visitors."""
    memory_at_first: int
    """After the first minute, or after the first third where there was less than three minutes."""
    memory_at_end: int
    printed: list[str]
    """The tracebacks that the page has printed."""

    @property
    def broken(self) -> list[str]:
        """The promises that were broken."""
        broken = []
        if faults := self.notes.faults.total():
            broken.append(f"{faults} answers are faults.")
        if (grown := self.memory_at_end - self.memory_at_first) > GROWTH_BYTES:
            broken.append(f"The memory grew by {grown / MB:.0f} MB.")
        if not self.end.is_within(allowed(self.start)):
            broken.append(f"The page still holds {self.end}; it began with {self.start}.")
        return broken


def soak(page: Page, visitors: int, seconds: float, seed: int) -> Soak:
    """Let visitors at `page` for so long, and wait until it has calmed down."""
    notes, ended, memory = Notes(), Event(), list[int]()
    once(page, Notes())  # what is read or built once is no growth
    start = page.settle(Holdings(0, 0, 0, 0), 0, 15)
    watcher = Thread(target=_watch, args=(page, memory, ended))
    watcher.start()
    with ThreadPoolExecutor(visitors) as pool:
        crowd = [pool.submit(visit, page, notes, number, seed, ended) for number in range(visitors)]
        ended.wait(seconds)
        ended.set()
    watcher.join()
    for one in crowd:
        one.result()  # a mistake in a visitor is not the page's
    first = memory[min(_FIRST_SECONDS, len(memory) // 3)]
    end = page.settle(allowed(start), first + GROWTH_BYTES, SETTLE_SECONDS)
    return Soak(notes, seed, seconds, start, end, memory, first, page.memory_bytes(), page.tracebacks())


def allowed(start: Holdings) -> Holdings:
    """Return what the page may hold in the end: what it began with, and what its libraries keep for the next visitor."""
    return replace(start, threads=start.threads + _POOL_THREADS, files=start.files + _IDLE_CONNECTIONS)


def _watch(page: Page, memory: list[int], ended: Event) -> None:
    began = time.monotonic()
    for second in count():
        memory.append(page.memory_bytes())
        if ended.wait(max(0.0, began + second + 1 - time.monotonic())):
            return


def draw(outcome: Soak, visitors: int) -> str:
    """Return what came of it in Markdown."""
    points = [outcome.memory[(len(outcome.memory) - 1) * n // 9] for n in range(10)]
    table = StringIO()
    Console(file=table, width=200).print(outcome.notes.table())
    requests = sum(map(len, outcome.notes.seconds.values()))
    lines = [
        f"{visitors} visitors for {outcome.seconds / 60:.3g} minutes, {requests:,} requests, seed {outcome.seed}. An answer "
        "is a status or the last event of a stream.",
        "",
        table.getvalue().strip(),
        "",
        f"- Memory of the page's process alone (USS, without its jobs), in ten points: "
        f"{', '.join(f'{bytes_ / MB:.0f}' for bytes_ in points)} MB. After the first minute "
        f"{outcome.memory_at_first / MB:.0f} MB, at most {max(outcome.memory) / MB:.0f} MB, in the end "
        f"{outcome.memory_at_end / MB:.0f} MB; wanted: at most {GROWTH_BYTES // MB} MB more than after the first minute.",
        *(
            f"- {name.capitalize()} before and after: {getattr(outcome.start, name)}, {getattr(outcome.end, name)}."
            for name in Holdings.__slots__
        ),
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Let all at the page, then ask its routes at random; exit with status 1 where a promise is broken."""
    from tests.scenarios import fuzzed_routes

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--fuzz-minutes", type=float, default=20)
    parser.add_argument("--visitors", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--note", action="store_true", help="write the outcome into bench/RESULTS.md")
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}", flush=True)
    texts, broken = list[str](), list[str]()
    if options.minutes:
        with served_page(max(1, options.visitors // 5)) as page:
            rushed = rush(page)
            print(rushed.text, flush=True)
            outcome = soak(page, options.visitors, options.minutes * 60, options.seed)
        texts += [rushed.text, draw(outcome, options.visitors)]
        broken += [*rushed.broken, *outcome.broken]
        print(texts[-1], flush=True)
        for title, listed in (("Faults", outcome.notes.faults), ("Printed", Counter(map(origin, outcome.printed)))):
            print(f"\n{title}:", *(f"{number} x {text}" for text, number in listed.most_common(60)), sep="\n  ")
    if options.fuzz_minutes:
        with served_page(1) as page:
            fuzzed = fuzzed_routes.fuzz(page, options.fuzz_minutes * 60, options.seed)
        texts.append(fuzzed.text)
        broken += fuzzed.broken
        print(texts[-1])
    command = f"Command: `make soak MINUTES={options.minutes:g} FUZZ_MINUTES={options.fuzz_minutes:g}`."
    if options.note and not broken:
        replace_section(RESULTS, HEADING, "\n\n".join([*texts, command]))
    if broken:
        raise SystemExit("\n".join(["Broken:", *broken]))


if __name__ == "__main__":
    main()
