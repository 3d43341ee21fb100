"""Ask the page eighty questions that take long, all at once, and see what becomes of two visitors who come meanwhile."""

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from random import Random
from threading import Event

from tests.scenarios.served import LLAMA, SMALL, Page
from tests.scenarios.visitors import Notes, Visitor

SIZE = 80
PAGE_SECONDS = 3.0
PLAN_SECONDS = 8.0
"""So long may others wait, at most, for the page and for a plan by size."""


@dataclass(frozen=True, slots=True)
class Rush:
    """What became of a rush, and how long others waited while one of its questions was still being answered."""

    outcomes: Counter[str]
    page_seconds: list[float]
    plan_seconds: list[float]
    faults: Counter[str]

    @property
    def text(self) -> str:
        """What came of it, in a line."""
        answers = ", ".join(f"{number} {outcome}" for outcome, number in self.outcomes.most_common())
        return (
            f"{self.outcomes.total()} questions that ask transformers, at once: {answers}. Meanwhile `GET /` took at most "
            f"{max(self.page_seconds):.2f} s (of {len(self.page_seconds)}), and a plan by size at most "
            f"{max(self.plan_seconds):.2f} s (of {len(self.plan_seconds)}); wanted: at most {PAGE_SECONDS:g} s and "
            f"{PLAN_SECONDS:g} s."
        )

    @property
    def broken(self) -> list[str]:
        """The promises that were broken."""
        waited = max(self.page_seconds) > PAGE_SECONDS or max(self.plan_seconds) > PLAN_SECONDS
        return [f"Others waited: {self.text}"] * waited + [f"A fault: {fault}" for fault in self.faults]


def rush(page: Page) -> Rush:
    """Ask `page` for as many pipelines at once, each of other ranks, so that no two of them are one question."""
    notes, others, ended = Notes(), Notes(), Event()

    def ask(number: int) -> None:
        choices = [LLAMA, "100kB", f"pp:{number + 2}", "natural", "keep", "", "", False, ""]
        visitor = Visitor(page, notes, Random(number), None, ended)
        with visitor.client:
            visitor.call("question", "plan", choices, refusals=True)  # the model has fewer layers than most want ranks

    def come(act: Callable[[Visitor], object]) -> list[float]:
        visitor, seconds = Visitor(page, others, Random(0), None, ended), list[float]()
        with visitor.client:
            while not ended.is_set():
                began = time.monotonic()
                act(visitor)
                seconds.append(time.monotonic() - began)
                ended.wait(0.2)
        return seconds

    with ThreadPoolExecutor(SIZE + 2) as pool:
        pages = pool.submit(come, lambda visitor: visitor.ask("page", "GET", "/"))
        plans = pool.submit(come, _plan_by_size)
        questions = [pool.submit(ask, number) for number in range(SIZE)]
        wait(questions)
        ended.set()
    for question in questions:
        question.result()  # a mistake in a visitor is not the page's
    return Rush(notes.outcomes["question"], pages.result(), plans.result(), notes.faults + others.faults)


def _plan_by_size(visitor: Visitor) -> None:
    size = f"{visitor.dice.randrange(20, 400)}kB"
    visitor.call("plan by size", "plan", [SMALL, size, "size", "natural", "keep", "", "", False, ""])
