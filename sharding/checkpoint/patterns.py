"""Match regular expressions that a stranger wrote, as PEFT does, in a child process with limits: see `matcher`."""

import json
import selectors
import subprocess
import time
from collections.abc import Iterable
from typing import Any, Self

from sharding.core.environment import child_command, child_environment
from sharding.core.errors import SourceError
from sharding.core.limits import MAX_MATCHES

PATTERNS_SECONDS = 5.0
"""Longest time to match all regular expressions of an adapter. Usual ones take less than a second for 100,000 names."""

MATCHER_BYTES = 256 << 20
"""Address space of the process that matches them. It takes 10 MB, and 20 MB for 100,000 names."""
_HINT = "List the names of the modules instead."


class Patterns:
    """The regular expressions of one adapter. They share limits of time and memory, and a process."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._numbers = dict[str, int]()
        self._told = 0
        self._known: dict[str, tuple[int, dict[int, str | None]]] = {}
        self._left_seconds, self._left_matches = PATTERNS_SECONDS, MAX_MATCHES
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if child := self._child:
            child.kill()
            child.communicate()

    def expect(self, texts: Iterable[str]) -> None:
        """Note `texts` that expressions will be matched with. One question then serves all of them."""
        for text in texts:
            self._numbers.setdefault(text, len(self._numbers))

    def check(self, key: str, pattern: str) -> None:
        """Raise SourceError if `pattern`, which stands under `key`, is no regular expression."""
        if "error" in (answer := self._ask(pattern, len(self._numbers))):
            problem = f"is not a regular expression: {answer['error']}"
            message = f"{key} in {self._file} has {pattern[:200]!r}, which {problem}."
            raise SourceError(message, "Correct it, or save the adapter again with PEFT.")

    def match(self, pattern: str, text: str) -> tuple[str | None] | None:
        """Return the group "idx" (or None) if `pattern` matches the whole `text`, else None. Raises SourceError."""
        self._left_matches -= 1
        if self._left_matches < 0:
            most = f"matching all modules takes more than {MAX_MATCHES:,} matches"
            raise SourceError(f"{self._file} has too many patterns: {most}.", _HINT)
        number = self._numbers.setdefault(text, len(self._numbers))
        seen, found = self._known.setdefault(pattern, (0, {}))
        if number >= seen:
            answer = self._ask(pattern, seen)
            found.update(answer.get("found", ()))
            self._known[pattern] = len(self._numbers), found
        return (found[number],) if number in found else None

    def _ask(self, pattern: str, first: int) -> dict[str, Any]:
        """Match all texts from number `first` on. Raises SourceError if that takes too long or too much memory."""
        started = time.monotonic()
        if self._child is None:
            limits = str(MATCHER_BYTES), str(int(PATTERNS_SECONDS) + 2)
            command, pipe = child_command("sharding.checkpoint.matcher", *limits), subprocess.PIPE
            environment = child_environment()
            self._child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=environment)
        child = self._child
        assert child.stdin and child.stdout
        more = list(self._numbers)[self._told :] if self._told < len(self._numbers) else []
        self._told = len(self._numbers)
        line, complete = json.dumps({"more": more, "pattern": pattern, "first": first}).encode() + b"\n", b""
        try:
            child.stdin.write(line)
            child.stdin.flush()
            with selectors.DefaultSelector() as selector:
                selector.register(child.stdout, selectors.EVENT_READ)
                while not complete.endswith(b"\n"):
                    is_there = selector.select(max(0.0, self._left_seconds - (time.monotonic() - started)))
                    part = child.stdout.read1(1 << 20) if is_there else b""  # type: ignore[attr-defined]
                    if not part:
                        raise self._too_slow(pattern)
                    complete += part
        except OSError as error:
            raise self._too_slow(pattern) from error
        self._left_seconds -= time.monotonic() - started
        answer: dict[str, Any] = json.loads(complete)
        return answer

    def _too_slow(self, pattern: str) -> SourceError:
        self.__exit__()
        message = f"The patterns of {self._file} take over {PATTERNS_SECONDS:g} s to match, or too much memory: "
        return SourceError(f"{message}{pattern[:200]!r}.", _HINT)
