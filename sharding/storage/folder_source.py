"""Open a folder that holds a checkpoint, and read any range of its bytes."""

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from stat import S_ISLNK, S_ISREG
from threading import Lock

import psutil
from typing_extensions import override

from sharding.core.errors import SourceError
from sharding.core.limits import BATCH_BYTES, JOIN_GAP_BYTES, MAX_FILES, MAX_HEADER_BYTES
from sharding.core.origin import Place
from sharding.core.protocols import LentFile, LentSource, Source
from sharding.core.text import name_problem, printable, shown_name
from sharding.core.values import FileEntry
from sharding.formats.names import LOADED, SAFETENSORS, STAGING_FOLDER, TRAINED
from sharding.formats.safetensors_file import LENGTH_BYTES

_NOT_REPO = {".git", ".cache", "__pycache__", STAGING_FOLDER}
"""Folders that tools keep beside a checkpoint. No repo has them."""

_AGAIN = "Wait until no program writes to it any more, then start again."
_COMPLETE = "If none does, download or copy the file again."

_STEADY = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay", "apfs", "hfs"}
"""Local file systems. Those of networks and in user space may change the numbers of their files at any time."""

_ENDS_BYTES = 64 << 10
"""How many bytes at both ends identify a file. A `.bin` file has its pickle and its directory there."""

_WEIGHTS = (*LOADED, *TRAINED, ".gguf")

_ANNEX = (".git", "annex", "objects")
"""The folder in which git-annex keeps large files. It leaves a link in place of each."""

_REPO = re.compile(r"(?:models|datasets|spaces)--.+")
_SHARED_BLOB = re.compile(r"(?P<start>[0-9a-f]{2})/(?P=start)[0-9a-f]{62}")
"""The Hub's cache: a repo's folder, a file that repos share (huggingface_hub 2.4, `utils/_shared_blobs.py`)."""

_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
"""Flags to follow no link, and not to wait if a pipe has replaced a file."""


class FolderSource(Source):
    """The files of a folder, each pinned to the state that it had when it was listed.

    The state is the file's size, the time of its last change and, on a file system that keeps inodes steady, the inode.
    A revision includes the time when the inode changed too, which no program sets, but a backup that links to it does.
    """

    requests = 0
    bytes_read = 0

    def __init__(
        self,
        name: str,
        paths: Mapping[str, Path],
        folder: Path | None = None,
        links_out: Iterable[str] = (),
        stated: Mapping[str, str] | None = None,
    ) -> None:
        """Take the files at `paths` (path within the source to place on disk) under the title `name`.

        `stated` has the SHA-256 that a Hub has stated for some of them. A place is an absolute path without links.
        Anything but a regular file is skipped. Raises SourceError, also for a name that is not allowed.
        """
        self.folder = folder
        self.links_out = tuple(sorted(links_out))
        self.batch_bytes, self.join_gap_bytes, self.ranges_at_once = BATCH_BYTES, JOIN_GAP_BYTES, 1
        self.is_private: bool | None = None
        self.unreached: tuple[str, ...] = ()
        self._lock = Lock()
        self._paths = paths
        self._is_steady = folder is not None and is_steady(folder)
        self._stats: dict[str, os.stat_result] = {}
        for file in (*paths, *self.links_out):
            if problem := name_problem(file):
                raise SourceError(f"The name of the file {shown_name(file)} {problem}.", "Rename or remove the file.")
        for file, path in paths.items():
            try:
                stat = path.lstat()
            except OSError as error:
                raise _cannot_read(str(path), error) from error
            if S_ISLNK(stat.st_mode):  # links in a circle
                raise _cannot_read(file, OSError(errno.ELOOP, os.strerror(errno.ELOOP)))
            if S_ISREG(stat.st_mode):
                self._stats[file] = stat
        self.files = tuple(
            FileEntry(file, stat.st_size, (stated or {}).get(file)) for file, stat in sorted(self._stats.items())
        )
        self.ref = Place("folder", printable(name), "")

    def revision(self) -> str:
        """Return a digest of the pinned states and the headers of its weight files. Raises SourceError."""
        pins = [
            (file, *self._pin(stat), self._header_sha256(file, stat.st_size))
            for file, stat in sorted(self._stats.items())
            if file.endswith(_WEIGHTS)
        ]
        return hashlib.sha256(json.dumps(pins).encode()).hexdigest()

    def _header_sha256(self, file: str, size: int) -> str:
        """Return the SHA-256 of a safetensors file's header, or of the first and last bytes of any other file."""
        sha256 = hashlib.sha256()
        end = min(size, _ENDS_BYTES)
        parts = [(0, end), (max(end, size - _ENDS_BYTES), size)]
        if file.endswith(SAFETENSORS):
            prefix = b"".join(self._read(file, 0, min(size, LENGTH_BYTES)))
            parts = [(0, min(size, LENGTH_BYTES + int.from_bytes(prefix, "little"), MAX_HEADER_BYTES))]
        for start, end in parts:
            for chunk in self._read(file, start, end):
                sha256.update(chunk)
        return sha256.hexdigest()

    def _pin(self, stat: os.stat_result) -> tuple[int, ...]:
        steady = (stat.st_ctime_ns, stat.st_ino) if self._is_steady else ()
        return (*_pin(stat), *steady)

    @override
    def path(self, file: str) -> Path:
        return self._paths[file]

    @override
    def closed(self) -> str:
        return ""

    @override
    def lend(self, files: Iterable[str]) -> LentSource:
        stats = [(file, self._stats[file]) for file in files]
        lent = (LentFile(file, stat.st_size, None, str(self._paths[file]), stat.st_mtime_ns) for file, stat in stats)
        return LentSource(self.ref, tuple(lent))

    def refuse_other(self, lent: LentSource) -> None:
        """Raise SourceError if a file is not the one that was `lent`, or no longer is."""
        for entry in lent.files:
            if _pin(self._stats[entry.file]) != (entry.bytes, entry.modified_ns):
                raise _changed(entry.file)

    @override
    def read(self, file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        with self._lock:
            self.requests += 1
            self.bytes_read += end_byte - start_byte
        yield from self._read(file, start_byte, end_byte)

    def _read(self, file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        try:
            with open(self._paths[file], "rb", buffering=0, opener=_over_no_link) as stream:
                now, then = os.fstat(stream.fileno()), self._stats[file]
                if _pin(now) != _pin(then) or (self._is_steady and now.st_ino != then.st_ino):
                    raise _changed(file)
                stream.seek(start_byte)
                while start_byte < end_byte:
                    chunk = stream.read(min(BATCH_BYTES, end_byte - start_byte))
                    if not chunk:
                        raise SourceError(f"{file} ends early, at byte {start_byte}.", f"{_AGAIN} {_COMPLETE}")
                    start_byte += len(chunk)
                    yield chunk
        except OSError as error:
            became_link = error.errno in (errno.ELOOP, errno.ENOTDIR)
            raise (_changed(file) if became_link else _cannot_read(file, error)) from error


def open_folder(text: str) -> FolderSource:
    """Return the source in the folder at the path `text`. Raises SourceError if there is no such folder."""
    hint = "Give the path of the folder that holds config.json and the weights."
    try:
        folder = Path(text).expanduser().resolve()
        if not text.strip() or not folder.is_dir():
            problem = "is a file, not a folder" if folder.is_file() else "does not exist"
            raise SourceError(f"The folder {text!r} {problem}.", hint)
    except (OSError, RuntimeError, ValueError) as error:  # no permission, too long a name, an unknown user's home
        raise SourceError(f"The folder {text!r} cannot be opened: {error}.", hint) from error
    source = FolderSource(folder.name or "root", *_list_folder(folder))
    source.ref = replace(source.ref, revision=source.revision())
    return source


def is_steady(folder: Path) -> bool:
    """Return whether the file system of `folder` keeps a file's inode as long as the file exists."""
    mounts = {Path(mount.mountpoint): mount.fstype for mount in psutil.disk_partitions(all=True)}
    return next((mounts[place] for place in (folder, *folder.parents) if place in mounts), "") in _STEADY


def _list_folder(folder: Path) -> tuple[dict[str, Path], Path, list[str], dict[str, str]]:
    """Return the places of the files in `folder`, itself, its links that are not followed, and stated SHA-256s."""
    paths: dict[str, Path] = {}
    links: list[str] = []
    stated: dict[str, str] = {}

    def refuse(error: OSError) -> None:
        raise _cannot_read(str(folder), error) from error

    for place, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = sorted(set(folders) - _NOT_REPO)
        start = Path(place).relative_to(folder)
        # Links to folders may loop.
        links += [f"{(start / name).as_posix()}/" for name in folders if os.path.islink(Path(place, name))]
        for file in files:
            path, name = Path(place, file), (start / file).as_posix()
            end = Path(os.path.realpath(path)) if path.is_symlink() else path
            if end is path or _is_followed(end, folder):
                paths[name] = end
                if end is not path and name.endswith(_WEIGHTS) and (sha256 := _blob_of(path)):
                    stated[name] = sha256
            else:
                links.append(name)
        if len(paths) + len(links) > MAX_FILES:
            raise SourceError(f"{folder} holds more than {MAX_FILES} files.", "Give the folder of one checkpoint.")
    return paths, folder, links, stated


def _is_followed(end: Path, folder: Path) -> bool:
    """Return whether a link may end at `end`: inside `folder`, or in the blobs of the Hub cache around it."""
    if end.is_relative_to(folder):
        parts = end.relative_to(folder).parts
        return not _NOT_REPO & set(parts[len(_ANNEX) :] if parts[: len(_ANNEX)] == _ANNEX else parts)
    snapshots = (place.parent for place in (folder, *folder.parents) if place.parent.name == "snapshots")
    repo = next((place.parent for place in snapshots if _REPO.fullmatch(place.parent.name)), None)
    if repo is None:
        return False
    shared = repo.parent / "blobs"
    is_shared = end.is_relative_to(shared) and _SHARED_BLOB.fullmatch(end.relative_to(shared).as_posix()) is not None
    return end.parent == repo / "blobs" or is_shared


def _blob_of(link: Path) -> str:
    """Return the SHA-256 by which the Hub's client names the file behind a link in its cache, or ""."""
    end = Path(os.readlink(link))
    return end.name if end.parent.name == "blobs" and re.fullmatch("[0-9a-f]{64}", end.name) else ""


def _over_no_link(path: str, _: int) -> int:
    """Open the file at the absolute `path` to read it. Raises OSError if a part of `path` is a link."""
    *folders, file = Path(path).parts
    place = os.open(folders[0], _FOLDER)
    try:
        for name in folders[1:]:
            above, place = place, os.open(name, _FOLDER, dir_fd=place)
            os.close(above)
        return os.open(file, _FILE, dir_fd=place)
    finally:
        os.close(place)


def _pin(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_size, stat.st_mtime_ns


def _changed(file: str) -> SourceError:
    return SourceError(f"{file} changed while it was being read.", _AGAIN)


def _cannot_read(file: str, error: OSError) -> SourceError:
    return SourceError(f"{file} cannot be read: {error.strerror or error}.", "Check that it exists and is readable.")
