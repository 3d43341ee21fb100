"""Workers in this very process: what they say is at hand, and some of it is lost on its way."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sharding.fleet.parts import Part, PartDone, PartEvent, parse_event, parse_part
from sharding.fleet.worker import work


class Hands:
    """Two workers, which do parts a line at a time. See `RayWorkers`.

    `loses` is asked of every line whether it gets lost with its worker, and of which attempt at the file it is.
    """

    name = "hands 1"

    def __init__(self, loses: Callable[[Part, PartEvent, int], bool] = lambda *_: False, count: int = 2) -> None:
        self.count = count
        self.loses = loses
        self.sent: list[str] = []
        self.done: list[tuple[str, PartDone]] = []
        self._begun: Counter[tuple[str, str]] = Counter()
        self._parts: dict[Iterator[str], tuple[Part, int]] = {}

    def start(self, part: str) -> Iterator[str]:
        self.sent.append(part)
        parsed = parse_part(part)
        self._begun[parsed.phase, parsed.shard.file] += 1
        lines = work(part, "here")
        self._parts[lines] = parsed, self._begun[parsed.phase, parsed.shard.file]
        return lines

    def stop(self, part: Any) -> None:
        part.close()

    def wait(self, parts: list[Any], seconds: float) -> Iterator[tuple[Any, PartEvent | None]]:
        for lines in parts:
            part, attempt = self._parts[lines]
            said = parse_event(next(lines))
            if self.loses(part, said, attempt):
                lines.close()
                yield lines, None
                continue
            if isinstance(said, PartDone):
                self.done.append((part.phase, said))
            yield lines, said


@pytest.fixture
def led(monkeypatch: pytest.MonkeyPatch) -> Callable[[Hands], Hands]:
    """Have jobs with workers done by these."""

    def led(hands: Hands) -> Hands:
        @contextmanager
        def workers() -> Iterator[Hands]:
            yield hands

        monkeypatch.setattr("sharding.job.ray_workers", workers)
        return hands

    return led
