"""Open a folder that holds a checkpoint, and read any range of its bytes."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from stat import S_ISREG
from threading import Lock

import psutil

from sharding.core.errors import SourceError
from sharding.core.lent import LentFile, LentSource
from sharding.core.limits import BATCH_BYTES, JOIN_GAP_BYTES, MAX_FILES, MAX_HEADER_BYTES
from sharding.core.text import name_problem, printable, shown_name
from sharding.core.values import FileEntry, RepoRef
from sharding.formats.names import DCP_METADATA_NAME, ENTRANCES, STAGING_FOLDER, is_weights
from sharding.formats.safetensors_header import LENGTH_BYTES

_NOT_REPO = {".git", ".cache", "__pycache__", STAGING_FOLDER}
"""Folders that tools keep beside a checkpoint; no repo has them."""

_AGAIN = "Start again once nothing writes to it any more."

_STEADY = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay", "apfs", "hfs"}
"""File systems of a machine's own; those of networks and in user space may number their files anew at any time."""

_ENDS_BYTES = 64 << 10
"""How much of the two ends of a file tells it from another: a `.bin` file has its pickle and its directory there."""

_WEIGHTS = (".safetensors", ".bin", ".distcp", DCP_METADATA_NAME)


_READ_FIRST = {"config.json", *ENTRANCES, DCP_METADATA_NAME}
"""Files that say what the weights are: without one of them a checkpoint would be read as another one."""

_FOLLOWED = "Put the file itself in its place: only links within the folder, and those of a Hub's cache, are followed."


class FolderSource:
    """The files of a folder, each pinned to the state that it had when it was listed. See `protocols.Source`.

    That is its size and the time of its last change; where the file system keeps it steady, also its inode. A revision
    has the time when that was changed too, which no program sets, but a backup that links to the file changes.
    """

    def __init__(
        self, name: str, paths: Mapping[str, Path], folder: Path | None = None, links_out: tuple[str, ...] = ()
    ) -> None:
        """Take the files at `paths` (path within the source to place on disk) under the title `name`.

        What is no regular file is passed over. Raises SourceError where one cannot be looked at.
        """
        self.folder = folder
        self.links_out = links_out
        self.batch_bytes = BATCH_BYTES
        self.join_gap_bytes = JOIN_GAP_BYTES
        self.ranges_at_once = 1
        self.is_private: bool | None = None
        self.unreached: tuple[str, ...] = ()
        self.requests = 0
        self.bytes_read = 0
        self._lock = Lock()
        self._paths = paths
        self._is_steady = folder is not None and is_steady(folder)
        self._stats: dict[str, os.stat_result] = {}
        for file, path in paths.items():
            if problem := name_problem(file):
                raise SourceError(f"The name of the file {shown_name(file)} {problem}.", "Rename or remove it.")
            try:
                stat = path.stat()
            except OSError as error:
                raise _cannot_read(str(path), error) from error
            if S_ISREG(stat.st_mode):
                self._stats[file] = stat
        self.files = tuple(FileEntry(file, stat.st_size) for file, stat in sorted(self._stats.items()))
        self.ref = RepoRef("folder", printable(name), "")

    def revision(self) -> str:
        """Return a digest of what its weight files are pinned to, and of their headers. Raises SourceError."""
        pins = [
            (file, *self._pin(stat), self._header_sha256(file, stat.st_size))
            for file, stat in sorted(self._stats.items())
            if file.endswith(_WEIGHTS)
        ]
        return hashlib.sha256(json.dumps(pins).encode()).hexdigest()

    def _header_sha256(self, file: str, size: int) -> str:
        """Return the SHA-256 of the header of a safetensors file; of another, of its first and last bytes."""
        sha256 = hashlib.sha256()
        end = min(size, _ENDS_BYTES)
        parts = [(0, end), (max(end, size - _ENDS_BYTES), size)]
        if file.endswith(".safetensors"):
            prefix = b"".join(self._read(file, 0, min(size, LENGTH_BYTES)))
            parts = [(0, min(size, LENGTH_BYTES + int.from_bytes(prefix, "little"), MAX_HEADER_BYTES))]
        for start, end in parts:
            for chunk in self._read(file, start, end):
                sha256.update(chunk)
        return sha256.hexdigest()

    def _pin(self, stat: os.stat_result) -> tuple[int, ...]:
        steady = (stat.st_ctime_ns, stat.st_ino) if self._is_steady else ()
        return (*_pin(stat), *steady)

    def path(self, file: str) -> Path:
        """Return where `file` lies on this disk."""
        return self._paths[file]

    def closed(self) -> str:
        """Return "": a folder is in no repo."""
        return ""

    def lend(self, files: Iterable[str]) -> LentSource:
        """Return where `files` lie, on a machine that has the same folders, and the time that each is pinned to."""
        stats = [(file, self._stats[file]) for file in files]
        lent = (LentFile(file, stat.st_size, None, str(self._paths[file]), stat.st_mtime_ns) for file, stat in stats)
        return LentSource(self.ref, tuple(lent))

    def refuse_other(self, lent: LentSource) -> None:
        """Raise SourceError where a file is not, or no longer, the one that was `lent`."""
        for one in lent.files:
            if _pin(self._stats[one.file]) != (one.bytes, one.modified_ns):
                raise _changed(one.file)

    def read(self, file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        """Yield the bytes `[start_byte, end_byte)` of `file` in chunks of at most `BATCH_BYTES`.

        Raises SourceError when the file has changed since it was listed or cannot be read.
        """
        with self._lock:
            self.requests += 1
            self.bytes_read += end_byte - start_byte
        yield from self._read(file, start_byte, end_byte)

    def _read(self, file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        try:
            with open(self._paths[file], "rb", buffering=0) as stream:
                now, then = os.fstat(stream.fileno()), self._stats[file]
                if _pin(now) != _pin(then) or (self._is_steady and now.st_ino != then.st_ino):
                    raise _changed(file)
                stream.seek(start_byte)
                while start_byte < end_byte:
                    chunk = stream.read(min(BATCH_BYTES, end_byte - start_byte))
                    if not chunk:
                        raise SourceError(f"{file} ends early, at byte {start_byte}.", _AGAIN)
                    start_byte += len(chunk)
                    yield chunk
        except OSError as error:
            raise _cannot_read(file, error) from error


def open_folder(text: str) -> FolderSource:
    """Return the source in the folder at the path `text`. Raises SourceError if it is not there."""
    hint = "Give the path of the folder that holds config.json and the weights."
    try:
        folder = Path(text).expanduser().resolve()
        if not text.strip() or not folder.is_dir():
            problem = "is a file, not a folder" if folder.is_file() else "is not there"
            raise SourceError(f"The folder {text!r} {problem}.", hint)
    except (OSError, RuntimeError, ValueError) as error:  # no permission, a name too long, no such user's home
        raise SourceError(f"The folder {text!r} cannot be opened: {error}.", hint) from error
    source = FolderSource(folder.name, *_list_folder(folder))
    source.ref = replace(source.ref, revision=source.revision())
    return source


def is_steady(folder: Path) -> bool:
    """Return whether the file system of `folder` keeps a file's inode as long as the file is there."""
    mounts = {Path(mount.mountpoint): mount.fstype for mount in psutil.disk_partitions(all=True)}
    return next((mounts[place] for place in (folder, *folder.parents) if place in mounts), "") in _STEADY


def _list_folder(folder: Path) -> tuple[dict[str, Path], Path, tuple[str, ...]]:
    """Return where each file of `folder` lies over all links, `folder` itself, and links in it that are not followed.

    Raises SourceError where such a link stands for a file that the checkpoint is read from.
    """
    paths, out = dict[str, Path](), list[str]()

    def refuse(error: OSError) -> None:
        raise _cannot_read(str(folder), error) from error

    # Links to folders are not followed: they may loop.
    for place, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = sorted(set(folders) - _NOT_REPO)
        for name in files:
            file, end = _look(folder, Path(place, name))
            if end is None and (is_weights(file) or name in _READ_FIRST):
                raise SourceError(f"{file} is a link that leads out of the folder.", _FOLLOWED)
            if end is None:
                out.append(file)
            else:
                paths[file] = end
        out += [file for file, end in (_look(folder, Path(place, name)) for name in folders) if end is None]
        if len(paths) > MAX_FILES:
            raise SourceError(f"{folder} holds more than {MAX_FILES} files.", "Give the folder of one checkpoint.")
    return paths, folder, tuple(out)


def _look(folder: Path, path: Path) -> tuple[str, Path | None]:
    """Return the name of `path` in `folder`, and where it leads over all links: None where that is outside of it."""
    end = path
    if path.is_symlink():
        with suppress(OSError, RuntimeError):  # links in a circle: whoever opens it learns so
            end = path.resolve()
    return path.relative_to(folder).as_posix(), end if _is_within(end, folder) else None


def _is_within(end: Path, folder: Path) -> bool:
    """Return whether `end` lies in `folder`, or where a Hub's cache keeps the bytes of that very repo.

    Such a folder is `models--owner--name/snapshots/COMMIT`, or one in it; the bytes are in `models--owner--name/blobs`.
    """
    if end.is_relative_to(folder):
        return True
    snapshots = next((place for place in folder.parents if place.name == "snapshots"), None)
    blobs = snapshots.parent / "blobs" if snapshots else None
    return blobs is not None and not blobs.is_symlink() and end.is_relative_to(blobs)


def _pin(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_size, stat.st_mtime_ns


def _changed(file: str) -> SourceError:
    return SourceError(f"{file} changed while it was being read.", _AGAIN)


def _cannot_read(file: str, error: OSError) -> SourceError:
    return SourceError(f"{file} cannot be read: {error.strerror or error}.", "Check that it is there and may be read.")
