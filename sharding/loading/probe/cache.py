"""Drop the files of a checkpoint from the page cache, and check whether they are gone."""

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

_COLD = 0.05
"""Largest share of the pages of a file in memory at which it still counts as cold."""


def drop(files: Iterable[Path]) -> str:
    """Drop `files` from the page cache; return "cold", or "warm" with the reason.

    posix_fadvise(2) with POSIX_FADV_DONTNEED needs no rights. It drops clean pages that no process has mapped.
    """
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
    """Return the share of a file's pages that are in the page cache: mincore(2), which reads none of them.

    preadv2(2) with RWF_NOWAIT would start to read the page, and on a fast disk it would find its own page.
    """
    size = os.fstat(descriptor).st_size
    if not size:
        return 0.0
    with mmap.mmap(descriptor, size, mmap.MAP_PRIVATE) as mapped:
        pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        start = ctypes.c_char.from_buffer(mapped)
        code = ctypes.CDLL(None).mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), pages)
        del start  # a mapping with a pointer to it cannot be closed
        return sum(page & 1 for page in pages) / len(pages) if code == 0 else 0.0
