"""Bound what a job has fetched and not yet written, all that is read ahead together."""

from threading import Lock


class Room:
    """So many bytes for all threads of a job."""

    def __init__(self, most_bytes: int) -> None:
        """Begin with all of it free."""
        self._free = most_bytes
        self._lock = Lock()

    def take(self, count: int, *, is_due: bool) -> bool:
        """Take `count` bytes, and return whether they were free. What `is_due` now is taken in any case.

        So no thread waits for another one: each may have one batch beyond the bound.
        """
        with self._lock:
            if count > self._free and not is_due:
                return False
            self._free -= count
            return True

    def give_back(self, count: int) -> None:
        """Have `count` bytes free again."""
        with self._lock:
            self._free += count
