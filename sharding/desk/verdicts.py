"""Keep what jobs have found out about copies, for longer than the jobs themselves."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from sharding.core.environment import outlives_restart
from sharding.core.made import Made
from sharding.core.origin import Place
from sharding.core.verification import Outcome
from sharding.desk.job_store import for_us_alone

MOST_VERDICTS = 20_000  # At about 1 kB each, the file takes 20 MB.


@dataclass(frozen=True, slots=True)
class Reading:
    """All that decides which numbers a job held a copy to. `asked` has the variant that was read, asked for or not."""

    inputs: tuple[Place, ...]
    asked: Mapping[str, str | bool]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a job found out about `copy`, a commit of the Hub at `hub`, that it held to `read`. `ended` is in seconds
    since 1970. `error` says what is wrong or undecided. `unstated` and `unreached` are as in `Verification`."""

    hub: str
    copy: str
    read: Reading
    kind: Literal["shard", "verify"]
    outcome: Outcome
    ended: float
    version: str
    error: str = ""
    made: Made = ()
    unstated: bool = False
    unreached: tuple[str, ...] = ()


_ROW = TypeAdapter(Verdict)


class Verdicts:
    """The verdicts about copies on one Hub, a line each in a file. `until` says when they are forgotten, or is ""."""

    def __init__(self, folder: Path, hub: str) -> None:
        """Keep them in `folder`, which only one desk uses and no other user can write to."""
        self.until = "" if outlives_restart(folder) else "until this Space restarts"
        self._hub, self._file = hub, folder / "verdicts.jsonl"

    def add(self, verdict: Verdict) -> None:
        """Keep `verdict` or an earlier one that counts more. The oldest above `MOST_VERDICTS` are forgotten."""
        known = self.of(verdict.copy, verdict.read)
        lines, row = self._lines(), _ROW.dump_json(min(known or verdict, verdict, key=_weight))
        is_torn = bool(lines and lines[-1])  # The machine may have stopped in the middle of a line.
        lines = [line for line in lines if line]
        if len(lines) < MOST_VERDICTS:
            with open(self._file, "ab", opener=for_us_alone) as stream:
                stream.write(b"\n" * is_torn + row + b"\n")
            return
        part = self._file.with_suffix(".part")
        with open(part, "wb", opener=for_us_alone) as stream:
            stream.writelines(line + b"\n" for line in [*lines[1 - MOST_VERDICTS :], row])
        os.replace(part, self._file)

    def of(self, copy: str, read: Reading) -> Verdict | None:
        """Return the verdict that counts for `copy`, of a job that read exactly `read`. None if there is none."""
        name = to_json(copy)
        rows = (row for line in self._lines() if name in line and (row := _parse(line)))
        ours = (row for row in rows if (row.hub, row.copy, row.read) == (self._hub, copy, read))
        return min(ours, key=_weight, default=None)

    def _lines(self) -> list[bytes]:
        try:
            return self._file.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []


def _parse(line: bytes) -> Verdict | None:
    try:
        # A row of a later version may mean something that this one does not know, so it is not read in part.
        return _ROW.validate_json(line, strict=True, extra="forbid")
    except ValidationError:
        return None


def _weight(verdict: Verdict) -> tuple[int, bool]:
    """Return the rank of a verdict. The lowest counts, whatever its date: a difference, then what nobody can tell.
    Reading every byte counts more than a sample. Of two agreements, the one with commits on a branch counts."""
    return {"different": 0, "undecided": 1, "stated": 3}.get(verdict.outcome.kind, 2), bool(verdict.unreached)
