"""Plan in this process, reading the headers of a repo once for all who ask about it at the same time."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from hashlib import sha256
from threading import Lock

from sharding import job
from sharding.core.hints import Hints
from sharding.core.limits import CACHED_CHECKPOINTS, CACHED_HINTS, CACHED_SECONDS, CACHED_TENSORS
from sharding.core.options import Options
from sharding.core.values import Checkpoint, RepoRef

_Key = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class _Entry:
    reading: Future[Checkpoint]
    seconds: float

    @property
    def tensors(self) -> int:
        return len(self.reading.result().tensors) if self.is_good else 0

    @property
    def is_good(self) -> bool:
        return self.reading.done() and self.reading.exception() is None


class Headers:
    """Checkpoints read a short while ago, each for those only who showed the token that it was read with."""

    def __init__(self, endpoint: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Read from the Hub at `endpoint`."""
        self._endpoint = endpoint
        self._clock = clock
        self._lock = Lock()
        self._entries: dict[_Key, _Entry] = {}
        self._asking = Lock()
        self._hints: dict[tuple[RepoRef, RepoRef | None, tuple[str, ...], str, int, bool], Hints] = {}

    def read(self, source: str, token: str | None, variant: str = "", base: str = "") -> Checkpoint:
        """Return what the headers of `source` and `base`, links to repos, say to the bearer of `token`.

        Raises SourceError as `job.inspect` does; a failure is not remembered.
        """
        key = source, variant, base, sha256(token.encode()).hexdigest() if token else ""
        with self._lock:
            self._forget()
            found = self._of_anybody(source, variant, base) or self._entries.get(key)
            if found is None:
                mine: Future[Checkpoint] = Future()
                self._entries[key] = _Entry(mine, self._clock())
        if found:
            return found.reading.result()
        try:
            mine.set_result(job.inspect(source, variant=variant, base=base, endpoint=self._endpoint, token=token))
        except BaseException as error:
            mine.set_exception(error)
            with self._lock:
                self._entries.pop(key, None)
        return mine.result()

    def hints(self, checkpoint: Checkpoint, options: Options) -> Hints:
        """Return what `job.hints_for` does, asked once for weights, a dtype and ranks; one question at a time."""
        if not options.asks_class:
            return {}
        variants = tuple(component.variant for component in checkpoint.components)
        key = checkpoint.source, checkpoint.base, variants, options.dtype, options.ranks, options.dequantize
        with self._asking:  # a process each, which takes 300 MB for some seconds
            if key not in self._hints:
                while len(self._hints) >= CACHED_HINTS:
                    del self._hints[next(iter(self._hints))]
                self._hints[key] = job.hints_for(checkpoint, options)
            return self._hints[key]

    def _of_anybody(self, source: str, variant: str, base: str) -> _Entry | None:
        # What was read without a login is no secret.
        entry = self._entries.get((source, variant, base, ""))
        return entry if entry and entry.is_good else None

    def _forget(self) -> None:
        """Drop what is too old, and the oldest where it is too much."""
        now = self._clock()
        kept = 0
        for number, (key, entry) in enumerate(reversed(list(self._entries.items()))):
            kept += entry.tensors
            old = now - entry.seconds > CACHED_SECONDS or number >= CACHED_CHECKPOINTS or kept > CACHED_TENSORS
            if old and entry.reading.done():
                del self._entries[key]
