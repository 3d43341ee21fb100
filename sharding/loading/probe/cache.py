"""Drop a checkpoint's files from the page cache, and tell whether they are gone."""

import os
from collections.abc import Iterable
from pathlib import Path

_PROBES = 16


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
            kept += _is_cached(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)  # what looking has fetched
        finally:
            os.close(descriptor)
    return f"warm: {kept} files stayed in the page cache, as somebody else uses them" if kept else "cold"


def _is_cached(descriptor: int) -> bool:
    """Return whether more than half of a few places of a file are in the page cache: preadv2(2) with RWF_NOWAIT."""
    size = os.fstat(descriptor).st_size
    found = 0
    for number in range(_PROBES):
        try:
            os.preadv(descriptor, [bytearray(1)], size * number // _PROBES, os.RWF_NOWAIT)
            found += 1
        except BlockingIOError:
            pass
        except OSError:  # a file system without it
            return False
    return 2 * found > _PROBES
