"""Match regular expressions that a stranger wrote. Some take years for a short text."""

import re
import time
from typing import Any

from sharding.core.errors import SourceError
from sharding.core.limits import PATTERNS_SECONDS

_OTHER_SYNTAX = re.compile(
    r"\[\[:|\{[^{}]*[^\d,{}][^{}]*\}|\\[pPXRKGmMLhN]|\(\?(?!P[<=])[aiLmsux-]*[^aiLmsux\-:)=!<#(]|\(\?<(?![=!])"
)
"""What `regex` reads in another way than `re`, which PEFT uses: fuzzy matches, classes of POSIX, and more."""


class Patterns:
    """The regular expressions of one adapter. All its matches together may take `PATTERNS_SECONDS`."""

    def __init__(self, file: str) -> None:
        """Match expressions from `file`, which errors name."""
        self._file = file
        self._left_seconds = PATTERNS_SECONDS

    def check(self, key: str, pattern: str) -> None:
        """Raise SourceError if `pattern`, which stands under `key`, is no regular expression of Python's own `re`."""
        import regex

        started = time.monotonic()
        try:
            regex.compile(pattern)
        except regex.error as error:
            message = f"{key} in {self._file} has {pattern[:200]!r}, which is not a regular expression: {error}."
            raise SourceError(message, "Correct it, or save the adapter again with PEFT.") from error
        if _OTHER_SYNTAX.search(pattern):
            message = f"{key} in {self._file} has {pattern[:200]!r}, which PEFT may read in another way."
            raise SourceError(message, "List the names of the modules instead.")
        self._count(started, pattern)

    def match(self, pattern: str, text: str) -> Any:
        """Return the match of `pattern` with the whole `text`, or None. Raises SourceError if that takes too long."""
        import regex

        started = time.monotonic()
        try:
            found = regex.fullmatch(pattern, text, timeout=max(self._left_seconds, 0.001), concurrent=True)
        except TimeoutError as error:
            raise self._too_slow(pattern) from error
        self._count(started, pattern)
        return found

    def _count(self, started: float, pattern: str) -> None:
        self._left_seconds -= time.monotonic() - started
        if self._left_seconds < 0:
            raise self._too_slow(pattern)

    def _too_slow(self, pattern: str) -> SourceError:
        message = f"The patterns of {self._file} take over {PATTERNS_SECONDS:g} s to match: {pattern[:200]!r}."
        return SourceError(message, "List the names of the modules instead.")
