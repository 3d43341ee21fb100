"""Have a folder into which nobody else can put anything."""

import grp
import os
import pwd
from pathlib import Path
from stat import S_ISDIR, S_ISLNK, S_ISVTX, S_IWGRP, S_IWOTH

from sharding.core.environment import is_space
from sharding.core.errors import Refused

_HINT = "Set SHARD_FOLDER to a new folder, at a place where only you can write."


def private_folder(folder: Path) -> Path:
    """Return where `folder` is, over no link; make it, and the folders above it, where they are missing.

    Raises Refused where it is a link, is not ours, or others may write to it or to something in it. Who may write to a
    folder above it could put another in its place. So those are refused too, except on a Space: nobody else logs in
    there, and the platform may leave its disk open to all.
    """
    try:
        place = Path(os.path.abspath(folder))
        place = place.parent.resolve() / place.name
        # From the top: what is below a folder that others cannot change stays as it was found.
        for above in reversed(place.parents):
            status = _status(above)
            _refuse(above, place, None if is_space() else _problem_above(status))
        _refuse(place, place, _problem(_status(place)))
        for entry in place.iterdir():
            _refuse(entry, place, _problem_inside(entry.lstat()))
    except (OSError, RuntimeError, ValueError) as error:  # no permission, links in a circle, a name that can be none
        reason = error.strerror if isinstance(error, OSError) else error
        raise Refused(f"The page cannot keep its jobs in {folder}: {reason}.", _HINT) from error
    return place


def _status(place: Path) -> os.stat_result:
    """Return what `place` is, which is made where it is missing."""
    if not os.path.lexists(place):
        place.mkdir(mode=0o700)
    return place.lstat()


def _refuse(place: Path, folder: Path, problem: str | None) -> None:
    if problem:
        raise Refused(f"The page cannot keep its jobs in {folder}: {place} {problem}.", _HINT)


def _problem(status: os.stat_result) -> str | None:
    if S_ISLNK(status.st_mode):
        return "is a link"
    if status.st_uid != os.geteuid():
        return "belongs to another user"
    return "may be written to by others" if status.st_mode & (S_IWGRP | S_IWOTH) else None


def _problem_above(status: os.stat_result) -> str | None:
    if status.st_uid not in {0, os.geteuid(), Path("/").stat().st_uid}:
        return "belongs to another user"
    is_open = status.st_mode & S_IWOTH or (status.st_mode & S_IWGRP and _has_others(status.st_gid))
    # In a sticky folder, such as /tmp, nobody can rename or remove what is somebody else's.
    return "may be written to by others" if is_open and not status.st_mode & S_ISVTX else None


def _problem_inside(status: os.stat_result) -> str | None:
    if status.st_uid not in {0, os.geteuid()}:
        return "belongs to another user"
    is_open = S_ISDIR(status.st_mode) and status.st_mode & (S_IWGRP | S_IWOTH)
    return "may be written to by others" if is_open else None


def _has_others(group: int) -> bool:
    """Return whether others may be in `group`: not in root's, nor in the one of this user that many systems make."""
    try:
        entry, user = grp.getgrgid(group), pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return group != 0
    return group != 0 and (entry.gr_name != user or bool(set(entry.gr_mem) - {user}))
