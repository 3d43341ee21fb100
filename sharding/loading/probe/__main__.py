"""Load checkpoints, each in a process of its own, and print the cost of each as a line of JSON.

Several are loaded in forks of this process, which imports once, and whose figures begin with the fork.

A limit is a memory cgroup (v1) if one can be created, else RLIMIT_DATA. The cgroup counts the page cache too, which the
kernel drops before it kills. RLIMIT_DATA counts private writable mappings, such as weights that torch maps, even if
nobody touches them. So a load that passes under it fits into memory, and one that fails might still fit.
"""

import ctypes
import json
import mmap
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

import psutil

from sharding.core.environment import child_command, child_variables
from sharding.loading.probe import child

_SAMPLE_SECONDS = 0.015
_LONGEST_SECONDS = 3600.0
_WEIGHTS = (".safetensors", ".bin")
_MOUNT = Path("/sys/fs/cgroup/memory")
_COLD = 0.05  # Largest share of the pages of a file in memory at which it still counts as cold.


class Cap(NamedTuple):
    """A limit that is in force. `by` is its kind. The new process calls `enter` before its program starts."""

    by: str
    enter: Callable[[], object]
    folder: Path | None = None

    @property
    def anon_bytes(self) -> int | None:
        """Anonymous memory that the cgroup counts now; None without a cgroup."""
        lines = (self.folder / "memory.stat").read_text().splitlines() if self.folder else []
        return next((int(line.split()[1]) for line in lines if line.startswith("rss ")), None)


def main() -> None:
    """Probe all folders as the last argument says: `measure.Load` as JSON. A load that fails is an answer too."""
    *folders, how = sys.argv[1:]
    asked: dict[str, Any] = json.loads(how)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the process that loads ends too
    import_seconds, started = None, time.monotonic()
    if len(folders) > 1 and not asked["memory_limit_bytes"] and sys.platform == "linux":
        child.import_libraries()
        import_seconds = time.monotonic() - started
    for folder in folders:
        print(json.dumps(watch(Path(folder), asked, import_seconds)), flush=True)


def watch(folder: Path, asked: dict[str, Any], import_seconds: float | None = None) -> dict[str, Any]:
    """Load `folder` as `asked` in a new process, a fork if `import_seconds` (of imports here) is given; return facts,
    cost and memory over time. A limit can be `limit_by` a "cgroup" or an "rlimit"; else by what can be made."""
    cache = drop(path for path in folder.iterdir() if path.name.endswith(_WEIGHTS)) if asked["cold"] else "warm"
    with ExitStack() as stack:
        cap = None
        if asked["memory_limit_bytes"]:
            cap = stack.enter_context(memory_cap(asked["memory_limit_bytes"], asked.get("limit_by")))
        errors = stack.enter_context(TemporaryFile())
        reading, writing = os.pipe()
        order = json.dumps({**asked, "folder": str(folder), "said": writing})
        started = time.monotonic()
        process = _start(order, writing, errors.fileno(), cap, import_seconds is not None)
        os.close(writing)
        samples, timed_out, ended = _Samples(process, started, cap), False, (0, 0)
        try:
            while not ended[0]:
                samples.take()
                timed_out = time.monotonic() - started > _LONGEST_SECONDS
                if timed_out:
                    os.kill(process, signal.SIGKILL)
                time.sleep(_SAMPLE_SECONDS)
                ended = os.waitpid(process, os.WNOHANG)
        finally:
            if not ended[0]:
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
        status = os.waitstatus_to_exitcode(ended[1])
        with open(reading) as pipe:
            lines = [json.loads(line) for line in pipe.read().splitlines()]
        errors.seek(0)
        tail = errors.read()[-2000:].decode(errors="replace").strip()
    facts = {key: fact for line in lines for key, fact in line.items() if key not in ("phase", "at")}
    phases: dict[str, float] = {line["phase"]: line["at"] for line in lines if "phase" in line}
    spans = {name: later - at for (name, at), (_, later) in pairwise(phases.items())}
    if import_seconds is not None:
        spans["import"] = import_seconds
    first = next(iter(phases.values()), 0.0)
    if "outcome" not in facts:
        phase = repr(["start", *phases][-1])
        facts |= {"outcome": "failed", "message": f"It ended with status {status} in the phase {phase}: {tail[-500:]}"}
        if timed_out:
            facts["message"] = f"It took too long in the phase {phase}."
        elif status == -signal.SIGKILL:
            facts["outcome"] = "out-of-memory"
            facts["message"] = f"It used too much memory in the phase {phase}, so the kernel killed it."
    facts |= {"method": asked["method"], "dtype_asked": asked["dtype"], "cache": cache}
    facts["memory_limited_by"] = cap.by if cap else None
    facts["seconds"] = {"start": first - started if phases else samples.last, **spans, "total": samples.last}
    return {**facts, **samples.results(phases.get("load", started))}


def _start(order: str, writing: int, errors: int, cap: Cap | None, is_fork: bool) -> int:
    """Start a process that loads: a fork of this one, or a new interpreter. Return its id."""
    if process := os.fork():
        return process
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), errors, errors)):
            os.dup2(file, number)
        if cap:
            cap.enter()
        if is_fork:
            child.load(json.loads(order))
            os._exit(0)
        os.set_inheritable(writing, True)
        command = child_command("sharding.loading.probe.child", order)
        os.execve(command[0], command, child_variables())
    finally:
        traceback.print_exc()
        os._exit(1)


class _Samples:
    def __init__(self, pid: int, started: float, cap: Cap | None) -> None:
        self._process, self._status = psutil.Process(pid), Path(f"/proc/{pid}/status")
        self._has_proc, self._started, self._cap = self._status.exists(), started, cap
        self._curve: list[tuple[float, int, int, int]] = []
        self._peak_cgroup = self._peak_kernel = 0
        self.last = 0.0

    def take(self) -> None:
        """Record the current anonymous, file-mapped and total memory."""
        try:
            anon, file, total = self._from_proc() if self._has_proc else self._from_psutil()
        except (OSError, LookupError, psutil.Error):  # it has just ended
            return
        self.last = time.monotonic() - self._started
        self._curve.append((round(self.last, 4), anon, file, total))
        if self._cap:
            self._peak_cgroup = max(self._peak_cgroup, self._cap.anon_bytes or 0)

    def results(self, since: float) -> dict[str, Any]:
        """Return the peaks, and the curve from `since` on: seconds, anonymous, file-mapped and total bytes."""
        late = since - self._started
        anon, file, total = (max((row[column] for row in self._curve), default=0) for column in (1, 2, 3))
        return {
            "peak_anon_bytes": anon,
            "peak_file_bytes": file,
            "peak_total_bytes": max(total, self._peak_kernel),
            "cgroup_peak_anon_bytes": self._peak_cgroup or None,
            "curve": [(round(at - late, 4), *sizes) for at, *sizes in self._curve if at >= late],
        }

    def _from_proc(self) -> tuple[int, int, int]:
        # proc(5): the kernel cannot drop RssAnon and read it again. VmHWM is the kernel's own peak of the sum. It also
        # counts memory that comes and goes between two samples.
        lines = (line.partition(":") for line in self._status.read_text().splitlines() if " kB" in line)
        sizes = {key: int(rest.split()[0]) * 1024 for key, _, rest in lines}
        self._peak_kernel = max(self._peak_kernel, sizes["VmHWM"])
        return sizes["RssAnon"], sizes["RssFile"], sizes["RssAnon"] + sizes["RssFile"] + sizes["RssShmem"]

    def _from_psutil(self) -> tuple[int, int, int]:
        total = int(self._process.memory_info().rss)
        try:
            anon = int(self._process.memory_full_info().uss)
        except psutil.AccessDenied:  # macOS shows it only to root
            anon = total
        return anon, total - anon, total


@contextmanager
def memory_cap(limit_bytes: int, by: str | None) -> Iterator[Cap]:
    """Yield a cap of `limit_bytes`. `by` is "cgroup", "rlimit" or None for either. Raises OSError if that fails."""
    folder = None
    if by != "rlimit":
        try:
            folder = _make_cgroup(limit_bytes)
        except OSError:
            if by == "cgroup":
                raise
    if folder is None:
        limits = (limit_bytes, limit_bytes)
        yield Cap("RLIMIT_DATA", lambda: resource.setrlimit(resource.RLIMIT_DATA, limits))
        return
    try:
        tasks = folder / "cgroup.procs"
        yield Cap("memory cgroup", lambda: tasks.write_text(str(os.getpid())), folder)
    finally:
        for _ in range(100):  # a killed process may still be leaving
            with suppress(OSError):
                folder.rmdir()
                break
            time.sleep(0.02)


def _make_cgroup(limit_bytes: int) -> Path:
    folder = _own() / f"probe-{os.getpid()}"
    folder.mkdir()
    try:
        (folder / "memory.limit_in_bytes").write_text(str(limit_bytes))
        with suppress(FileNotFoundError):  # on a kernel without accounting of swap
            (folder / "memory.memsw.limit_in_bytes").write_text(str(limit_bytes))
    except OSError:
        folder.rmdir()
        raise
    return folder


def _own() -> Path:
    """Return the memory cgroup of this process (cgroups(7)). Its limits also apply to cgroups inside it."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(",") and (_MOUNT / path.lstrip("/")).is_dir():
            return _MOUNT / path.lstrip("/")
    if not (_MOUNT / "memory.limit_in_bytes").exists():
        raise FileNotFoundError(f"{_MOUNT} is not a memory cgroup of version 1")
    return _MOUNT


def drop(files: Iterable[Path]) -> str:
    """Drop `files` from the page cache (posix_fadvise(2) needs no rights); return "cold", or "warm" with the reason."""
    if not hasattr(os, "posix_fadvise"):
        return "warm: this system cannot drop a file from the page cache (it has no posix_fadvise)"
    kept = 0
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # the next call drops no dirty pages
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            kept += _share_in_memory(descriptor) > _COLD
        finally:
            os.close(descriptor)
    return f"warm: {kept} files stayed in the page cache, because other processes use them" if kept else "cold"


def _share_in_memory(descriptor: int) -> float:
    # mincore(2) reads no page; preadv2(2) with RWF_NOWAIT would start to, and on a fast disk find its own page.
    size = os.fstat(descriptor).st_size
    if not size:
        return 0.0
    with mmap.mmap(descriptor, size, mmap.MAP_PRIVATE) as mapped:
        pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        start = ctypes.c_char.from_buffer(mapped)
        code = ctypes.CDLL(None).mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), pages)
        del start  # a mapping with a pointer to it cannot be closed
        return sum(page & 1 for page in pages) / len(pages) if code == 0 else 0.0


if __name__ == "__main__":
    main()
