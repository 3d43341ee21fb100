"""The state of disk, page cache and free memory that every run starts from."""

import mmap
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

_DROP = Path("/proc/sys/vm/drop_caches")
_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class State:
    """What is absent, what is in the page cache and how much free memory has been used before."""

    absent: tuple[Path, ...] = ()
    cached: tuple[Path, ...] = ()
    touched_bytes: int = 0
    cold: bool = False

    def restore(self) -> None:
        """Bring it about. Raises OSError where the page cache is to be dropped and that is not permitted."""
        for folder in self.absent:
            shutil.rmtree(folder, ignore_errors=True)
        os.sync()
        if self.cold:
            _DROP.write_text("1\n")
        _touch(min(self.touched_bytes, psutil.virtual_memory().available // 2))
        if not self.cold:
            for folder in self.cached:
                _read(folder)

    def __str__(self) -> str:
        """Return a sentence for the reader of a table."""
        parts = ["outputs removed, disk synced"] if self.absent else ["disk synced"]
        if self.cold:
            parts.append("page cache dropped")
        if self.touched_bytes:
            parts.append(
                f"{self.touched_bytes / 1e9:.1f} GB of memory used once and freed (at most half of what was available)"
            )
        if self.cached and not self.cold:
            parts.append("source in the page cache")
        return f"Before every run: {', '.join(parts)}."


def _touch(count: int) -> None:
    # A virtual machine hands free memory back to its host, and whoever uses it first pays for fetching it again:
    # a copy of 1.5 GB takes one second or five, depending on what ran before it.
    if count:
        with mmap.mmap(-1, count) as memory:
            memory[:: mmap.PAGESIZE] = bytes(len(range(0, count, mmap.PAGESIZE)))


def _read(folder: Path) -> None:
    buffer = bytearray(_CHUNK_BYTES)
    for path in sorted(folder.iterdir()):
        with open(path, "rb", buffering=0) as stream:
            while stream.readinto(buffer):
                pass
