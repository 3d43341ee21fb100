"""Limit the memory of one process, and drop the files of a checkpoint from the page cache.

A limit is a memory cgroup (v1) if one can be created, else RLIMIT_DATA. The cgroup counts the page cache too, which the
kernel drops before it kills. RLIMIT_DATA counts private writable mappings, such as weights that torch maps, even if
nobody touches them. So a load that passes under it fits into memory, and one that fails might still fit.
"""

import ctypes
import mmap
import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

_MOUNT = Path("/sys/fs/cgroup/memory")
_COLD = 0.05  # Largest share of the pages of a file in memory at which it still counts as cold.


class Cap(NamedTuple):
    """A limit that is in force. `by` is its kind. The new process calls `enter` before its program starts."""

    by: str
    enter: Callable[[], object]
    folder: Path | None = None

    @property
    def anon_bytes(self) -> int | None:
        """Anonymous memory that the cgroup counts now; None without a cgroup."""
        lines = (self.folder / "memory.stat").read_text().splitlines() if self.folder else []
        return next((int(line.split()[1]) for line in lines if line.startswith("rss ")), None)


@contextmanager
def memory_cap(limit_bytes: int, by: str | None) -> Iterator[Cap]:
    """Yield a cap of `limit_bytes`. `by` is "cgroup", "rlimit" or None for either. Raises OSError if that fails."""
    folder = None
    if by != "rlimit":
        try:
            folder = _make_cgroup(limit_bytes)
        except OSError:
            if by == "cgroup":
                raise
    if folder is None:
        limits = (limit_bytes, limit_bytes)
        yield Cap("RLIMIT_DATA", lambda: resource.setrlimit(resource.RLIMIT_DATA, limits))
        return
    try:
        tasks = folder / "cgroup.procs"
        yield Cap("memory cgroup", lambda: tasks.write_text(str(os.getpid())), folder)
    finally:
        for _ in range(100):  # a killed process may still be leaving
            with suppress(OSError):
                folder.rmdir()
                break
            time.sleep(0.02)


def _make_cgroup(limit_bytes: int) -> Path:
    folder = _own() / f"probe-{os.getpid()}"
    folder.mkdir()
    try:
        (folder / "memory.limit_in_bytes").write_text(str(limit_bytes))
        with suppress(FileNotFoundError):  # on a kernel without accounting of swap
            (folder / "memory.memsw.limit_in_bytes").write_text(str(limit_bytes))
    except OSError:
        folder.rmdir()
        raise
    return folder


def _own() -> Path:
    """Return the memory cgroup of this process (cgroups(7)). Its limits also apply to cgroups inside it."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(",") and (_MOUNT / path.lstrip("/")).is_dir():
            return _MOUNT / path.lstrip("/")
    if not (_MOUNT / "memory.limit_in_bytes").exists():
        raise FileNotFoundError(f"{_MOUNT} is not a memory cgroup of version 1")
    return _MOUNT


def drop(files: Iterable[Path]) -> str:
    """Drop `files` from the page cache (posix_fadvise(2) needs no rights); return "cold", or "warm" with the reason."""
    if not hasattr(os, "posix_fadvise"):
        return "warm: this system cannot drop a file from the page cache (it has no posix_fadvise)"
    kept = 0
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # the next call drops no dirty pages
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            kept += _share_in_memory(descriptor) > _COLD
        finally:
            os.close(descriptor)
    return f"warm: {kept} files stayed in the page cache, because other processes use them" if kept else "cold"


def _share_in_memory(descriptor: int) -> float:
    # mincore(2) reads no page; preadv2(2) with RWF_NOWAIT would start to, and on a fast disk find its own page.
    size = os.fstat(descriptor).st_size
    if not size:
        return 0.0
    with mmap.mmap(descriptor, size, mmap.MAP_PRIVATE) as mapped:
        pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        start = ctypes.c_char.from_buffer(mapped)
        code = ctypes.CDLL(None).mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), pages)
        del start  # a mapping with a pointer to it cannot be closed
        return sum(page & 1 for page in pages) / len(pages) if code == 0 else 0.0
