"""Limit the memory of a child process that builds the model of a stranger's config.json."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sharding.core.errors import is_lack_of_memory

# Memory that loading a model may take on top of its libraries: these bytes, more for each byte of its weight files
# (enough for 4 bits that become 32), and for the threads of each processor core.
LOAD_MEMORY_BYTES = 4_000_000_000
LOAD_MEMORY_FACTOR = 10
CORE_MEMORY_BYTES = 128 << 20

_MAPPED = Path("/proc/self/statm")


@contextmanager
def memory_allowance(more_bytes: int) -> Iterator[None]:
    """Let this process map `more_bytes` more than now, else raise MemoryError. Import libraries first. Linux only."""
    if not _MAPPED.exists():
        yield
        return
    before, most = resource.getrlimit(resource.RLIMIT_AS)
    limit = int(_MAPPED.read_text().split()[0]) * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (min([limit, *(end for end in (before, most) if end >= 0)]), most))
    try:
        yield
    except Exception as error:
        if not is_lack_of_memory(error):
            raise
        raise MemoryError("The model takes more memory than allowed.") from None
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, most))


def load_allowance(folder: Path) -> int:
    """Return how many bytes a process may map to load the checkpoint in `folder`, whatever its config.json claims."""
    stored = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    return LOAD_MEMORY_BYTES + LOAD_MEMORY_FACTOR * stored + CORE_MEMORY_BYTES * (os.cpu_count() or 1)
