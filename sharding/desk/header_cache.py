"""Read the headers of a repo once for all visitors who ask about it."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from threading import Lock

from sharding import job
from sharding.core.limits import CACHED_SECONDS, CACHED_TENSORS, MAX_PAGE_TENSORS
from sharding.core.values import Checkpoint
from sharding.desk.patience import answered, result_of

PAGE_WEIGHT_BYTES = 10_000_000
"""Bytes of such weights that a page reads for anybody at once."""

CACHED_CHECKPOINTS = 64
"""Most checkpoints in the memory of the page."""


_Key = tuple[str, str, str, str, str]


@dataclass(frozen=True, slots=True)
class _Entry:
    reading: Future[Checkpoint]
    seconds: float

    @property
    def tensors(self) -> int:
        return self.reading.result().input_tensors if self.is_good else 0

    @property
    def is_good(self) -> bool:
        return self.reading.done() and self.reading.exception() is None


class Headers:
    """A cache of checkpoints. One that was read with a token is only for callers with the same token."""

    def __init__(self, endpoint: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Read from the Hub at `endpoint`."""
        self._endpoint = endpoint
        self._clock = clock
        self._lock = Lock()
        self._entries: dict[_Key, _Entry] = {}

    def read(
        self,
        source: str,
        token: str | None,
        variant: str = "",
        base: str = "",
        adapter: str = "",
        most_bytes: int = PAGE_WEIGHT_BYTES,
    ) -> Checkpoint:
        """Return the checkpoint in `source` with its `base` and `adapter`, as the owner of `token` may see them.

        All three are links to repos. It reads at most `most_bytes` of weights.

        A failure is not cached. Raises SourceError and WeightsNeeded as `job.inspect` does, and Later while another
        visitor reads it.
        """
        key = source, variant, base, adapter, fingerprint(token)
        if answer := answered(key):
            return answer.result()  # type: ignore[no-any-return]
        with self._lock:
            self._drop()
            entry = self._of_anybody(*key[:-1]) or self._entries.get(key)
            if entry is None:
                mine: Future[Checkpoint] = Future()
                self._entries[key] = _Entry(mine, self._clock())
        if entry:
            return result_of(key, entry.reading)
        try:
            read = partial(job.inspect, variant=variant, base=base, adapter=adapter)
            limited = partial(read, most_tensors=MAX_PAGE_TENSORS, most_bytes=most_bytes)
            mine.set_result(limited(source, endpoint=self._endpoint, token=token))
        except BaseException as error:
            mine.set_exception(error)
            with self._lock:
                self._entries.pop(key, None)
        return mine.result()

    def _of_anybody(self, source: str, variant: str, base: str, adapter: str) -> _Entry | None:
        # What was read without a login is public.
        entry = self._entries.get((source, variant, base, adapter, ""))
        return entry if entry and entry.is_good else None

    def forget(self) -> None:
        """Drop entries that are too old."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        """Drop entries that are too old, and the oldest ones if they hold too much."""
        now = self._clock()
        kept = 0
        for number, (key, entry) in enumerate(reversed(list(self._entries.items()))):
            kept += entry.tensors
            old = now - entry.seconds > CACHED_SECONDS or number >= CACHED_CHECKPOINTS or kept > CACHED_TENSORS
            if old and entry.reading.done():
                del self._entries[key]


def fingerprint(token: str | None) -> str:
    """Return a hash that identifies the login of `token` without revealing it, or "" for no token."""
    return sha256(token.encode()).hexdigest() if token else ""
