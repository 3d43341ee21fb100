"""Load checkpoints, each in a process of its own, and print the cost of each as a line of JSON.

Several are loaded in forks of this process, which imports once, and whose figures begin with the fork.
"""

import json
import os
import signal
import sys
import time
import traceback
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import psutil

from sharding.core.environment import child_command, child_variables
from sharding.loading.probe import child
from sharding.loading.probe.memory import Cap, drop, memory_cap

_SAMPLE_SECONDS = 0.015
_LONGEST_SECONDS = 3600.0
_WEIGHTS = (".safetensors", ".bin")


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


if __name__ == "__main__":
    main()
