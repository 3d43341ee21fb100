"""Workers that say what a test has them say, one thing at a time."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sharding.core.errors import Remedy
from sharding.core.events import AtWork
from sharding.core.values import ShardRecord
from sharding.fleet.crew import Crew
from sharding.fleet.parts import Part, PartDone, PartEvent, PartFailed, parse_part
from sharding.report.schema import Resources
from sharding.storage.folder_source import open_folder
from tests.folders import result_of

FILES = {f"file{number}": 100 * (number + 1) for number in range(5)}
NOTHING = Resources(0, 0.0, 0, 0, 0, 0, 0)
Answer = Callable[[Part, int], list[PartEvent | None]]


def done(part: Part, node: str = "here", **spent: Any) -> PartDone:
    record = ShardRecord(part.shard.file, part.shard.bytes, f"hash of {part.shard.file}", {})
    return PartDone(node, record, replace(NOTHING, **spent))


def working(part: Part, bytes_done: int = 1) -> AtWork:
    return AtWork("here", 1, part.shard.file, bytes_done, 1.0, 7)


def failed(kind: str = "GrantExpired", *, again: bool, hint: str = "", remedy: Remedy | None = None) -> PartFailed:
    return PartFailed("here", kind, "It has ended.", hint, again, remedy)


class Told:
    """Workers that say of each attempt at a part what `answer` says, one thing at a time. See `RayWorkers`."""

    name = "told 1"

    def __init__(self, answer: Answer, counts: Iterator[int] | None = None) -> None:
        self.answer = answer
        self.counts = counts
        self.count_now = 2
        self.begun: Counter[str] = Counter()
        self.at_once: list[int] = []
        self.stopped: list[str] = []
        self.waited = 0.0
        self._left: dict[str, list[PartEvent | None]] = {}

    @property
    def count(self) -> int:
        self.count_now = next(self.counts, self.count_now) if self.counts else self.count_now
        return self.count_now

    def start(self, part: str) -> str:
        parsed = parse_part(part)
        self.begun[parsed.shard.file] += 1
        known = f"{parsed.shard.file} {self.begun[parsed.shard.file]}"
        self._left[known] = self.answer(parsed, self.begun[parsed.shard.file])
        return known

    def stop(self, part: str) -> None:
        self.stopped.append(part)

    def wait(self, parts: list[str], seconds: float) -> Iterator[tuple[str, PartEvent | None]]:
        self.at_once.append(len(parts))
        self.waited += seconds
        for part in parts:
            yield part, self._left[part].pop(0)


@pytest.fixture
def source(tmp_path: Path) -> Any:
    for name, size in FILES.items():
        (tmp_path / name).write_bytes(bytes(size))
    return open_folder(str(tmp_path))


def read(workers: Any, source: Any) -> dict[str, str]:
    return sha256_of(Crew(workers).digest_files([source], source.files))


def sha256_of(work: Any) -> dict[str, str]:
    """Return what `digest_files` gives, the SHA-256 of each file."""
    return {file: whole.sha256 for file, whole in result_of(work).items()}


HASHES = {file: f"hash of {file}" for file in FILES}
