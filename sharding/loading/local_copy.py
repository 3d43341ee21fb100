"""Lay a checkpoint out in a folder so that a library can load it: links to what is here, downloads of the rest."""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from sharding.core.errors import SourceError
from sharding.core.limits import DISK_FLOOR_BYTES
from sharding.core.protocols import Files
from sharding.core.text import format_bytes
from sharding.core.values import FileEntry


def download_bytes(source: Files, files: Iterable[FileEntry]) -> int:
    """Return how many bytes `lay_out` would download."""
    return sum(file.bytes for file in files if source.path(file.path) is None)


def refuse_without_room(folder: Path, needed_bytes: int) -> None:
    """Raise SourceError where the disk of `folder` lacks `needed_bytes`."""
    free_bytes = shutil.disk_usage(folder).free - DISK_FLOOR_BYTES
    if needed_bytes > free_bytes:
        raise SourceError(
            f"{format_bytes(needed_bytes)} would have to be downloaded; the disk has {format_bytes(free_bytes)} free.",
            "Free some room, or compare folders that are here already.",
        )


def lay_out(
    source: Files, files: Iterable[FileEntry], folder: Path, written: Mapping[str, bytes] | None = None
) -> Path:
    """Fill the new `folder` with `files` of `source`, and with `written` (name to content); return it.

    Raises SourceError where they cannot be had, or are not those whose hash the Hub states.
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
