"""Re-shard the tutorials' way: load the whole model in a child process and save it again."""

import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryFile

from sharding.costs import ClassicCost
from sharding.errors import SourceError
from sharding.limits import DISK_FLOOR_BYTES, MEMORY_SHARE, child_variables, format_bytes
from sharding.measure import free_memory_bytes
from sharding.meter import anon_bytes

_SAMPLE_SECONDS = 0.02


def refuse_too_large(needed_memory_bytes: int, needed_disk_bytes: int, place: Path) -> None:
    """Raise SourceError, with the figures, where a model does not fit into memory or its files onto the disk."""
    free_bytes = int(MEMORY_SHARE * free_memory_bytes())
    if needed_memory_bytes > free_bytes:
        raise SourceError(
            f"The classic engine would need about {format_bytes(needed_memory_bytes)} of memory for this model, and "
            f"{format_bytes(free_bytes)} can be used here.",
            "The stream engine needs no more than a few blocks: leave --engine out.",
        )
    free_bytes = shutil.disk_usage(place).free - DISK_FLOOR_BYTES
    if needed_disk_bytes > free_bytes:
        raise SourceError(
            f"The classic engine would need {format_bytes(needed_disk_bytes)} on the disk for its copies, and "
            f"{format_bytes(free_bytes)} are free.",
            "The stream engine keeps no copy: leave --engine out.",
        )


def run_classic(folder: Path, out: Path, max_shard_bytes: int, dtype: str) -> ClassicCost:
    """Load the checkpoint in `folder`, save it in `out`, load that again. Raises SourceError where that fails."""
    started = time.monotonic()
    command = [sys.executable, "-m", "sharding.tutorial", str(folder), str(out), str(max_shard_bytes), dtype]
    # Into a file: what nobody reads would fill a pipe, and the child would wait for ever.
    with TemporaryFile() as errors:
        variables, nothing = child_variables(), subprocess.DEVNULL
        with subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=errors, env=variables) as process:
            peak_bytes = 0
            try:
                while process.poll() is None:
                    peak_bytes = max(peak_bytes, anon_bytes(process.pid))
                    time.sleep(_SAMPLE_SECONDS)
            finally:
                process.kill()
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip().splitlines()
    if process.returncode:
        reason = said[-1][:500] if said else f"it ended with {process.returncode}"
        raise SourceError(f"The classic engine cannot do this checkpoint: {reason}", "Leave --engine out.")
    written_bytes = sum(path.stat().st_size for path in out.iterdir())
    return ClassicCost(time.monotonic() - started, peak_bytes, written_bytes)
