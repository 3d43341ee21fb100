"""Find which of many names or expressions fits the end of a module's name, in time that grows with both. Pure."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

Match = Callable[[str, str], Any]
"""Returns what matches a regular expression with a whole text, or None. `checkpoint.patterns` has one."""

_PLAIN = re.compile(r"[\w-]+(?:\.[\w-]+)*", re.ASCII)


def is_plain(pattern: str) -> bool:
    """Return whether a regular expression is a plain name. Its dots then match any character."""
    return _PLAIN.fullmatch(pattern) is not None


def endings(name: str) -> Iterator[str]:
    """Yield a name, and what follows each of its dots, from the shortest on.

    >>> list(endings("h.0.attn"))
    ['attn', '0.attn', 'h.0.attn']
    """
    place = len(name)
    while (place := name.rfind(".", 0, place)) >= 0:
        yield name[place + 1 :]
    yield name


class Endings:
    """Regular expressions for the end of a module's name, after a dot. PEFT takes the first that matches."""

    def __init__(self, patterns: Iterable[str]) -> None:
        """Take `patterns`. An earlier one counts before a later one."""
        self._patterns = list(patterns)
        self._plain: dict[str, int] = {}
        self._other: list[int] = []
        self._dotted: dict[int, list[int]] = {}
        for number, pattern in enumerate(self._patterns):
            if not is_plain(pattern):
                self._other.append(number)
                continue
            self._plain.setdefault(pattern, number)
            if "." in pattern:
                self._dotted.setdefault(len(pattern), []).append(number)
        self._most_dots = {
            size: max(self._patterns[number].count(".") for number in numbers) for size, numbers in self._dotted.items()
        }

    def first(self, module: str, match: Match) -> str | None:
        """Return the first pattern that matches the end of `module`, None if none does."""
        found, odd = [], list[int]()
        for ending in endings(module):
            if ending in self._plain:
                found.append(self._plain[ending])
            # A dot also matches another character. Only a name with more dots can do that.
            if ending.count(".") < self._most_dots.get(len(ending), 0):
                odd += self._dotted[len(ending)]
        best = min(found, default=len(self._patterns))
        for number in sorted({*self._other, *odd}):
            if number >= best:
                break
            if match(rf"(.*\.)?({self._patterns[number]})", module):
                return self._patterns[number]
        return self._patterns[best] if found else None


class Names:
    """Names of modules, without regular expressions."""

    def __init__(self, names: Iterable[str]) -> None:
        """Take `names`."""
        self._names = {name: number for number, name in reversed(list(enumerate(names)))}

    def __contains__(self, name: object) -> bool:
        """Return whether it is one of them, as a whole."""
        return name in self._names

    def first_ending(self, name: str) -> str | None:
        """Return the first of them that is `name`, or that follows one of its dots, None if none is."""
        found = (ending for ending in endings(name) if ending in self._names)
        return min(found, key=self._names.__getitem__, default=None)
