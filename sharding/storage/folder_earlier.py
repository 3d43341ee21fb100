"""Remove an earlier result from a folder: first the files that show it, last the report that names its files."""

import os
from collections.abc import Iterable
from contextlib import suppress
from itertools import groupby
from pathlib import Path, PurePosixPath

from sharding.core.limits import MAX_REPORT_BYTES
from sharding.formats.names import ENTRANCES, REPORT_NAME, is_index, is_plain, is_reserved, is_weights
from sharding.storage.folder_writing import sync_folders
from sharding.storage.records import Earlier, parse_earlier


def report_in(folder: Path) -> Earlier | None:
    """Return the contents of the report in `folder`, None if this tool did not write one there."""
    path = folder / REPORT_NAME
    try:
        return parse_earlier(path.read_bytes()) if path.stat().st_size <= MAX_REPORT_BYTES else None
    except OSError:
        return None


def is_inside(path: str) -> bool:
    """Return whether `path`, which may come from anybody, names a place below its own folder."""
    parts = PurePosixPath(path).parts
    return bool(parts) and is_plain(path) and not {"\\", "\0"} & set(path)


def leads_inside(folder: Path, path: str) -> bool:
    """Return whether `path` lies inside `folder`, follows no link, and is not reserved."""
    # A file that is a link gets replaced itself. A folder that is a link may lead to another folder of the result.
    between = PurePosixPath(path).parents[:-1]
    return is_inside(path) and not is_reserved(path) and not any(map(os.path.islink, map(folder.joinpath, between)))


def is_last(path: str) -> bool:
    """Return whether a file makes a result visible, and so comes last."""
    return path in ENTRANCES or is_index(path)


def by_removal(path: str) -> int:
    """Return the rank of a file in the order of removal: files that show the result first, the report last."""
    kinds = (path in ENTRANCES, is_index(path), is_weights(path), path != REPORT_NAME)
    return next((number for number, is_kind in enumerate(kinds) if is_kind), len(kinds))


def remove(folder: Path, files: Iterable[str]) -> None:
    """Remove files of a result, each kind for good before the next. Files outside `folder` stay."""
    # Indexes first: from here on nobody takes the folder for a complete checkpoint.
    for _, kind in groupby(sorted(sorted(files), key=by_removal), by_removal):
        places = [folder / file for file in kind if leads_inside(folder, file)]
        there = [place for place in places if os.path.isfile(place) or os.path.islink(place)]
        for place in there:
            place.unlink(missing_ok=True)
        sync_folders({place.parent for place in there})
        # Also folders that got no file yet. The report goes later, because it names them.
        emptied = {parent for place in places for parent in place.parents if folder in parent.parents}
        for parent in sorted(emptied, reverse=True):
            with suppress(OSError):  # it is missing, or holds something else
                parent.rmdir()
