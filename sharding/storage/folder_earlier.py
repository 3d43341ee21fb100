"""Tell what a folder holds of an earlier result, and remove it: what shows it first, what names its files last."""

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
    """Return what the report in `folder` says, None where there is none of ours."""
    path = folder / REPORT_NAME
    try:
        return parse_earlier(path.read_bytes()) if path.stat().st_size <= MAX_REPORT_BYTES else None
    except OSError:
        return None


def is_inside(path: str) -> bool:
    """Return whether `path`, which may be anybody's, names something below the folder that it stands in."""
    parts = PurePosixPath(path).parts
    return bool(parts) and is_plain(path) and not {"\\", "\0"} & set(path)


def leads_inside(folder: Path, path: str) -> bool:
    """Return whether `path` is inside of `folder`, over no link, and not reserved."""
    # A file that is a link is replaced itself; a folder that is one may lead to another folder of the result.
    between = PurePosixPath(path).parents[:-1]
    return is_inside(path) and not is_reserved(path) and not any(map(os.path.islink, map(folder.joinpath, between)))


def is_last(path: str) -> bool:
    """Return whether a file shows a result, and so comes last."""
    return path in ENTRANCES or is_index(path)


def by_removal(path: str) -> int:
    """Return when a file of an earlier result goes: what shows it first, what names its files last."""
    kinds = (path in ENTRANCES, is_index(path), is_weights(path), path != REPORT_NAME)
    return next((number for number, is_kind in enumerate(kinds) if is_kind), len(kinds))


def remove(folder: Path, files: Iterable[str]) -> None:
    """Remove files of a result, each kind safely before the next; what leads out of `folder` stays."""
    # Indexes first: from here on nobody takes the folder for a complete checkpoint.
    for _, kind in groupby(sorted(sorted(files), key=by_removal), by_removal):
        places = [folder / file for file in kind if leads_inside(folder, file)]
        there = [place for place in places if os.path.isfile(place) or os.path.islink(place)]
        for place in there:
            place.unlink(missing_ok=True)
        sync_folders({place.parent for place in there})
        # Also where a file was never put, and before the report goes, which names them.
        emptied = {parent for place in places for parent in place.parents if folder in parent.parents}
        for parent in sorted(emptied, reverse=True):
            with suppress(OSError):  # it is not there, or something else is in it
                parent.rmdir()
