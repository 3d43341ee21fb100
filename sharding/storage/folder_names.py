"""Judge the names in a destination: a folder of the source, names that its disk does not take, an earlier result."""

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from itertools import groupby
from pathlib import Path, PurePosixPath

from sharding.core.errors import DestinationError
from sharding.core.limits import MAX_REPORT_BYTES
from sharding.core.protocols import Inputs
from sharding.formats.names import ENTRANCES, REPORT_NAME, is_index, is_plain, is_reserved, is_weights
from sharding.storage.folder_writing import sync_folders
from sharding.storage.records import Earlier, parse_earlier

TRIAL = "sharding_names"  # The folder, inside the staging folder, in which names are tried.
_NOT_THE_NAME = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""Errors of a disk that have nothing to do with a name."""


def refuse_overlap(folder: Path, name: str, inputs: Inputs) -> None:
    """Raise DestinationError if `folder` is, holds or lies in the folder of one of `inputs`, or holds one's files."""
    for place, source in zip(inputs.places, inputs.sources, strict=True):
        if source.folder and (lies_in(folder, source.folder) or lies_in(source.folder, folder)):
            message = f"The destination {name} lies inside the {place.called}, or the {place.called} lies inside it."
            raise DestinationError(message, f"Choose a folder beside the {place.called}.")
        for file in source.files:  # through a link
            if (path := source.path(file.path)) and lies_in(path.resolve(), folder):
                message = f"The {place.called}'s file {file.path} lies in the destination {name}."
                raise DestinationError(message, "Choose another destination folder.")


def lies_in(inner: Path, outer: Path) -> bool:
    """Return whether `inner` is `outer` or below it, as the file system says: a folder may have two names."""
    for place in (inner, *inner.parents):
        with suppress(OSError):  # one does not exist
            if place == outer or os.path.samefile(place, outer):
                return True
    return False


def try_names(staging: Path, paths: Iterable[str]) -> None:
    """Create and remove a file for each of `paths` below `staging`. Raises DestinationError if the disk cannot."""
    trial = staging / TRIAL
    forget_names(staging)
    try:
        for path in paths:
            place = trial / path
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                with open(place, "xb"):
                    pass
            except FileExistsError as error:
                message = f"The disk takes {path} for another file of the copy, whose name is nearly the same."
                raise DestinationError(message, "Rename one of them in the source, or choose another disk.") from error
            except OSError as error:
                if error.errno in _NOT_THE_NAME:
                    raise
                message = f"The disk does not take the file name {path[:300]!r}: {error.strerror or error}."
                raise DestinationError(message, "Rename the file in the source, or choose another disk.") from error
    finally:
        forget_names(staging)


def forget_names(staging: Path) -> None:
    """Remove what a killed job left of such a trial."""
    trial = staging / TRIAL
    for place in (*sorted(trial.rglob("*"), reverse=True), trial):
        with suppress(OSError):  # it is missing
            place.rmdir() if place.is_dir() else place.unlink()


def report_in(folder: Path) -> Earlier | None:
    """Return the contents of the report in `folder`, None if this tool did not write one there."""
    path = folder / REPORT_NAME
    try:
        return parse_earlier(path.read_bytes()) if path.stat().st_size <= MAX_REPORT_BYTES else None
    except OSError:
        return None


def leads_inside(folder: Path, path: str) -> bool:
    """Return whether `path`, which may come from anybody, lies inside `folder`, follows no link and is not reserved."""
    # A file that is a link gets replaced itself. A folder that is a link may lead to another folder of the result.
    is_below = is_plain(path) and not {"\\", "\0"} & set(path) and not is_reserved(path)
    return is_below and not any(map(os.path.islink, map(folder.joinpath, PurePosixPath(path).parents[:-1])))


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
