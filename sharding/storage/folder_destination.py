"""Write a checkpoint into a folder, which shows it only once it is complete.

While a job runs, its files lie in a staging folder inside that folder: a `<shard>.part` file and a record for each
finished shard, and a journal that names their job. Publishing renames the parts. The files that make the folder a
checkpoint come last: its index, or the index of a pipeline.
"""

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from stat import S_ISREG

from typing_extensions import override

from sharding.core.errors import DestinationError, Remedy, ReplaceRefused
from sharding.core.events import Published
from sharding.core.limits import DISK_FLOOR_BYTES, LEASE_SECONDS
from sharding.core.origin import Place
from sharding.core.protocols import Destination, Discarded, Inputs, LentDestination
from sharding.core.text import format_bytes, name_some, printable
from sharding.core.values import FileEntry, Finding, ShardRecord, StagedJob, folder_of, folders_around
from sharding.formats.names import ENTRANCES, REPORT_NAME, WRITTEN, is_weights, refuse_clashes, rivals
from sharding.storage.folder_names import (
    by_removal,
    forget_names,
    leads_inside,
    refuse_overlap,
    remove,
    report_in,
    try_names,
)
from sharding.storage.folder_source import FolderSource
from sharding.storage.folder_writing import (
    PART,
    RECORD,
    FolderSink,
    explained,
    part_path,
    record_path,
    sync_folders,
    write_synced,
)
from sharding.storage.journal import Journal
from sharding.storage.records import parse_line, whole

_BESIDE = "sharding_file{}.part"  # The names of the files beside the shards until they are published.


class FolderDestination(FolderSink, Destination):
    """A folder that a checkpoint is written to."""

    findings: tuple[Finding, ...] = ()

    def __init__(
        self, folder: Path, *, overwrite: bool = False, restart: bool = False, is_shared: bool = False
    ) -> None:
        """Aim at `folder`, which others write to if it `is_shared`, so that it is not locked. Writes nothing."""
        super().__init__(folder)
        self.ref = Place("folder", printable(folder.name), "")
        self._overwrite, self._restart = overwrite, restart
        self._journal = Journal(self._staging, is_shared=is_shared)
        self._is_prepared = self._is_begun = False
        self._earlier: list[str] = []
        self._new_folders: list[Path] = []
        self._finished: set[str] = set()

    @property
    @override
    def has_finished_shards(self) -> bool:
        return bool(self._finished)

    @override
    def check(self, source: Place) -> None:
        with explained(self._folder):
            if not self._folder.exists():
                return
            if not self._folder.is_dir():
                message = f"{self._folder} is a file, not a folder."
                raise DestinationError(message, "Name a folder. It need not exist yet.")
            earlier = report_in(self._folder)
            self._earlier = list(earlier.files) if earlier else []
            if self._overwrite:
                return
            if earlier and earlier.source != source.words:
                raise ReplaceRefused(f"The folder {self._folder}", earlier.source, source.words)
            if not earlier and not self._staging.is_dir() and any(self._folder.iterdir()):
                message = f"The folder {self._folder} is not empty, and this tool did not write its contents."
                hint = "Choose another folder. Or add --overwrite to replace the checkpoint in it."
                raise DestinationError(message, hint, Remedy("overwrite"))

    @override
    def done(self, plan_id: str) -> dict[str, ShardRecord]:
        if self._restart:
            return {}
        with explained(self._folder), suppress(FileNotFoundError):  # until it is locked, another job may publish it
            paths = self._staging.glob(record_path(Path(), "*", plan_id).name.replace("%2A", "*"))
            records = [parse_line(ShardRecord, path.read_bytes()) for path in paths]
            by_file = {record.file: record for record in records if record}
            if len(by_file) == len(records):  # else one is damaged, and may have said what was read for all
                return whole(by_file, lambda record: _size_now(self._place(record.file)) == record.bytes)
        return {}

    @override
    def prepare(
        self,
        job: StagedJob,
        keep: Iterable[ShardRecord],
        new_bytes: int,
        ours: Iterable[str] = (),
        beside: Iterable[str] = (),
    ) -> None:
        ours, beside = list(ours), list(beside)
        kept = {record.file: record for record in keep}
        self._is_prepared, self._finished, self._plan_id = True, set(kept), job.plan_id
        with explained(self._folder):
            self._refuse_names(ours, beside)
        stale = self._unfinished_parts()
        self._refuse_without_room(new_bytes, sum(map(_size_now, stale)))
        with explained(self._folder):
            missing = [folder for folder in (self._staging, *self._staging.parents) if not os.path.lexists(folder)]
            for folder in reversed(missing):
                folder.mkdir()
                self._new_folders.append(folder)
                sync_folders([folder.parent])
            self._lock()
            self.disk_bytes_written += self._journal.begin(job)
            self._is_begun = True
            try_names(self._staging, (*ours, *beside))
            for record in kept.values():
                if self.finished(record.file) != record:  # it now says more about what was read
                    self.disk_bytes_written += self._put_record(record)
            for path in stale:
                path.unlink(missing_ok=True)

    @override
    def refuse_other(self) -> None:
        self._journal.lease.refuse_lost()

    @override
    def note(self, record: ShardRecord) -> None:
        super().note(record)
        self._finished.add(record.file)

    @override
    def lend(self) -> LentDestination:
        return LentDestination(self.ref, self._plan_id, folder=str(self._folder))

    @override
    def open_arriving(self, keep: Iterable[str]) -> None:
        """Return None: reading would take processor time from the writing."""

    @override
    def open_staged(self, files: Iterable[str]) -> FolderSource:
        """Return a source of `files` at their places now: part names, or final names if publishing was interrupted."""
        return FolderSource(self.ref.repo_id, {file: self._place(file) for file in files})

    @override
    def publish(
        self,
        records: Mapping[str, ShardRecord],
        side_files: Iterable[FileEntry],
        origin: Inputs,
        written: Mapping[str, bytes],
    ) -> Published:
        """Show the result, and last the files that make it a checkpoint. If killed, the same job finishes it later."""
        contents: dict[str, Iterable[bytes]] = {
            **{file.path: origin.read(file.path, 0, file.bytes) for file in side_files},
            **{path: [data] for path, data in written.items()},
        }
        ours, beside = [*records, *written], [file for file in contents if file not in written]
        with explained(self._folder):
            self._journal.lease.refuse_lost()
            self._refuse_names(ours, beside)
            # First: if a file cannot be read, the job ends while an earlier result is still whole.
            parts = {path: self._staging / _BESIDE.format(number) for number, path in enumerate(contents)}
            self.disk_bytes_written += sum(write_synced(part, contents[path]) for path, part in parts.items())
            sync_folders([self._staging])
            self._refuse_names(ours, beside)  # again: reading may have taken long
            refuse_overlap(self._folder, str(self._folder), origin)  # again: the last moment before a file is removed
            self._remove_earlier({folder_of(shard) for shard in records})
            self._show(parts | {shard: self._place(shard) for shard in records}, next(iter(records)))
            for part in self._parts():  # the records
                part.unlink(missing_ok=True)
            self._journal.remove()
            self._remove_staging()
            sync_folders([self._folder])
        return Published(self.ref, str(self._folder))

    @override
    def unfinished(self) -> StagedJob | None:
        return self._journal.job()

    @override
    def discard(self) -> Discarded:
        """Remove what the job left, and the empty folders that it made. A result that is shown stays."""
        has_journal = self._journal.path.exists()
        with explained(self._folder):
            if has_journal and not self._journal.lease.is_lost and (self._is_begun or not self._is_prepared):
                self._lock()
                forget_names(self._staging)
                for path in self._parts():
                    path.unlink(missing_ok=True)
                remove(self._folder, self._unfinished_files())
                self._journal.remove()
            self._remove_staging()
        for folder in reversed(self._new_folders):
            with suppress(OSError):
                folder.rmdir()
        return Discarded(has_journal)

    def _unfinished_files(self) -> tuple[str, ...]:
        """Return the files that the journal's job has published, if they do not show a result yet."""
        job, begun = self._journal.job(), report_in(self._folder)
        if job is None or begun is None or begun.plan_id != job.plan_id:
            return ()
        shown_by = min(map(by_removal, begun.files), default=0)
        shows = [file for file in begun.files if by_removal(file) == shown_by]
        return () if all(os.path.isfile(self._folder / file) for file in shows) else (REPORT_NAME, *begun.files)

    @override
    def close(self) -> None:
        super().close()
        if self._journal.is_ours:
            for path in self._unfinished_parts():
                with suppress(OSError):  # the error that ended the job says more
                    path.unlink(missing_ok=True)
        self._journal.close()

    def _lock(self) -> None:
        if not self._journal.is_ours:
            try:
                self._journal.lock()
            except BlockingIOError as error:
                who = self._journal.lease.holder()
                raise DestinationError(
                    f"Another job is writing to {self._folder} right now{who and f': {who}'}.",
                    "Wait until it ends, or choose another folder. If it was killed on another machine or in another "
                    f"container, start again after {LEASE_SECONDS:.0f} s.",
                ) from error

    def _refuse_without_room(self, new_bytes: int, reclaimed_bytes: int) -> None:
        place = next(parent for parent in (self._folder, *self._folder.parents) if parent.exists())
        free = shutil.disk_usage(place).free + reclaimed_bytes
        if new_bytes + DISK_FLOOR_BYTES > free:
            raise DestinationError(
                f"The result needs {format_bytes(new_bytes)} and {format_bytes(DISK_FLOOR_BYTES)} must stay free, "
                f"but the disk of {place} has only {format_bytes(free)} free.",
                f"Free {format_bytes(new_bytes + DISK_FLOOR_BYTES - free)}, or choose a folder on another disk.",
            )

    def _refuse_names(self, ours: Sequence[str], beside: Sequence[str]) -> None:
        refuse_clashes(ours, beside)
        for path in (*ours, *beside):
            if not leads_inside(self._folder, path):
                hint = "Rename the file in the source, or remove the link that its path follows in the destination."
                raise DestinationError(f"The file name {path!r} leads out of the folder.", hint)
        folders = {"", *map(folder_of, ours)}
        inside = {folder + path.name for folder in folders for path in (self._folder / folder).glob("*")}
        known = {REPORT_NAME, *self._earlier}
        targets = {path for path in (*ours, *beside) if os.path.lexists(self._folder / path)}
        there = sorted((targets | rivals(ours, inside)) - known)
        if there and not self._overwrite:
            raise DestinationError(
                f"{self._folder} has files that this tool did not write: {name_some(there)}. The copy would replace "
                "them, or loaders would load them instead of the copy.",
                "Move them away, then start the same job again. It goes on where it stopped. Or add --overwrite.",
                Remedy("overwrite"),
            )
        around = {"", *(folder for path in (*ours, *beside) for folder in folders_around(path))}
        for place in filter(os.path.lexists, map(self._folder.joinpath, sorted(around))):
            if not place.is_dir():
                message = f"{place} is a file, but the copy has a folder with that name."
                raise DestinationError(message, "Move the file away, then start the same job again.")
            if not os.access(place, os.W_OK | os.X_OK):
                message = f"You may not write to the folder {place}."
                raise DestinationError(message, "Change its permissions, or choose another folder.")
        if folder := next((path for path in targets if (self._folder / path).is_dir()), None):
            message = f"{folder} in {self._folder} is a folder, but the copy has a file with that name."
            raise DestinationError(message, "Move the folder away, then start the same job again.")

    def _remove_earlier(self, folders: Iterable[str]) -> None:
        earlier = set(self._earlier)
        for folder in {"", *folders} if self._overwrite else ():
            inside = {folder + path.name for path in (self._folder / folder).glob("*") if path.is_file()}
            earlier |= {path for path in inside if is_weights(path) or path in ENTRANCES}
        published = {file for file in self._finished if not part_path(self._folder, file).exists()}
        remove(self._folder, earlier - {REPORT_NAME, *published})

    def _show(self, places: Mapping[str, Path], first: str) -> None:
        """Give files their final names: what shows the result is last, in the order opposite to that of `remove`."""

        def rank(path: str) -> tuple[int, bool]:
            return by_removal(path), path != first  # llama.cpp begins with the first one

        # The report first, in place of the earlier one: at any time it names the files and folders to remove.
        for _, kind in groupby(sorted(places, key=rank, reverse=True), rank):
            folders = set[Path]()
            for path in kind:
                place = self._folder / path
                place.parent.mkdir(parents=True, exist_ok=True)
                os.replace(places[path], place)
                folders |= {folder for folder in place.parents if folder.is_relative_to(self._folder)}
            sync_folders(folders)

    def _place(self, file: str) -> Path:
        part = part_path(self._folder, file)
        return part if part.exists() else self._folder / file

    def _parts(self) -> list[Path]:
        """Return the files to remove at the end. Records are last: they outlive the shards they describe."""
        names = (*(f"*{ending}*{PART}" for ending in WRITTEN), _BESIDE.format("*"))
        paths = (path for name in names for path in self._staging.glob(name))
        return sorted(paths, key=lambda path: (path.name.endswith(RECORD), path))

    def _unfinished_parts(self) -> list[Path]:
        records = (record_path(self._folder, file, self._plan_id) for file in self._finished)
        finished = {*(part_path(self._folder, file) for file in self._finished), *records}
        return [path for path in self._parts() if path not in finished]

    def _remove_staging(self) -> None:
        with suppress(OSError):  # it is missing, or not empty
            self._staging.rmdir()


def _size_now(path: Path) -> int:
    """Return the size of a file; 0 if it is none. Until the folder is locked, another job may publish it."""
    with suppress(FileNotFoundError):
        return stat.st_size if S_ISREG((stat := path.lstat()).st_mode) else 0
    return 0
