"""Write a checkpoint into a folder so that it shows only once it is complete.

While a job runs, the folder holds `<shard>.part` files and a journal. A finished shard has been synced to
the disk and has a line in the journal, by which a second run of the same plan knows it. Publishing
renames the parts; the index, without which nobody takes the folder for a checkpoint, comes last.
"""

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict
from io import FileIO
from pathlib import Path, PurePosixPath

from sharding.errors import DestinationError
from sharding.files import INDEX_NAME, REPORT_NAME, is_weights
from sharding.limits import (
    DISK_FLOOR_BYTES,
    FLUSH_BYTES,
    MAX_REPORT_BYTES,
    format_bytes,
)
from sharding.values import ShardRecord

PART = ".part"
JOURNAL_NAME = "sharding_journal.part"
"""One JSON object a line: first which plan this is, then a `ShardRecord` for every finished shard."""


def open_destination(text: str, source_folder: Path | None, *, overwrite: bool, restart: bool) -> "FolderDestination":
    """Return the destination that `text` names: for now the path of a folder. Writes nothing.

    Raises DestinationError where it and `source_folder`, the folder that is read, lie inside each other.
    """
    folder = Path(text).expanduser().resolve()
    if source_folder and (folder.is_relative_to(source_folder) or source_folder.is_relative_to(folder)):
        raise DestinationError(
            f"The destination {text} and the source lie inside each other.", "Choose a folder beside the source."
        )
    return FolderDestination(folder, overwrite=overwrite, restart=restart)


class FolderDestination:
    """A folder that a checkpoint is written into. See `values.Destination`."""

    def __init__(self, folder: Path, *, overwrite: bool = False, restart: bool = False) -> None:
        """Aim at `folder`. `overwrite` replaces a checkpoint that this tool did not write, `restart` forgets
        what an interrupted run left."""
        self.name = folder.name
        self.disk_bytes_written = 0
        self.bytes_uploaded = 0
        self._folder = folder
        self._overwrite = overwrite
        self._restart = restart
        self._made: list[Path] = []
        self._earlier: list[str] = []
        self._flusher = ThreadPoolExecutor(1, thread_name_prefix="flush")
        self._journal = folder / JOURNAL_NAME
        self._lock: FileIO | None = None
        self._streams: list[FileIO] = []
        self._staged: set[str] = set()

    def done(self, plan_id: str) -> dict[str, ShardRecord]:
        """Return the shards of plan `plan_id` that an earlier run finished here, by file name. Writes nothing.

        Raises DestinationError where the folder is a file, or holds what this tool did not write.
        """
        report = _read_json(self._folder / REPORT_NAME)
        files = report.get("files")
        self._earlier = (
            [file for file in files if isinstance(file, str) and _is_inside(file)] if isinstance(files, list) else []
        )
        self._refuse_foreign(ours="schema" in report or self._journal.exists())
        known_id, records = _read_journal(self._journal)
        if self._restart or known_id != plan_id:
            return {}
        return {file: record for file, record in records.items() if self._size(file) == record.bytes}

    def prepare(self, plan_id: str, keep: Iterable[ShardRecord], new_bytes: int) -> None:
        """Make room for `new_bytes`, remove what a different or forgotten plan left, keep the shards in `keep`.

        Raises DestinationError, and leaves nothing behind, where the disk lacks the room, refuses to be
        written, or another job is writing to the same folder.
        """
        kept = {record.file: record for record in keep}
        stale = [path for path in self._parts() if path.name.removesuffix(PART) not in kept]
        place = next(parent for parent in (self._folder, *self._folder.parents) if parent.exists())
        free = shutil.disk_usage(place).free + sum(path.stat().st_size for path in stale)
        if new_bytes + DISK_FLOOR_BYTES > free:
            raise DestinationError(
                f"The result needs {format_bytes(new_bytes)} and the disk of {place} has {format_bytes(free)} free.",
                f"Free {format_bytes(new_bytes + DISK_FLOOR_BYTES - free)}, or choose a folder on another disk.",
            )
        with _explained(self._folder):
            self._make_folder()
            self._lock = self._lock_journal()
            for path in stale:
                path.unlink()
            self._staged = set(kept)
            self._lock.truncate(0)
            self._note({"plan_id": plan_id}, *(asdict(record) for record in kept.values()))

    def open_shard(self, file: str) -> "FolderShardWriter":
        """Start a shard. It has no other name than `<file>.part` until the result is published."""
        with _explained(self._folder):
            stream = open(self._folder / (file + PART), "wb", buffering=0)  # noqa: SIM115 - closed by finish or close
        self._streams = [*(other for other in self._streams if not other.closed), stream]
        return FolderShardWriter(self, stream, self._flusher)

    def staged(self, files: Iterable[str]) -> dict[str, Path]:
        """Return where each of `files` lies now: under its part name, or its own if publishing was interrupted."""
        return {file: self._place(file) for file in files}

    def publish(self, shards: Iterable[str], files: Iterable[tuple[str, Iterable[bytes]]]) -> None:
        """Show the result: `files` (path and chunks, the last being the index where there is one) and `shards`.

        From the first line to the last the folder has no index; killed in between, it is finished by
        running the same job again.
        """
        with _explained(self._folder):
            self._remove_earlier()
            index = None
            for path, chunks in files:
                if path == INDEX_NAME:
                    index = chunks
                else:
                    self._write_whole(path, chunks)
            for shard in shards:
                os.replace(self._place(shard), self._folder / shard)
            _sync_folder(self._folder)
            if index is not None:
                self._write_whole(INDEX_NAME, index)
            self._journal.unlink()
            _sync_folder(self._folder)

    @property
    def has_finished_shards(self) -> bool:
        """Whether a later run would find something to go on from."""
        return bool(self._staged)

    def discard(self) -> None:
        """Remove the parts, the journal, and the folders that this job made, where nothing else is in them."""
        if self._lock:  # else they are another job's
            for path in (*self._parts(), self._journal):
                path.unlink(missing_ok=True)
        for folder in reversed(self._made):
            with suppress(OSError):
                folder.rmdir()

    def close(self) -> None:
        """Let go of the folder, so that another job may write to it; remove shards that are not finished."""
        self._flusher.shutdown(cancel_futures=True)
        for stream in self._streams:
            stream.close()
        if self._lock:
            for path in self._parts():
                if path.name.removesuffix(PART) not in self._staged:
                    path.unlink(missing_ok=True)
            self._lock.close()

    def record(self, record: ShardRecord) -> None:
        """Note in the journal that a shard is finished."""
        with _explained(self._folder):
            self._note(asdict(record))
        self._staged.add(record.file)

    def _note(self, *lines: Mapping[str, object]) -> None:
        assert self._lock, "prepare comes first"
        text = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        _write_all(self._lock, text)
        os.fsync(self._lock.fileno())
        self.disk_bytes_written += len(text)

    def _refuse_foreign(self, ours: bool) -> None:
        if self._folder.exists() and not self._folder.is_dir():
            raise DestinationError(
                f"{self._folder} is a file, not a folder.", "Name a folder, or one that is not there yet."
            )
        with _explained(self._folder):
            if self._folder.is_dir() and not ours and not self._overwrite and any(self._folder.iterdir()):
                raise DestinationError(
                    f"The folder {self._folder} is not empty, and this tool did not write what is in it.",
                    "Choose another folder, or add --overwrite to replace the checkpoint in it.",
                )

    def _remove_earlier(self) -> None:
        # Index first: from here on nobody takes the folder for a complete checkpoint.
        earlier = [INDEX_NAME, REPORT_NAME, *self._earlier]
        if self._overwrite:
            earlier += [path.name for path in self._folder.iterdir() if path.is_file() and is_weights(path.name)]
        for file in earlier:
            if file not in self._staged or self._place(file).name != file:
                (self._folder / file).unlink(missing_ok=True)
        _sync_folder(self._folder)

    def _place(self, file: str) -> Path:
        part = self._folder / (file + PART)
        return part if part.exists() else self._folder / file

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

    def _lock_journal(self) -> FileIO:
        journal = open(self._journal, "ab", buffering=0)  # noqa: SIM115 - closed by close()
        try:
            fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            journal.close()
            raise DestinationError(
                f"Another job is writing to {self._folder} right now.",
                "Wait until it has ended, or choose another folder.",
            ) from error
        return journal

    def _write_whole(self, path: str, chunks: Iterable[bytes]) -> None:
        if not _is_inside(path):
            raise DestinationError(f"The file name {path!r} leads out of the folder.", "Rename it in the source.")
        target = self._folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(target.name + PART)
        with open(part, "wb") as stream:
            for chunk in chunks:
                stream.write(chunk)
                self.disk_bytes_written += len(chunk)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(part, target)


class FolderShardWriter:
    """One `.part` file. See `values.ShardWriter`."""

    def __init__(self, destination: FolderDestination, stream: FileIO, flusher: ThreadPoolExecutor) -> None:
        """Write to `stream`; start write-back in `flusher`."""
        self._destination = destination
        self._stream = stream
        self._folder = Path(stream.name).parent
        self._flusher = flusher
        self._dirty_bytes = 0
        self._flush: Future[None] | None = None

    def write(self, data: bytes) -> None:
        """Append bytes; start write-back now and then, so that `finish` has little left to wait for."""
        with _explained(self._folder):
            _write_all(self._stream, data)
        self._destination.disk_bytes_written += len(data)
        self._dirty_bytes += len(data)
        if self._dirty_bytes >= FLUSH_BYTES and (self._flush is None or self._flush.done()):
            self._dirty_bytes = 0
            self._flush = self._flusher.submit(os.fsync, self._stream.fileno())

    def finish(self, record: ShardRecord) -> None:
        """Sync the shard to the disk and note it in the journal."""
        with _explained(self._folder):
            if self._flush:
                self._flush.result()
            os.fsync(self._stream.fileno())
            self._stream.close()
            _sync_folder(self._folder)
        self._destination.record(record)


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = format_bytes(shutil.disk_usage(folder if folder.exists() else folder.parent).free)
            message, hint = (
                f"The disk of {folder} is full ({free} free).",
                "Free some room and run the same command again.",
            )
        else:
            message = f"{folder} cannot be written: {error.strerror or error}."
            hint = "Check that the folder may be written, or choose another."
        raise DestinationError(message, hint) from error


def _write_all(stream: FileIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[stream.write(view) :]


def _is_inside(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and "\\" not in path


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_json(path: Path) -> Mapping[str, object]:
    try:
        document = json.loads(path.read_bytes()) if path.stat().st_size <= MAX_REPORT_BYTES else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _read_journal(path: Path) -> tuple[str | None, dict[str, ShardRecord]]:
    plan_id, records = None, {}
    with suppress(OSError, ValueError, TypeError, AttributeError):  # a kill may have cut the last line short
        first, *lines = path.read_bytes().splitlines()
        plan_id = json.loads(first).get("plan_id")
        for line in lines:
            record = ShardRecord(**json.loads(line))
            records[record.file] = record
    return plan_id, records
