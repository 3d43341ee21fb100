"""Drop a checkpoint's files from the page cache, and tell whether they are gone."""

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

_COLD = 0.05
"""A file is cold when at most this share of its pages is in memory."""


def drop(files: Iterable[Path]) -> str:
    """Drop `files`; return "cold", or a sentence that says why they are not.

    posix_fadvise(2) with POSIX_FADV_DONTNEED needs no rights, and drops clean pages that nobody has mapped.
    """
    if not hasattr(os, "posix_fadvise"):
        return "warm: this system has no posix_fadvise to drop a file from the page cache"
    kept = 0
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # dirty pages stay
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            kept += _share_in_memory(descriptor) > _COLD
        finally:
            os.close(descriptor)
    return f"warm: {kept} files stayed in the page cache, as somebody else uses them" if kept else "cold"


def _share_in_memory(descriptor: int) -> float:
    """Return the share of a file's pages that are in the page cache: mincore(2), which reads none of them.

    Asking with preadv2(2) and RWF_NOWAIT begins to read the page, and on a quick disk finds what it has fetched itself.
    """
    size = os.fstat(descriptor).st_size
    if not size:
        return 0.0
    with mmap.mmap(descriptor, size, mmap.MAP_PRIVATE) as mapped:
        pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        start = ctypes.c_char.from_buffer(mapped)
        code = ctypes.CDLL(None).mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), pages)
        del start  # a mapping that is still pointed to cannot be closed
        return sum(page & 1 for page in pages) / len(pages) if code == 0 else 0.0
