"""Make a memory cgroup (v1) for one command, where that can be done."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup/memory")


@dataclass(frozen=True, slots=True)
class MemoryCgroup:
    """A cgroup that is there now."""

    folder: Path

    @property
    def peak_bytes(self) -> int:
        """The most it was ever charged with: anonymous memory, page cache and kernel memory together."""
        return int((self.folder / "memory.max_usage_in_bytes").read_text())

    def enter(self, command: tuple[str, ...]) -> tuple[str, ...]:
        """Return `command` preceded by a shell that moves itself into the cgroup and then becomes it."""
        return "/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.folder / "cgroup.procs"), *command


@contextmanager
def memory_cgroup(limit_bytes: int | None = None) -> Iterator[MemoryCgroup]:
    """Yield a new cgroup inside this process's own, with a limit on memory and swap together if one is given.

    Raises OSError where it cannot be made: no cgroup v1, or no permission.
    """
    folder = _own() / f"bench-{os.getpid()}"
    folder.mkdir()
    try:
        if limit_bytes is not None:
            (folder / "memory.limit_in_bytes").write_text(str(limit_bytes))
            with suppress(FileNotFoundError):  # a kernel that does not account for swap
                (folder / "memory.memsw.limit_in_bytes").write_text(str(limit_bytes))
        yield MemoryCgroup(folder)
    finally:
        folder.rmdir()


def reason_for_none() -> str | None:
    """Return why no memory cgroup can be made here, None if one can."""
    try:
        with memory_cgroup():
            return None
    except OSError as error:
        return f"{error.strerror}: {error.filename}"


def _own() -> Path:
    """Return this process's own cgroup (cgroups(7)): limits that were set on it hold for what is made inside."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(",") and (_MOUNT / path.lstrip("/")).is_dir():
            return _MOUNT / path.lstrip("/")
    return _MOUNT
