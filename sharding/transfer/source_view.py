"""See a source through another: what every view of one passes on."""

from pathlib import Path

from sharding.core.protocols import Source


class SourceView:
    """A source that reads from another one; what it shows of it, `read` of the class below says."""

    def __init__(self, source: Source) -> None:
        """Look at `source`."""
        self.ref = source.ref
        self.folder = source.folder
        self.is_private = source.is_private
        self.batch_bytes = source.batch_bytes
        self.join_gap_bytes = source.join_gap_bytes
        self.ranges_at_once = source.ranges_at_once
        self.files = source.files
        self._source = source

    @property
    def requests(self) -> int:
        """Requests made of the source below."""
        return self._source.requests

    @property
    def bytes_read(self) -> int:
        """Bytes read of the source below."""
        return self._source.bytes_read

    def path(self, file: str) -> Path | None:
        """Return where `file` lies on this disk, if it does."""
        return self._source.path(file)
