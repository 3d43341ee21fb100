"""Record the hash of every read of a source, to compare it later with the source's files."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Lock

from blake3 import blake3
from typing_extensions import override

from sharding.core.protocols import LentSource, Source
from sharding.core.values import BytesRead


class NotingSource(Source):
    """A source that remembers the BLAKE3 of every read, and counts only its own reads, not those that prove them."""

    requests = bytes_read = 0

    def __init__(self, source: Source, number: int = 0) -> None:
        self.ref, self.folder, self.files = source.ref, source.folder, source.files
        self.is_private, self.unreached, self.links_out = source.is_private, source.unreached, source.links_out
        self.batch_bytes, self.join_gap_bytes = source.batch_bytes, source.join_gap_bytes
        self.ranges_at_once = source.ranges_at_once
        self._source, self._number = source, number
        self._reads: list[BytesRead] = []
        self._lock = Lock()

    @override
    def read(self, file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        digest, position = blake3(), start_byte

        def note() -> None:
            with self._lock:
                self._reads.append(BytesRead(file, start_byte, position, digest.hexdigest(), self._number))
                self.requests += 1
                self.bytes_read += position - start_byte

        try:
            for chunk in self._source.read(file, start_byte, end_byte):
                digest.update(chunk)
                position += len(chunk)
                if position == end_byte:  # now, because a reader that has everything may not ask again
                    note()
                yield chunk
        finally:
            if start_byte < position < end_byte:
                note()

    @override
    def path(self, file: str) -> Path | None:
        return self._source.path(file)

    @override
    def closed(self) -> str:
        return self._source.closed()

    @override
    def lend(self, files: Iterable[str]) -> LentSource:
        return self._source.lend(files)

    def take(self) -> tuple[BytesRead, ...]:
        """Return the reads since the last call, each once."""
        with self._lock:
            reads, self._reads = self._reads, []
        return tuple(dict.fromkeys(reads))
