"""Let fifty visitors at the page for a long time: `python -m tests.scenarios.soak --minutes 15 --fuzz-minutes 20`.

First eighty ask what takes long, all at once (`crowd.rush`). The fifty plan, have jobs, ask oddly and abandon what they began.
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
from dataclasses import dataclass
from itertools import count
from threading import Event, Thread

from bench.harness.sections import RESULTS, replace_section
from tests.scenarios.crowd import RUSH, Notes, once, rush, visit
from tests.scenarios.fuzzed_routes import fuzz
from tests.scenarios.served import Holdings, Page, origin, served_page

GROWTH_BYTES = 100_000_000
"""So much more memory than after the first minute may be in use in the end."""
LONGEST_SECONDS = {"page": 3.0, "plan by size": 8.0}
"""So long may others wait in a rush, at most."""
SETTLE_SECONDS = 180
MB = 1_000_000
_FIRST_SECONDS = 60
_POOL_THREADS = min(32, (os.cpu_count() or 1) + 4)
"""The threads of asyncio's own pool, which stay (`concurrent.futures.ThreadPoolExecutor`, Python 3.11)."""
_IDLE_CONNECTIONS = 20
"""Connections to the Hub that its client keeps open (`httpx.Limits`)."""


@dataclass
class Soak:
    """What became of a page and its crowd: `memory` is in bytes, once a second while there were visitors."""

    notes: Notes
    start: Holdings
    end: Holdings
    memory: list[int]
    memory_at_end: int
    printed: list[str]
    """The tracebacks that the page has printed."""

    @property
    def broken(self) -> list[str]:
        broken = [f"{faults} answers are faults."] if (faults := self.notes.faults.total()) else []
        if (grown := self.memory_at_end - at_first(self.memory)) > GROWTH_BYTES:
            broken.append(f"The memory grew by {grown / MB:.0f} MB.")
        if not self.end.is_within(allowed(self.start)):
            broken.append(f"The page still holds {self.end}; it began with {self.start}.")
        return broken


def at_first(memory: Sequence[int]) -> int:
    """Return the memory after the first minute, or after the first third where there was less than three minutes."""
    return memory[min(_FIRST_SECONDS, len(memory) // 3)]


def allowed(start: Holdings) -> Holdings:
    """Return what the page may hold in the end: what it began with, and what its libraries keep for the next visitor."""
    return start._replace(threads=start.threads + _POOL_THREADS, files=start.files + _IDLE_CONNECTIONS)


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
    end = page.settle(allowed(start), at_first(memory) + GROWTH_BYTES, SETTLE_SECONDS)
    return Soak(notes, start, end, memory, page.memory_bytes(), page.tracebacks())


def _watch(page: Page, memory: list[int], ended: Event) -> None:
    began = time.monotonic()
    for second in count():
        memory.append(page.memory_bytes())
        if ended.wait(max(0.0, began + second + 1 - time.monotonic())):
            return


def draw(outcome: Soak, head: str) -> str:
    memory = outcome.memory
    points = [f"{memory[(len(memory) - 1) * n // 9] / MB:.0f}" for n in range(10)]
    first, most, last = (f"{each / MB:.0f} MB" for each in (at_first(memory), max(memory), outcome.memory_at_end))
    requests = sum(map(len, outcome.notes.seconds.values()))
    held = zip(Holdings._fields, outcome.start, outcome.end, strict=True)
    return f"""{head}, {requests:,} requests. An answer is a status or the last event of a stream.

{outcome.notes.table()}

- Memory of the page's process alone (USS, without its jobs), in ten points: {", ".join(points)} MB. After the first
  minute {first}, at most {most}, in the end {last}; wanted: at most {GROWTH_BYTES // MB} MB more than after the first minute.
""" + "\n".join(f"- {name.capitalize()} before and after: {start}, {end}." for name, start, end in held)


def draw_rush(notes: Notes, others: Notes) -> tuple[str, list[str]]:
    """Return what came of a rush in Markdown, and the promises that were broken."""
    text = f"{RUSH} questions that ask transformers, all at once, and two visitors meanwhile, who wait "
    text += " and ".join(f"at most {most:g} s for a {kind}" for kind, most in LONGEST_SECONDS.items())
    slow = [
        f"Others waited for a {kind}." for kind, most in LONGEST_SECONDS.items() if max(others.seconds[kind]) > most
    ]
    faults = [f"A fault: {fault}" for fault in notes.faults + others.faults]
    return f"{text}:\n\n{notes.table()}\n\n{others.table()}", slow + faults


def main(arguments: Sequence[str] | None = None) -> None:
    """Let all at the page, then ask its routes at random; exit with status 1 where a promise is broken."""
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
            text, slow = draw_rush(*rush(page))
            print(text, flush=True)
            outcome = soak(page, options.visitors, options.minutes * 60, options.seed)
        head = f"{options.visitors} visitors for {options.minutes:.3g} minutes, seed {options.seed}"
        texts += [text, draw(outcome, head)]
        broken += [*slow, *outcome.broken]
        print(texts[-1], flush=True)
        for title, listed in (("Faults", outcome.notes.faults), ("Printed", Counter(map(origin, outcome.printed)))):
            print(f"\n{title}:", *(f"{number} x {text}" for text, number in listed.most_common(60)), sep="\n  ")
    if options.fuzz_minutes:
        with served_page(1) as page:
            fuzzed = fuzz(page, options.fuzz_minutes * 60, options.seed)
        texts.append(fuzzed.text)
        broken += fuzzed.broken
        print(texts[-1])
    command = f"Command: `make soak MINUTES={options.minutes:g} FUZZ_MINUTES={options.fuzz_minutes:g}`."
    if options.note and not broken:
        replace_section(RESULTS, "## A soak", "\n\n".join([*texts, command]))
    if broken:
        raise SystemExit("\n".join(["Broken:", *broken]))


if __name__ == "__main__":
    main()
