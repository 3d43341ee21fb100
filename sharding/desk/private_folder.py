"""Prepare a folder that no other user can write to."""

import grp
import os
import pwd
from pathlib import Path
from stat import S_ISDIR, S_ISLNK, S_ISVTX, S_IWGRP, S_IWOTH

from sharding.core.environment import is_space
from sharding.core.errors import Refused

_HINT = "Set SHARD_FOLDER to a new folder in a place where only you can write."


def private_folder(folder: Path) -> Path:
    """Return the path of `folder` without links. Create it, and the folders above it, if they are missing.

    Raises Refused if it is a link, belongs to another user, or if other users can write to it or to anything in it.
    A folder above it is refused too if others can write to it, because they could replace `folder`. On a Space the
    folders above are not checked: nobody else logs in there, and the platform may leave its disk open to all.
    """
    try:
        place = Path(os.path.abspath(folder))
        place = place.parent.resolve() / place.name
        # From the top: below a folder that others cannot change, nothing can change after the check.
        for above in reversed(place.parents):
            status = _status(above)
            _refuse(above, place, None if is_space() else _problem_above(status))
        _refuse(place, place, _problem(_status(place)))
        for entry in place.iterdir():
            _refuse(entry, place, _problem_inside(entry.lstat()))
    except (OSError, RuntimeError, ValueError) as error:  # no permission, links in a circle, an invalid name
        reason = error.strerror if isinstance(error, OSError) else error
        raise Refused(f"The page cannot keep its jobs in {folder}: {reason}.", _HINT) from error
    return place


def _status(place: Path) -> os.stat_result:
    """Return the status of `place`. Create it if it is missing."""
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
    return "can be written to by others" if status.st_mode & (S_IWGRP | S_IWOTH) else None


def _problem_above(status: os.stat_result) -> str | None:
    if status.st_uid not in {0, os.geteuid(), Path("/").stat().st_uid}:
        return "belongs to another user"
    is_open = status.st_mode & S_IWOTH or (status.st_mode & S_IWGRP and _has_others(status.st_gid))
    # In a sticky folder such as /tmp, users cannot rename or remove each other's files.
    return "can be written to by others" if is_open and not status.st_mode & S_ISVTX else None


def _problem_inside(status: os.stat_result) -> str | None:
    if status.st_uid not in {0, os.geteuid()}:
        return "belongs to another user"
    is_open = S_ISDIR(status.st_mode) and status.st_mode & (S_IWGRP | S_IWOTH)
    return "can be written to by others" if is_open else None


def _has_others(group: int) -> bool:
    """Return whether others may be in `group`. They are not in root's, nor in this user's own group."""
    try:
        entry, user = grp.getgrgid(group), pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return group != 0
    return group != 0 and (entry.gr_name != user or bool(set(entry.gr_mem) - {user}))
