"""Let threads read side by side without anybody having to wait for the slowest when it is over."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def readers(count: int) -> Iterator[ThreadPoolExecutor]:
    """Yield a pool of `count` threads that only read; leaving the block drops what is queued and waits for none.

    So an interrupt or an error ends a job at once, although a read may still be waiting for a network that stalls.
    """
    pool = ThreadPoolExecutor(count, thread_name_prefix="reader")
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
