"""Run threads side by side without waiting for one that hangs or has died. Let them share memory."""

import ctypes
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from sharding.core.limits import PROGRESS_SECONDS

_Result = TypeVar("_Result")


class Threads(ThreadPoolExecutor):
    """A pool that notices when a thread has died. A thread without memory to report its result tells nobody."""

    def has_lost(self, future: Future[Any]) -> bool:
        """Return whether `future` may never finish. Threads of a working pool end only when the pool ends."""
        return not all(thread.is_alive() for thread in tuple(self._threads)) and not future.done()

    def result(self, future: Future[_Result], go_on: Callable[[], None] = lambda: None) -> _Result:
        """Return the result of `future`. Call `go_on` now and then. Raises MemoryError if a thread has died."""
        while True:
            try:
                return future.result(PROGRESS_SECONDS)
            except TimeoutError:
                if future.done():
                    return future.result()  # it ended just now, or the TimeoutError is its own
                go_on()
                if self.has_lost(future):
                    raise MemoryError from None

    def map(self, fn: Callable[..., _Result], *items: Iterable[Any], **_: Any) -> Iterator[_Result]:
        """Yield the result of `fn` for each item, in order. For one item or one worker it starts no thread."""
        calls = list(zip(*items, strict=True))
        if len(calls) < 2 or self._max_workers < 2:
            return (fn(*call) for call in calls)
        futures = [self.submit(fn, *call) for call in calls]
        return map(self.result, futures)


@contextmanager
def readers(count: int) -> Iterator[Threads]:
    """Yield a pool of `count` threads that only read. Its end drops queued reads and waits for none that stalls."""
    pool = Threads(count, thread_name_prefix="reader")
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def share_memory() -> None:
    """Let all threads allocate memory from one place, where the C library has such a setting (glibc: mallopt(3))."""
    # By default the many threads of hf-xet take a place each, and what one frees does not serve the others. A job
    # from Hub to Hub then needs 500 MB instead of 330. Places that are there already stay.
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(-8, 1)  # M_ARENA_MAX
