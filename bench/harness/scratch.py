"""A folder for the data of one benchmark, on a disk with room for it."""

import argparse
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


def benchmark_arguments(description: str | None, pairs: int = 5) -> argparse.ArgumentParser:
    """Return a parser that knows the options which all benchmarks have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--folder", type=Path, help="where scratch data goes until the end (default: temporary)")
    parser.add_argument("--pairs", type=int, default=pairs, help=f"rounds in which all take turns (default: {pairs})")
    parser.add_argument("--note", action="store_true", help="put the outcome into bench/RESULTS.md")
    return parser


@contextmanager
def scratch(folder: Path | None, needed_bytes: int) -> Iterator[Path]:
    """Yield a new folder inside `folder`, removed at the end. Exits where the disk lacks `needed_bytes`."""
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="bench-", dir=folder, ignore_cleanup_errors=True) as place:
        free_bytes = shutil.disk_usage(place).free
        if free_bytes < needed_bytes:
            raise SystemExit(
                f"This takes {needed_bytes / 1e9:.1f} GB of scratch data and there are {free_bytes / 1e9:.1f} GB free; "
                "choose another --folder, or a smaller size."
            )
        yield Path(place)
