"""Cache values for all threads, up to a number of bytes. The first to ask makes a value; the others wait for it."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from threading import Lock
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Kept(Generic[_T]):
    """A cache of values by key. It drops the least recently used first."""

    def __init__(self, most_bytes: int) -> None:
        """Keep at most `most_bytes`, or one value that is larger."""
        self._most_bytes = most_bytes
        self._values: OrderedDict[Hashable, tuple[int, Future[_T]]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable, size: int, make: Callable[[], _T]) -> _T:
        """Return the value of `key`. If it is not there, `make` makes it, with `size` bytes. Raises as `make` does."""
        with self._lock:
            entry = self._values.get(key)
            is_first = entry is None
            if entry is None:
                room = self._most_bytes - size
                while self._values and sum(kept for kept, _ in self._values.values()) > room:
                    self._values.popitem(last=False)
                entry = self._values[key] = size, Future()
            self._values.move_to_end(key)
        value = entry[1]
        if is_first:
            try:
                value.set_result(make())
            except BaseException as error:
                with self._lock:
                    if self._values.get(key) is entry:  # the next one who asks tries again
                        del self._values[key]
                value.set_exception(error)
        return value.result()
