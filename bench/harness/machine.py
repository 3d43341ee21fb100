"""Name the machine, and the versions, that figures were measured with."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

import psutil


def describe_machine(folder: Path, libraries: tuple[str, ...]) -> str:
    """Return one line: processor, cores, memory, kernel, file system of `folder`, Python, `libraries`."""
    return "; ".join(
        [
            f"{_processor()}, {psutil.cpu_count()} cores ({len(os.sched_getaffinity(0))} for this process)",
            f"{_gib(psutil.virtual_memory().total)} of memory, {_gib(psutil.swap_memory().total)} of swap",
            f"{platform.system()} {platform.release()}",
            _filesystem(folder),
            f"Python {platform.python_version()}",
            ", ".join(f"{library} {version(library)}" for library in libraries),
        ]
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _filesystem(folder: Path) -> str:
    place = folder.resolve()
    mounts = [mount for mount in psutil.disk_partitions(all=True) if place.is_relative_to(mount.mountpoint)]
    innermost = max(mounts, key=lambda mount: len(mount.mountpoint))
    return str(innermost.fstype)


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
