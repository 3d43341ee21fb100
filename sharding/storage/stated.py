"""Hold what is read of a file to the SHA-256 that its source states."""

import hashlib
from collections.abc import Iterator

from sharding.core.errors import SourceError
from sharding.core.protocols import Source
from sharding.core.values import FileEntry


def read_as_stated(origin: Source, file: FileEntry) -> Iterator[bytes]:
    """Yield the bytes of a whole file. Raises SourceError after the last where they are not those that are stated."""
    sha256 = hashlib.sha256()
    for chunk in origin.read(file.path, 0, file.bytes):
        sha256.update(chunk)
        yield chunk
    if file.sha256 and sha256.hexdigest() != file.sha256:
        raise SourceError(f"What was read of {file.path} is not what the Hub states.", "Start the same job again.")
