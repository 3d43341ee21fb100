"""Let threads work side by side; nobody has to wait for the slowest when it is over, or for one that has died."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from sharding.core.limits import PROGRESS_SECONDS

_Result = TypeVar("_Result")


class Threads(ThreadPoolExecutor):
    """A pool that notices where a thread has died: without memory to hand over what it found, it tells nobody."""

    def has_lost(self, future: Future[Any]) -> bool:
        """Return whether `future` may never be done. Threads of a pool that works end only when it does."""
        return not all(thread.is_alive() for thread in tuple(self._threads)) and not future.done()

    def result(self, future: Future[_Result], go_on: Callable[[], None] = lambda: None) -> _Result:
        """Return what `future` has; call `go_on` now and then. Raises MemoryError where a thread has died."""
        while True:
            try:
                return future.result(PROGRESS_SECONDS)
            except TimeoutError:
                if future.done():
                    return future.result()  # the error is the future's own, or it was done just now
                go_on()
                if self.has_lost(future):
                    raise MemoryError from None

    def map(self, fn: Callable[..., _Result], *items: Iterable[Any], **_: Any) -> Iterator[_Result]:
        """Yield what `fn` makes of each item, in order; where nothing is side by side, without a thread."""
        calls = list(zip(*items, strict=True))
        if len(calls) < 2 or self._max_workers < 2:
            return (fn(*call) for call in calls)
        futures = [self.submit(fn, *call) for call in calls]
        return map(self.result, futures)


@contextmanager
def readers(count: int) -> Iterator[Threads]:
    """Yield a pool of `count` threads that only read; leaving the block drops what is queued and waits for none.

    So an interrupt or an error ends a job at once, although a read may still be waiting for a network that stalls.
    """
    pool = Threads(count, thread_name_prefix="reader")
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
