"""Keep the records and events of jobs in a folder that no other user can write to."""

import fcntl
import grp
import json
import os
import pwd
import shutil
from contextlib import suppress
from pathlib import Path
from stat import S_ISLNK, S_ISVTX, S_IWGRP, S_IWOTH

from pydantic import TypeAdapter, ValidationError

from sharding.core.environment import is_space
from sharding.core.errors import Refused, UsageError
from sharding.core.limits import EVENT_BYTES
from sharding.desk.jobs import History, JobRecord
from sharding.report.schema import Json

_BY_OTHERS = S_IWGRP | S_IWOTH
_HINT = "Set SHARD_FOLDER to a new folder in a place where only you can write."


def private_folder(folder: Path) -> Path:
    """Return the path of `folder` without links; create it. Raises Refused if it or anything in it is a link, another
    user's, or open to others. So is a folder above it, except on a Space: nobody else logs in there."""
    try:
        place = Path(os.path.abspath(folder))
        place = place.parent.resolve() / place.name
        me, root = os.geteuid(), 0
        # From the top: below a folder that others cannot change, nothing can change after the check.
        for above in reversed(place.parents):
            status = _status(above)
            if not is_space():
                _refuse(above, place, status, {root, me, Path("/").stat().st_uid}, _is_open(status))
        status = _status(place)
        _refuse(place, place, status, {me}, bool(status.st_mode & _BY_OTHERS))
        for entry in place.iterdir():
            status = entry.lstat()
            _refuse(entry, place, status, {root, me}, bool(status.st_mode & _BY_OTHERS))
    except (OSError, RuntimeError, ValueError) as error:  # no permission, links in a circle, an invalid name
        reason = error.strerror if isinstance(error, OSError) else error
        raise Refused(f"The page cannot keep its jobs in {folder}: {reason}.", _HINT) from error
    return place


def _status(place: Path) -> os.stat_result:
    if not os.path.lexists(place):
        place.mkdir(mode=0o700)
    return place.lstat()


def _refuse(place: Path, folder: Path, status: os.stat_result, owners: set[int], is_open: bool) -> None:
    problem = "can be written to by others" if is_open else ""
    problem = "belongs to another user" if status.st_uid not in owners else problem
    problem = "is a link" if S_ISLNK(status.st_mode) else problem
    if problem:
        raise Refused(f"The page cannot keep its jobs in {folder}: {place} {problem}.", _HINT)


def _is_open(status: os.stat_result) -> bool:
    """Return whether others can replace what is in a folder. In a sticky one, such as /tmp, only its owner can."""
    by_others = status.st_mode & S_IWOTH or (status.st_mode & S_IWGRP and _has_others(status.st_gid))
    return bool(by_others) and not status.st_mode & S_ISVTX


def _has_others(group: int) -> bool:
    """Return whether others may be in `group`. They are not in root's, nor in this user's own group."""
    try:
        entry, user = grp.getgrgid(group), pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return group != 0
    return group != 0 and (entry.gr_name != user or bool(set(entry.gr_mem) - {user}))


_RECORD = TypeAdapter(JobRecord)
_JOB, _EVENTS, _WORK, _LOCK = "job.json", "events.jsonl", "work", "desk.lock"


class Shelf:
    """A `folder` with one folder per job. No other user can read it."""

    def __init__(self, folder: Path) -> None:
        """Prepare `folder`. Raises Refused if other users can write to it, or if another desk works in it."""
        self.folder = folder = private_folder(folder)
        # Anyone who can read the file can lock it.
        self._lock = open(folder / _LOCK, "ab", opener=for_us_alone)  # noqa: SIM115 - held until close
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise Refused(
                f"Another page keeps its jobs in {folder}.", "Stop it, or set SHARD_FOLDER to another folder."
            ) from error

    def close(self) -> None:
        """Let go of the folder."""
        self._lock.close()

    def save(self, record: JobRecord) -> None:
        """Write `record` completely or not at all."""
        folder = self._place(record.id)
        folder.mkdir(exist_ok=True, mode=0o700)
        part = folder / f"{_JOB}.part"
        part.write_bytes(_RECORD.dump_json(record, indent=1))
        os.replace(part, folder / _JOB)

    def load(self, job_id: str) -> JobRecord | None:
        """Return the record of a job, or None."""
        record = _read(self._place(job_id))
        return record if record and record.id == job_id else None

    def records(self) -> list[JobRecord]:
        """Return the records of all jobs that are kept, oldest first."""
        records = [record for folder in self._folders() if (record := _read(folder))]
        return sorted(records, key=lambda record: record.created)

    def note(self, job_id: str, event: Json, seconds: float) -> int:
        """Append an event with the time at which it arrived. Return the number of bytes written."""
        line = json.dumps({"time": seconds, **event}, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"
        with open(self._place(job_id) / _EVENTS, "ab") as stream:
            return stream.write(line)

    def history(self, record: JobRecord) -> History:
        """Return the history of a job that has ended, without the events that cannot be read."""
        history = History()
        with suppress(FileNotFoundError), open(self._place(record.id) / _EVENTS, "rb") as stream:
            while line := stream.readline(EVENT_BYTES):
                try:
                    event = json.loads(line)
                    seconds = float(event.pop("time"))
                except (ValueError, TypeError, KeyError, AttributeError):  # the last line may be cut short
                    continue
                with suppress(ValueError):
                    history.take(event, seconds)
        history.close(record)
        return history

    def work_folder(self, job_id: str) -> Path:
        """Return a new empty folder for a job's process."""
        folder = self._place(job_id) / _WORK
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
        return folder

    def clear(self, job_id: str) -> None:
        """Remove the folder of a job's process."""
        shutil.rmtree(self._place(job_id) / _WORK, ignore_errors=True)

    def sweep(self, before: float) -> None:
        """Remove the jobs that ended before the time `before`, and folders of that age that hold no job."""
        for folder in self._folders():
            record = _read(folder)
            with suppress(FileNotFoundError):
                if ((record.ended if record else folder.stat().st_mtime) or before) < before:
                    shutil.rmtree(folder, ignore_errors=True)

    def _place(self, job_id: str) -> Path:
        return self.folder / job_id.split("/")[0]

    def _folders(self) -> list[Path]:
        return [path for path in self.folder.iterdir() if path.is_dir()]


def _read(folder: Path) -> JobRecord | None:
    try:
        return _RECORD.validate_json((folder / _JOB).read_bytes())
    except (OSError, ValidationError, UsageError):  # for example from a version with other options
        return None


def for_us_alone(path: str, flags: int) -> int:
    """Open a file that, if it is new, no other user can read. For `open`."""
    return os.open(path, flags, 0o600)
