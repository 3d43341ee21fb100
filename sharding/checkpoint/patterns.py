"""Match regular expressions that a stranger wrote. Some take years for a short text."""

import time
from typing import Any

from sharding.core.errors import SourceError
from sharding.core.limits import PATTERNS_SECONDS


class Patterns:
    """The regular expressions of one adapter. All its matches together may take `PATTERNS_SECONDS`."""

    def __init__(self, file: str) -> None:
        """Match expressions from `file`, which errors name."""
        self._file = file
        self._left_seconds = PATTERNS_SECONDS

    def check(self, key: str, pattern: str) -> None:
        """Raise SourceError if `pattern`, which stands under `key`, is no regular expression."""
        import regex

        try:
            regex.compile(pattern)
        except regex.error as error:
            message = f"{key} in {self._file} has {pattern[:200]!r}, which is not a regular expression: {error}."
            raise SourceError(message, "Correct it, or save the adapter again with PEFT.") from error

    def match(self, pattern: str, text: str) -> Any:
        """Return the match of `pattern` with the whole `text`, or None. Raises SourceError if that takes too long."""
        import regex

        started = time.monotonic()
        try:
            return regex.fullmatch(pattern, text, timeout=max(self._left_seconds, 0.001), concurrent=True)
        except TimeoutError as error:
            message = f"The patterns of {self._file} take over {PATTERNS_SECONDS:g} s to match: {pattern[:200]!r}."
            raise SourceError(message, "List the names of the modules instead.") from error
        finally:
            self._left_seconds -= time.monotonic() - started
