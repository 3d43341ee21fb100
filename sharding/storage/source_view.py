"""See a source through another: what every view of one passes on."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from typing_extensions import override

from sharding.core.lent import LentSource
from sharding.core.protocols import Source


class SourceView(Source):
    """A source that reads from another one; what it shows of it, `read` of the class below says."""

    def __init__(self, source: Source) -> None:
        """Look at `source`."""
        self.ref = source.ref
        self.folder = source.folder
        self.is_private = source.is_private
        self.unreached = source.unreached
        self.links_out = source.links_out
        self.batch_bytes = source.batch_bytes
        self.join_gap_bytes = source.join_gap_bytes
        self.ranges_at_once = source.ranges_at_once
        self.files = source.files
        self._source = source

    @property
    @override
    def requests(self) -> int:
        """Requests made of the source below."""
        return self._source.requests

    @property
    @override
    def bytes_read(self) -> int:
        """Bytes read of the source below."""
        return self._source.bytes_read

    @override
    def path(self, file: str) -> Path | None:
        """Return where `file` lies on this disk, if it does."""
        return self._source.path(file)

    @override
    def closed(self) -> str:
        """Return the repo below that was public and is not known to be so now, "" if there is none."""
        return self._source.closed()

    @override
    def lend(self, files: Iterable[str]) -> LentSource:
        """Return what another machine needs to read `files` of the source below."""
        return self._source.lend(files)


class Place(Protocol):
    """Bytes `[start_byte, end_byte)` of a file."""

    @property
    def file(self) -> str:
        """Path of the file."""
        ...

    @property
    def start_byte(self) -> int:
        """The first byte."""
        ...

    @property
    def end_byte(self) -> int:
        """The byte after the last."""
        ...


_Part = TypeVar("_Part", bound=Place)


class LongerSource(SourceView, ABC, Generic[_Part]):
    """A source whose files go on beyond their end with tensors that are made as they are read."""

    def __init__(self, source: Source, parts: Sequence[_Part]) -> None:
        """Have each of `parts` where it says."""
        super().__init__(source)
        self._parts: dict[str, list[_Part]] = {}
        for part in sorted(parts, key=lambda part: part.start_byte):
            self._parts.setdefault(part.file, []).append(part)

    def read(self, file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        """Yield the bytes `[start_byte, end_byte)` of `file` in bounded chunks. Raises SourceError."""
        parts = self._parts.get(file, [])
        first = parts[0].start_byte if parts else end_byte
        if start_byte < first:
            yield from self._source.read(file, start_byte, min(first, end_byte))
        if end_byte > first:
            yield from self._part_bytes(parts, max(first, start_byte), end_byte)

    @abstractmethod
    def _part_bytes(self, parts: list[_Part], start_byte: int, end_byte: int) -> Iterator[bytes]:
        """Yield bytes of `parts`, those of one file in their order."""
