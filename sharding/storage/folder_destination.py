"""Write a checkpoint into a folder so that it shows only once it is complete.

While a job runs, the folder holds `<shard>.part` files and a journal of those that are finished. Publishing
renames the parts; what says that the folder is a checkpoint, its index or that of a pipeline, comes last.
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from io import FileIO
from itertools import groupby
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from sharding.core.errors import DestinationError, ReplaceRefused
from sharding.core.events import Published
from sharding.core.limits import DISK_FLOOR_BYTES, FLUSH_BYTES, MAX_REPORT_BYTES
from sharding.core.protocols import Source
from sharding.core.text import format_bytes
from sharding.core.values import Discarded, FileEntry, RepoRef, ShardRecord, StagedJob, folder_of
from sharding.formats.names import REPORT_NAME, is_index, is_weights
from sharding.storage.folder_source import FolderSource
from sharding.storage.journal import Journal
from sharding.storage.records import Earlier, parse_earlier

PART = ".part"

_BESIDE = "sharding_file.part"
"""What a file beside the shards is called until it is whole: one at a time, so that it is found again."""

_ENTRANCES = ("model_index.json", "modules.json")
"""What makes a folder a pipeline or a sentence transformer."""


class FolderDestination:
    """A folder that a checkpoint is written into. See `protocols.Destination`."""

    def __init__(self, folder: Path, *, overwrite: bool = False, restart: bool = False) -> None:
        """Aim at `folder`. Writes nothing.

        `overwrite` replaces another model's copy, or a checkpoint that this tool did not write; `restart` forgets
        what an interrupted run left.
        """
        self.ref = RepoRef("folder", folder.name, "")
        self.bytes_uploaded = 0
        self.bytes_deduplicated = 0
        self._written = 0
        self._folder = folder
        self._overwrite = overwrite
        self._restart = restart
        self._journal = Journal(folder)
        self._earlier: list[str] = []
        self._made: list[Path] = []
        self._finished: set[str] = set()
        self._streams: list[FileIO] = []
        self._flusher = ThreadPoolExecutor(1, thread_name_prefix="flush")

    @property
    def disk_bytes_written(self) -> int:
        """Bytes that this job has written to the disk."""
        return self._written + self._journal.bytes_written

    @property
    def has_finished_shards(self) -> bool:
        """Whether a later run would find something to go on from."""
        return bool(self._finished)

    def check(self, source: RepoRef) -> None:
        """Raise DestinationError where the folder is a file, or holds what a copy of `source` may not replace."""
        with explained(self._folder):
            self._refuse_foreign(source)

    def done(self, plan_id: str) -> dict[str, ShardRecord]:
        """Return the shards of plan `plan_id` that an earlier run finished here, by file name. Writes nothing."""
        with explained(self._folder):
            if self._restart:
                return {}
            records = self._journal.read(plan_id)
            return {file: record for file, record in records.items() if self._size(file) == record.bytes}

    def prepare(self, job: StagedJob, keep: Iterable[ShardRecord], new_bytes: int) -> None:
        """Make room for `new_bytes` of `job`, remove what another plan left, keep the shards in `keep`.

        Raises DestinationError where the disk lacks the room or refuses to be written, or another job is
        writing to the same folder.
        """
        kept = {record.file: record for record in keep}
        stale = [path for path in self._parts() if path not in map(self._part, kept)]
        self._refuse_without_room(new_bytes, sum(path.lstat().st_size for path in stale))
        with explained(self._folder):
            self._make_folder()
            self._lock()
            self._journal.begin(job, list(kept.values()))
            self._finished = set(kept)
            for path in stale:
                path.unlink()

    def open_shard(self, file: str) -> "FolderShardWriter":
        """Start a shard. It has no other name than `<file>.part` until the result is published."""
        with explained(self._folder):
            stream = open(self._part(file), "wb", buffering=0)  # noqa: SIM115 - closed by finish or close
        self._streams = [*(other for other in self._streams if not other.closed), stream]
        return FolderShardWriter(stream, self._flusher, self.finish)

    def finish(self, record: ShardRecord) -> None:
        """Note that a shard is safely on the disk."""
        with explained(self._folder):
            _sync_folders([self._folder])
            self._journal.note(record)
        self._written += record.bytes
        self._finished.add(record.file)

    def open_staged(self, files: Iterable[str]) -> FolderSource:
        """Return `files` where they lie now: under their part names, or their own if publishing was interrupted."""
        return FolderSource(self.ref.repo_id, {file: self._place(file) for file in files})

    def publish(
        self,
        records: Mapping[str, ShardRecord],
        side_files: Iterable[FileEntry],
        origin: Source,
        written: Mapping[str, bytes],
    ) -> Published:
        """Show the result: side files, `written`, shards, and what makes it a checkpoint last of all.

        From the first line to the last the folder has no index; killed in between, it is finished by
        running the same job again.
        """
        contents: dict[str, Iterable[bytes]] = {
            **{file.path: origin.read(file.path, 0, file.bytes) for file in side_files},
            **{path: [data] for path, data in written.items()},
        }
        with explained(self._folder):
            places = [self._inside(path) for path in (*contents, *records)]
            folders = {folder for place in places for folder in place.parents if folder.is_relative_to(self._folder)}
            self._remove_earlier({folder_of(shard) for shard in records})
            for folder in sorted(folders):
                folder.mkdir(exist_ok=True)
            # The report first: it names what is to be removed again if nobody goes on from here.
            for path in sorted(contents, key=REPORT_NAME.__ne__):
                if not _is_last(path):
                    self._write_whole(path, contents[path])
            _sync_folders(folders)
            for shard in records:
                os.replace(self._place(shard), self._folder / shard)
            for is_due in (is_index, _ENTRANCES.__contains__):
                _sync_folders(folders)
                for path in filter(is_due, contents):
                    self._write_whole(path, contents[path])
            _sync_folders(folders)
            self._journal.remove()
            _sync_folders([self._folder])
        return Published(self.ref, str(self._folder))

    def unfinished(self) -> StagedJob | None:
        """Return the job that the folder's journal is of."""
        return self._journal.job()

    def discard(self) -> Discarded:
        """Remove the parts, what a job killed in publishing has put down, the journal, and folders this job made.

        A result that is shown stays: an earlier one, or that of a job killed right after. Folders go where nothing
        else is in them.
        """
        found = self._journal.path.exists()
        with explained(self._folder):
            if found:
                self._lock()
                for path in self._parts():
                    path.unlink(missing_ok=True)
                self._remove(self._half_made())
                self._journal.remove()
        for folder in reversed(self._made):
            with suppress(OSError):
                folder.rmdir()
        return Discarded(found)

    def _half_made(self) -> tuple[str, ...]:
        """Return the files of a result that the journal's job has begun to publish, and nobody takes for one yet."""
        job, begun = self._journal.job(), _report_in(self._folder)
        if job is None or begun is None or begun.plan_id != job.plan_id:
            return ()
        shown_by = min(map(_by_removal, begun.files), default=0)
        shows = [file for file in begun.files if _by_removal(file) == shown_by]
        return () if all(os.path.isfile(self._folder / file) for file in shows) else (REPORT_NAME, *begun.files)

    def close(self) -> None:
        """Let go of the folder, so that another job may write to it; remove shards that are not finished."""
        self._flusher.shutdown(cancel_futures=True)
        for stream in self._streams:
            stream.close()
        if self._journal.is_ours:
            for path in self._parts():
                if path not in map(self._part, self._finished):
                    with suppress(OSError):  # what ended the job says more
                        path.unlink(missing_ok=True)
            self._journal.close()

    def _lock(self) -> None:
        if not self._journal.is_ours:
            try:
                self._journal.lock()
            except BlockingIOError as error:
                raise DestinationError(
                    f"Another job is writing to {self._folder} right now.", "Wait for it, or choose another folder."
                ) from error

    def _refuse_foreign(self, source: RepoRef) -> None:
        if not self._folder.exists():
            return
        if not self._folder.is_dir():
            raise DestinationError(f"{self._folder} is a file, not a folder.", "Name a folder, or a new one.")
        earlier = _report_in(self._folder)
        self._earlier = [file for file in earlier.files if _is_inside(file)] if earlier else []
        if self._overwrite:
            return
        if earlier and earlier.source != source.repo_id:
            raise ReplaceRefused(f"The folder {self._folder}", earlier.source, source.repo_id)
        if not earlier and not self._journal.path.exists() and any(self._folder.iterdir()):
            raise DestinationError(
                f"The folder {self._folder} is not empty, and this tool did not write what is in it.",
                "Choose another folder, or add --overwrite to replace the checkpoint in it.",
            )

    def _refuse_without_room(self, new_bytes: int, reclaimed_bytes: int) -> None:
        place = next(parent for parent in (self._folder, *self._folder.parents) if parent.exists())
        free = shutil.disk_usage(place).free + reclaimed_bytes
        if new_bytes + DISK_FLOOR_BYTES > free:
            raise DestinationError(
                f"The result needs {format_bytes(new_bytes)} and the disk of {place} has {format_bytes(free)} free.",
                f"Free {format_bytes(new_bytes + DISK_FLOOR_BYTES - free)}, or choose a folder on another disk.",
            )

    def _remove_earlier(self, folders: Iterable[str]) -> None:
        earlier = {REPORT_NAME, *self._earlier}
        for folder in {"", *folders}:
            inside = [path for path in (self._folder / folder).glob("*") if path.is_file()]
            overwritten = is_weights if self._overwrite else is_index
            earlier |= {folder + path.name for path in inside if overwritten(path.name)}
        self._remove(file for file in earlier if file not in self._finished or self._part(file).exists())

    def _remove(self, files: Iterable[str]) -> None:
        """Remove files of a result, each kind safely before the next; what leads out of the folder stays."""
        # Indexes first: from here on nobody takes the folder for a complete checkpoint.
        for _, kind in groupby(sorted(sorted(files), key=_by_removal), _by_removal):
            places = [self._folder / file for file in kind if self._leads_inside(file)]
            there = [place for place in places if os.path.isfile(place) or os.path.islink(place)]
            for place in there:
                place.unlink(missing_ok=True)
            _sync_folders({place.parent for place in there})

    def _place(self, file: str) -> Path:
        part = self._part(file)
        return part if part.exists() else self._folder / file

    def _part(self, file: str) -> Path:
        # All parts lie at the top, so that what is left of an earlier run is found without a search.
        return self._folder / (quote(file, safe="") + PART)

    def _leads_inside(self, path: str) -> bool:
        # A folder of this name may be a link to elsewhere; a file that is one is replaced itself.
        return _is_inside(path) and self._folder in Path(os.path.realpath((self._folder / path).parent), "_").parents

    def _inside(self, path: str) -> Path:
        if not self._leads_inside(path):
            hint = "Rename it in the source, or remove the link in the destination that it leads over."
            raise DestinationError(f"The file name {path!r} leads out of the folder.", hint)
        return self._folder / path

    def _size(self, file: str) -> int | None:
        place = self._place(file)
        return place.stat().st_size if place.is_file() else None

    def _parts(self) -> list[Path]:
        beside = self._folder / _BESIDE
        return [*sorted(self._folder.glob("*.safetensors" + PART)), *([beside] if os.path.lexists(beside) else [])]

    def _make_folder(self) -> None:
        missing = [folder for folder in (self._folder, *self._folder.parents) if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir()
            self._made.append(folder)
            _sync_folders([folder.parent])

    def _write_whole(self, path: str, chunks: Iterable[bytes]) -> None:
        part = self._folder / _BESIDE
        with open(part, "wb") as stream:
            for chunk in chunks:
                self._written += stream.write(chunk)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(part, self._folder / path)


def _is_inside(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and not {"\\", "\0"} & set(path)


def _is_last(path: str) -> bool:
    return path in _ENTRANCES or is_index(path)


def _by_removal(path: str) -> int:
    """Return when a file of an earlier result goes: what shows it first, what names its files last."""
    kinds = (path in _ENTRANCES, is_index(path), is_weights(path), path != REPORT_NAME)
    return next((number for number, is_kind in enumerate(kinds) if is_kind), len(kinds))


def _sync_folders(folders: Iterable[Path]) -> None:
    for folder in sorted(folders):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _report_in(folder: Path) -> Earlier | None:
    path = folder / REPORT_NAME
    try:
        return parse_earlier(path.read_bytes()) if path.stat().st_size <= MAX_REPORT_BYTES else None
    except OSError:
        return None


class FolderShardWriter:
    """One `.part` file. See `protocols.ShardWriter`."""

    def __init__(self, stream: FileIO, flusher: ThreadPoolExecutor, finish: Callable[[ShardRecord], None]) -> None:
        """Write to `stream`; start write-back in `flusher`; call `finish` with the record once all is on the disk."""
        self._finish = finish
        self._stream = stream
        self._folder = Path(stream.name).parent
        self._flusher = flusher
        self._dirty_bytes = 0
        self._flush: Future[None] | None = None

    def write(self, data: bytes) -> None:
        """Append bytes; start write-back now and then, so that `finish` has little left to wait for."""
        view = memoryview(data)
        with explained(self._folder):
            while view:
                view = view[self._stream.write(view) :]
        self._dirty_bytes += len(data)
        if self._dirty_bytes >= FLUSH_BYTES and (self._flush is None or self._flush.done()):
            self._dirty_bytes = 0
            self._flush = self._flusher.submit(os.fsync, self._stream.fileno())

    def finish(self, record: ShardRecord) -> None:
        """Sync the shard to the disk and note that it is finished."""
        with explained(self._folder):
            if self._flush:
                self._flush.result()
            os.fsync(self._stream.fileno())
            self._stream.close()
        self._finish(record)

    def abort(self) -> None:
        """Do nothing: a disk does not keep anybody waiting, and `FolderDestination.close` removes the part."""


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn what the system says of a folder that cannot be written into a DestinationError that says what helps."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = format_bytes(shutil.disk_usage(folder if folder.exists() else folder.parent).free)
            message, hint = (
                f"The disk of {folder} is full ({free} free).",
                "Free some room and start the same job again.",
            )
        else:
            message = f"{folder} cannot be written: {error.strerror or error}."
            hint = "Check that the folder may be written, or choose another."
        raise DestinationError(message, hint) from error
