"""Refuse a destination that is a source under another name, and names that its disk does not take."""

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from sharding.core.errors import DestinationError
from sharding.core.protocols import Files, Repo, Source

TRIAL = "sharding_names"
"""The folder, inside the staging folder, in which names are tried."""

_NOT_THE_NAME = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""Errors of a disk that have nothing to do with a name."""


def refuse_overlap(folder: Path, name: str, source: Files) -> None:
    """Raise DestinationError if `folder` lies inside a folder of `source`, or the other way round.

    A bind mount and a disk that ignores case give one folder two names, so the file system decides what is the same.
    """
    for place, what in _folders_of(source):
        if lies_in(folder, place) or lies_in(place, folder):
            raise DestinationError(
                f"The destination {name} lies inside the {what}, or the {what} lies inside it.",
                f"Choose a folder beside the {what}.",
            )


def _folders_of(source: Files) -> Iterable[tuple[Path, str]]:
    sources: list[Source | Files] = list(source.sources) if isinstance(source, Repo) else [source]
    adapter = source.adapter if isinstance(source, Repo) else None
    for number, each in enumerate(sources):
        if each.folder:
            yield each.folder, "adapter" if each is adapter else "base" if number else "source"


def lies_in(inner: Path, outer: Path) -> bool:
    """Return whether `inner` is `outer` or lies below it, under whatever name."""
    return any(place == outer or _are_one(place, outer) for place in (inner, *inner.parents))


def _are_one(first: Path, second: Path) -> bool:
    try:
        return os.path.samefile(first, second)
    except OSError:  # one does not exist
        return False


def try_names(staging: Path, paths: Iterable[str]) -> None:
    """Create an empty file for each of `paths` below the folder `staging`, and remove them again.

    Raises DestinationError if the disk does not take a name, or if two of them are one file there.
    """
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
            if place.is_dir():
                place.rmdir()
            else:
                place.unlink()
