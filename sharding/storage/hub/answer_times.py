"""Remember how long a Hub took to answer, from the requests that this process has made anyway."""

from collections import deque
from statistics import median_low
from threading import Lock

from sharding.core.limits import ANSWERS_REMEMBERED


class AnswerTimes:
    """The newest times to the first byte of an answer, of each Hub. Any thread may use it."""

    def __init__(self) -> None:
        """Start without any."""
        self._lock = Lock()
        self._seconds: dict[str, deque[float]] = {}

    def note(self, endpoint: str, seconds: float) -> None:
        """Add the time of one answer of the Hub at `endpoint`."""
        with self._lock:
            self._seconds.setdefault(endpoint, deque(maxlen=ANSWERS_REMEMBERED)).append(seconds)

    def median(self, endpoint: str) -> float | None:
        """Return the median time in seconds of the Hub at `endpoint`, or None if it has not answered yet.

        Of two it is the shorter: the first answer often waits for a new connection.
        """
        with self._lock:
            seconds = self._seconds.get(endpoint.rstrip("/"))
            return median_low(seconds) if seconds else None


ANSWER_TIMES = AnswerTimes()
"""The times of this process. It has one for all, because it also has one HTTP client for all (see `guard`)."""
