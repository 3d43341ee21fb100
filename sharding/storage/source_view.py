"""See a source through another: what every view of one passes on."""

from collections.abc import Iterable
from pathlib import Path

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
