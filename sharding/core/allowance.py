"""Hold a process that builds what a stranger's config.json describes to an amount of memory. A child's only."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sharding.core.errors import is_lack_of_memory
from sharding.core.limits import CORE_MEMORY_BYTES, LOAD_MEMORY_BYTES, LOAD_MEMORY_FACTOR

_MAPPED = Path("/proc/self/statm")


@contextmanager
def memory_allowance(more_bytes: int) -> Iterator[None]:
    """Let this process map at most `more_bytes` beyond what it has mapped; raise MemoryError where it needs more.

    Libraries are imported before: those for GPUs map tens of gigabytes and use few. Linux only (setrlimit(2),
    RLIMIT_AS): macOS does not hold a process to such a limit.
    """
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
        raise MemoryError("It takes more memory than allowed.") from None
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, most))


def load_allowance(folder: Path) -> int:
    """Return what a process may map to load the checkpoint in `folder`: by its files, whatever its config.json says."""
    stored = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    return LOAD_MEMORY_BYTES + LOAD_MEMORY_FACTOR * stored + CORE_MEMORY_BYTES * (os.cpu_count() or 1)
