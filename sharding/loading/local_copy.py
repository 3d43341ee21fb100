"""Put a checkpoint into a folder from which a library can load it, with links to local files and downloads of the
others.
"""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from sharding.core.errors import SourceError
from sharding.core.limits import DISK_FLOOR_BYTES
from sharding.core.protocols import Files
from sharding.core.text import format_bytes
from sharding.core.values import FileEntry


def download_bytes(source: Files, files: Iterable[FileEntry]) -> int:
    """Return how many bytes `lay_out` downloads."""
    return sum(file.bytes for file in files if source.path(file.path) is None)


def refuse_without_room(folder: Path, needed_bytes: int) -> None:
    """Raise SourceError if the disk of `folder` has no room for `needed_bytes`."""
    free_bytes = shutil.disk_usage(folder).free - DISK_FLOOR_BYTES
    if needed_bytes > free_bytes:
        raise SourceError(
            f"The download needs {format_bytes(needed_bytes)}, but the disk has only {format_bytes(free_bytes)} free.",
            "Free some disk space, or compare folders on this machine.",
        )


def lay_out(
    source: Files, files: Iterable[FileEntry], folder: Path, written: Mapping[str, bytes] | None = None
) -> Path:
    """Fill the new `folder` with `files` of `source` and with `written` (name to content), and return it.

    Raises SourceError if a file cannot be read, or does not match the hash that the Hub states.
    """
    folder.mkdir()
    for file in files:
        if path := source.path(file.path):
            (folder / file.path).symlink_to(path)
        else:
            with open(folder / file.path, "wb") as out:
                out.writelines(source.read(file.path, 0, file.bytes))
    for name, data in (written or {}).items():
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_bytes(data)
    return folder
