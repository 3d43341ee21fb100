"""Write files safely: a function that writes one returns once its bytes are on the disk."""

import errno
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from urllib.parse import quote

from typing_extensions import override

from sharding.core.errors import DestinationError
from sharding.core.protocols import ShardWriter
from sharding.core.text import format_bytes
from sharding.formats.names import STAGING_FOLDER

FLUSH_BYTES = 32 << 20
"""Unwritten bytes that start a write-back to the disk, so that the sync at the end of a shard is short."""


_LONGEST_NAME = 150
"""Characters of a part's name. File systems take 255 bytes, and attempts and records add a suffix."""

PART = ".part"
"""The suffix of every file that is not published yet."""
RECORD = f".record{PART}"
"""The suffix of a record."""


def staging_in(folder: Path) -> Path:
    """Return the folder for everything that is not published yet. No path of a source leads there."""
    return folder / STAGING_FOLDER


def part_path(folder: Path, file: str) -> Path:
    """Return where a shard lies until it is published."""
    name = quote(file, safe="")
    if len(name) > _LONGEST_NAME:
        name = f"{hashlib.sha256(file.encode()).hexdigest()}.safetensors"
    return staging_in(folder) / (name + PART)


def record_path(folder: Path, file: str, plan_id: str) -> Path:
    """Return where the record of a finished shard lies."""
    return part_path(folder, file).with_suffix(f".{plan_id[:16]}{RECORD}")


class FolderShardWriter(ShardWriter):
    """One `.part` file."""

    def __init__(self, stream: FileIO, flusher: ThreadPoolExecutor) -> None:
        """Write to `stream`; start write-back in `flusher`."""
        self._stream = stream
        self._sha256 = hashlib.sha256()
        self._folder = Path(stream.name).parent
        self._flusher = flusher
        self._dirty_bytes = 0
        self._flush: Future[None] | None = None

    @override
    def write(self, data: bytes | memoryview) -> None:
        """Append bytes. Starts write-back now and then, so that `finish` has little left to wait for."""
        self._sha256.update(data)
        view = memoryview(data)
        with explained(self._folder):
            while view:
                view = view[self._stream.write(view) :]
        self._dirty_bytes += len(data)
        if self._dirty_bytes >= FLUSH_BYTES and (self._flush is None or self._flush.done()):
            self._dirty_bytes = 0
            self._flush = self._flusher.submit(os.fsync, self._stream.fileno())

    @override
    def finish(self) -> str:
        with explained(self._folder):
            if self._flush:
                self._flush.result()
            os.fsync(self._stream.fileno())
            self._stream.close()
        return self._sha256.hexdigest()

    @override
    def abort(self) -> None:
        """Do nothing: a disk keeps nobody waiting, and `FolderSink.close` removes the part."""


def write_whole(place: Path, chunks: Iterable[bytes], part: Path) -> int:
    """Write a file under the name `part`, rename it to `place` once it is on the disk, and return its bytes."""
    written = write_synced(part, chunks)
    os.replace(part, place)
    return written


def write_synced(place: Path, chunks: Iterable[bytes]) -> int:
    """Write a file to the disk for good; return how many bytes it has."""
    written = 0
    with open(place, "wb") as stream:
        for chunk in chunks:
            written += stream.write(chunk)
        stream.flush()
        os.fsync(stream.fileno())
    return written


def sync_folders(folders: Iterable[Path]) -> None:
    """Write the file names in `folders` to the disk for good."""
    for folder in sorted(folders):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn an OSError about a folder into a DestinationError with a hint."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = format_bytes(shutil.disk_usage(folder if folder.exists() else folder.parent).free)
            message, hint = (
                f"The disk of {folder} is full ({free} free).",
                "Free some space, then start the same job again.",
            )
        else:
            message = f"{folder} cannot be written: {error.strerror or error}."
            hint = "Check that you may write to this folder, or choose another."
        raise DestinationError(message, hint) from error
