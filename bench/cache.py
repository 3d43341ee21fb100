"""Bring the disk and its page cache into the same state before every run."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

_DROP = Path("/proc/sys/vm/drop_caches")
_CHUNK_BYTES = 4 << 20


def settle(outputs: Iterable[Path], sources: Iterable[Path], *, cold: bool) -> None:
    """Remove `outputs`, let the disk finish, then read `sources` into the page cache, or drop all of it if `cold`.

    Raises OSError where dropping is not permitted.
    """
    for output in outputs:
        shutil.rmtree(output, ignore_errors=True)
    os.sync()
    if cold:
        _DROP.write_text("1\n")
    else:
        for source in sources:
            _warm(source)


def _warm(folder: Path) -> None:
    buffer = bytearray(_CHUNK_BYTES)
    for path in sorted(folder.iterdir()):
        with open(path, "rb", buffering=0) as stream:
            while stream.readinto(buffer):
                pass
