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
        self._refuse_without_room(new_bytes, sum(path.stat().st_size for path in stale))
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
            _sync_folder(self._folder)
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
            self._remove_earlier({folder_of(shard) for shard in records})
            for path in contents:
                if not _is_last(path):
                    self._write_whole(path, contents[path])
            for shard in records:
                place = self._inside(shard)
                place.parent.mkdir(parents=True, exist_ok=True)
                os.replace(self._place(shard), place)
            for folder in {self._folder, *(self._inside(shard).parent for shard in records)}:
                _sync_folder(folder)
            for path in filter(_is_last, contents):
                self._write_whole(path, contents[path])
            self._journal.remove()
            _sync_folder(self._folder)
        return Published(self.ref, str(self._folder))

    def unfinished(self) -> StagedJob | None:
        """Return the job that the folder's journal is of."""
        return self._journal.job()

    def discard(self) -> Discarded:
        """Remove the parts, the journal, and the folders that this job made, where nothing else is in them."""
        found = self._journal.path.exists()
        with explained(self._folder):
            if found:
                self._lock()
                for path in self._parts():
                    path.unlink(missing_ok=True)
                self._journal.remove()
        for folder in reversed(self._made):
            with suppress(OSError):
                folder.rmdir()
        return Discarded(found)

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
        earlier = [REPORT_NAME, *self._earlier]
        for folder in {"", *folders}:
            inside = [path for path in (self._folder / folder).glob("*") if path.is_file()]
            overwritten = is_weights if self._overwrite else is_index
            earlier += [folder + path.name for path in inside if overwritten(path.name)]
        # Indexes first: from here on nobody takes the folder for a complete checkpoint.
        for file in sorted(earlier, key=lambda file: not _is_last(file)):
            place = self._folder / file
            if file not in self._finished or self._place(file) != place:
                place.unlink(missing_ok=True)
        _sync_folder(self._folder)

    def _place(self, file: str) -> Path:
        part = self._part(file)
        return part if part.exists() else self._folder / file

    def _part(self, file: str) -> Path:
        # All parts lie at the top, so that what is left of an earlier run is found without a search.
        return self._folder / (quote(file, safe="") + PART)

    def _inside(self, path: str) -> Path:
        if not _is_inside(path):
            raise DestinationError(f"The file name {path!r} leads out of the folder.", "Rename it in the source.")
        return self._folder / path

    def _size(self, file: str) -> int | None:
        place = self._place(file)
        return place.stat().st_size if place.is_file() else None

    def _parts(self) -> list[Path]:
        return sorted(self._folder.glob("*.safetensors" + PART))

    def _make_folder(self) -> None:
        missing = [folder for folder in (self._folder, *self._folder.parents) if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir()
            self._made.append(folder)

    def _write_whole(self, path: str, chunks: Iterable[bytes]) -> None:
        target = self._inside(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(target.name + PART)
        with open(part, "wb") as stream:
            for chunk in chunks:
                self._written += stream.write(chunk)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(part, target)


def _is_inside(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and "\\" not in path


def _is_last(path: str) -> bool:
    return path in _ENTRANCES or is_index(path)


def _sync_folder(folder: Path) -> None:
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
