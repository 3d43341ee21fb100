"""Sources in memory, for tests."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from sharding.core.origin import Place
from sharding.core.protocols import LentFile, LentSource
from sharding.core.values import FileEntry
from tests.fuzz.targets import Memory

HASHES = {"sha256": "a" * 64, "xet_hash": "b" * 64, "git_sha1": "c" * 40}


class Counted(Memory):
    """A source in memory, every property of which is set, and which counts what is read."""

    def __init__(self, name: str, *files: str, is_private: bool | None = None) -> None:
        super().__init__(b"", {file: f"{name}: {file}".encode() for file in files})
        self.ref = Place("hub", name, "9" * 40)
        self.folder = Path("/", name)
        self.is_private = is_private
        self.unreached = (f"{name}@9",)
        self.links_out = (f"{name}.json",)
        self.batch_bytes, self.join_gap_bytes, self.ranges_at_once = 77, 7, 17
        self.files = tuple(FileEntry(file, len(data), **HASHES) for file, data in self._files.items())
        self.was_closed = ""

    def read(self, file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        self.requests += 1
        self.bytes_read += end_byte - start_byte
        yield from super().read(file, start_byte, end_byte)

    def path(self, file: str) -> Path | None:
        return Path("/", self.ref.repo_id, file)

    def closed(self) -> str:
        return self.was_closed

    def lend(self, files: Iterable[str]) -> LentSource:
        return LentSource(self.ref, tuple(LentFile(file, 1, place=f"at {file}") for file in files), hub="a hub")
