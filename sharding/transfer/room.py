"""Limit how many bytes a job has fetched but not yet written."""

from threading import Lock


class Room:
    """A number of bytes that all threads of a job share."""

    def __init__(self, most_bytes: int) -> None:
        """Start with all `most_bytes` free."""
        self._free = most_bytes
        self._lock = Lock()

    def take(self, count: int, *, is_due: bool) -> bool:
        """Take `count` bytes if they are free; return whether they are taken. With `is_due`, take them in any case.

        So no thread waits for another one: each may have one batch beyond the limit.
        """
        with self._lock:
            if count > self._free and not is_due:
                return False
            self._free -= count
            return True

    def give_back(self, count: int) -> None:
        """Free `count` bytes again."""
        with self._lock:
            self._free += count
