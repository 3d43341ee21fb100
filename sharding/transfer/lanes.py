"""Run tasks in a few threads, and report progress meanwhile."""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from threading import Lock
from typing import Generic, TypeVar

from sharding.core.events import Phase, Progress
from sharding.core.limits import PROGRESS_FILES, PROGRESS_SECONDS, THREADS
from sharding.core.meter import Meter
from sharding.core.protocols import Destination
from sharding.core.threads import Threads
from sharding.storage.hub.client import Hub
from sharding.storage.hub.guard import waiting_seconds

_T = TypeVar("_T")
_Event = TypeVar("_Event")
_Change = TypeVar("_Change")
_SAMPLES = 50  # With `PROGRESS_SECONDS` between two, the rate covers the last five seconds or more.


class Pace:
    """The progress of one phase. You pass the time in."""

    def __init__(self, phase: Phase, bytes_total: int, now: float, every: float = PROGRESS_SECONDS) -> None:
        """Start at zero of `bytes_total` bytes at `now` (any steady clock). At most one event in `every` seconds."""
        self._every = every
        self._phase: Phase = phase
        self._total = bytes_total
        self._done = 0
        self._samples: deque[tuple[float, int]] = deque([(now, 0)], maxlen=_SAMPLES)

    def add(self, count: int, now: float, file: str = "") -> Progress | None:
        """Count `count` bytes more; return an event, or None if the last one is too recent."""
        self._done += count
        if now - self._samples[-1][0] < self._every and self._done < self._total:
            return None
        self._samples.append((now, self._done))
        first_time, first_bytes = self._samples[0]
        rate = (self._done - first_bytes) / (now - first_time) if now > first_time else 0.0
        left = (self._total - self._done) / rate if rate > 0 else None
        return Progress(self._phase, self._done, self._total, file, rate, left)


def progress_of_part(work: Generator[Progress, None, _T], before: int, total: int) -> Generator[Progress, None, _T]:
    """Yield the progress of `work` as part of a phase of `total` bytes, `before` done; return what it returns."""
    passed = last = 0

    def as_part(progress: Progress) -> Progress:
        nonlocal passed, last
        if progress.bytes_done < last:  # a count that restarts is the next part of the work
            passed += last
        last = progress.bytes_done
        done = min(before + passed + last, total)
        left = (total - done) / progress.bytes_per_second if progress.bytes_per_second else None
        return replace(progress, bytes_done=done, bytes_total=total, seconds_left=left)

    return relayed(work, as_part)


def measured(
    work: Generator[_Event, None, _T], target: Destination, meter: Meter, hub: Hub
) -> Generator[_Event | Progress, None, _T]:
    """Yield the events of `work`, and add to its progress what the job costs so far. Return what it returns."""

    def with_costs(event: _Event) -> _Event | Progress:
        if not isinstance(event, Progress):
            return event
        return replace(
            event,
            anon_bytes=meter.anon_bytes,
            waiting_seconds=waiting_seconds(hub.endpoint),
            bytes_uploaded=event.bytes_uploaded + target.bytes_uploaded,
            bytes_deduplicated=event.bytes_deduplicated + target.bytes_deduplicated,
        )

    return relayed(work, with_costs)


def relayed(work: Generator[_Event, None, _T], change: Callable[[_Event], _Change]) -> Generator[_Change, None, _T]:
    """Yield what `change` makes of each event of `work`. Return what `work` returns. What is thrown goes to `work`."""
    go_on = partial(next, work)
    while True:
        try:
            event = go_on()
        except StopIteration as end:
            result: _T = end.value
            return result
        try:
            yield change(event)
            go_on = partial(next, work)
        except BaseException as error:
            go_on = partial(work.throw, error)


LAST_SECONDS = 2.0  # Longest time that a job which ends early waits for its threads. A disk or a Hub may hang.


@dataclass(frozen=True, slots=True)
class Done(Generic[_T]):
    """The result of a task. Tasks are numbered from 0."""

    number: int
    result: _T


class Lanes:
    """A few threads. Each runs one task after another."""

    def __init__(self, phase: Phase, bytes_total: int, width: int = THREADS, *, ahead: bool = False) -> None:
        """Run `width` tasks at a time. With `ahead`, they go on while nobody asks for the next event."""
        self._pace = Pace(phase, bytes_total, time.monotonic())
        self._lock = Lock()
        self._uncounted = 0
        self._width, self._is_ahead = width, ahead
        self._file = ""
        self._files = dict[str, int]()
        self._last = Progress(phase, 0, bytes_total)
        self._is_stopped = False

    def count(self, size: int, file: str = "") -> None:
        """Count `size` more bytes of `file`, and `go_on`."""
        self.go_on()
        with self._lock:
            self._uncounted += size
            self._file = file
            if file:
                self._files[file] = self._files.get(file, 0) + size

    def run(
        self, tasks: Iterable[Callable[[], _T]], on_stop: Callable[[], None] | None = None
    ) -> Iterator[Progress | Done[_T]]:
        """Yield progress and results of `tasks`. The first error ends all; `on_stop` wakes those that wait."""
        pool = Threads(self._width, thread_name_prefix="lane")
        under_way: dict[Future[_T], int] = {}
        try:
            waiting = enumerate(tasks)
            if self._is_ahead:
                under_way |= {pool.submit(self._unless_stopped, task): number for number, task in waiting}
                yield self._last
            while True:
                # Only as many as there are threads: no task starts while nobody asks for the next event.
                for number, task in islice(waiting, max(0, self._width - len(under_way))):
                    under_way[pool.submit(task)] = number
                if not under_way:
                    break
                done, _ = wait(under_way, PROGRESS_SECONDS, FIRST_COMPLETED)
                if not done and any(map(pool.has_lost, under_way)):
                    raise MemoryError
                if progress := self._progress():
                    yield progress
                for future in sorted(done, key=under_way.__getitem__):
                    yield Done(under_way.pop(future), future.result())
            while self._files:
                yield self._with_files(self._last)
        finally:
            self._is_stopped = True
            if on_stop:
                on_stop()
                wait(under_way, LAST_SECONDS)
            pool.shutdown(wait=False, cancel_futures=True)

    def _unless_stopped(self, task: Callable[[], _T]) -> _T:
        self.go_on()
        try:
            return task()
        except BaseException:
            self._is_stopped = True
            raise

    def go_on(self) -> None:
        """End the task if nobody waits for it any more."""
        if self._is_stopped:
            raise CancelledError

    def _progress(self) -> Progress | None:
        with self._lock:
            count, self._uncounted = self._uncounted, 0
            progress = self._pace.add(count, time.monotonic(), self._file)
            self._last = progress or self._last
            return self._with_files(progress) if progress else None

    def _with_files(self, progress: Progress) -> Progress:
        names = list(islice(self._files, PROGRESS_FILES))
        return replace(progress, files={name: self._files.pop(name) for name in names})


def collected(events: Iterator[Progress | Done[_T]]) -> Generator[Progress, None, list[_T]]:
    """Yield the progress in `events`; return all results in the order of their tasks."""
    results = {}
    for event in events:
        if isinstance(event, Done):
            results[event.number] = event.result
        else:
            yield event
    return [results[number] for number in sorted(results)]
