"""The page in a process of its own, as a Space that several users know, and what that process holds."""

import json
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from operator import le
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np
import psutil
from safetensors.numpy import save_file

from tests.conftest import random_tensors, write_checkpoint
from tests.localhub.conftest import Server
from tests.page.conftest import Site, as_space
from tests.page.site import choices
from tests.report.results import LORA, MERGE

SMALL, MANY, LLAMA, RESULT = "alice/small", "alice/many", "alice/llama", "alice/result"
PUBLIC = (SMALL, MANY, LLAMA)
LORAS, MERGED = "alice/loras", "alice/merged"
HOSTILE: dict[str, dict[str, object]] = {
    "gigabytes": {"target_modules": "a{5000000}"},
    "nested": {"target_modules": "(?:(?:a{1000}){1000}){1000}.*"},
    "years": {"target_modules": "(?:model|mod|el|.)*x"},
    "pairs": {"modules_to_save": ["q_proj"]},
    "ranks": {"rank_pattern": {rf"layers\.{n}\..*": 1 for n in range(3000)}},
    "nothing": {"target_modules": None, "peft_type": []},
}
"""What the adapters in folders of `LORAS` say. In `MERGED` is a report of a merge that never happened."""
GUEST = "guest"
"""A user who has no jobs."""
_TRACEBACK = re.compile(r"^( *)Traceback \(most recent call last\):\n(?:(?:\1[ |+].*|\s*)\n)*\1?\S.*$", re.M)


class Holdings(NamedTuple):
    """What a process has now: threads, processes below it, open files, and the connections of those who ask it."""

    threads: int
    children: int
    files: int
    visitors: int

    def is_within(self, other: "Holdings") -> bool:
        return all(map(le, self, other))


@dataclass(frozen=True)
class Page:
    """The page that is tried. Each of `users` has the token "hf_" and their name."""

    hub: Server
    site: Site
    users: tuple[str, ...]

    @property
    def process(self) -> psutil.Process:
        assert self.site.process
        return psutil.Process(self.site.process.pid)

    @property
    def is_alive(self) -> bool:
        return self.site.process is not None and self.site.process.poll() is None

    def memory_bytes(self) -> int:
        """Return the memory that is the process's alone (USS), which jobs are no part of: they are processes."""
        return int(self.process.memory_full_info().uss)

    def holdings(self) -> Holdings:
        process = self.process
        connections = [one for one in process.net_connections("tcp") if one.laddr.port == self.site.port]
        asked = len([one for one in connections if one.status != psutil.CONN_LISTEN])
        children = len(process.children(recursive=True))
        return Holdings(process.num_threads(), children, process.num_fds() - asked, asked)

    def tracebacks(self, since: int = 0) -> list[str]:
        return [found.group().strip() for found in _TRACEBACK.finditer(self.site.log[since:])]

    def settle(self, allowed: Holdings, most_bytes: float, seconds: float) -> Holdings:
        """Wait until the page holds no more than is allowed, at most so long; return what it holds then."""
        until = time.monotonic() + seconds
        while True:
            # Threads that have nothing to do end when another one begins to work, ten seconds later at the earliest.
            given = {"data": [SMALL, *choices("inspect")]}
            answer = httpx.post(f"{self.site.address}/gradio_api/call/inspect", json=given)
            path = f"{self.site.address}/gradio_api/call/inspect/{answer.json()['event_id']}"
            assert "event: complete" in httpx.get(path, timeout=60).text
            time.sleep(1)
            holdings = self.holdings()
            if holdings.is_within(allowed) and self.memory_bytes() <= most_bytes or time.monotonic() > until:
                return holdings


@contextmanager
def served_page(users: int) -> Iterator[Page]:
    """Serve a Hub with some models of alice, and the page, to so many `users`, of whom she is one, and a guest."""
    names = ("alice", *(f"user{number}" for number in range(1, users)))
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    hub = Server(folder / "hub", tuple(word for name in (*names, GUEST) for word in ("--user", name))).start()
    site = Site(hub, folder / "site", {**as_space(hub), "SHARD_JOBS_AT_ONCE": "2"})
    try:
        _fill(hub, folder)
        yield Page(hub, site.start(), names)
    finally:
        site.stop(signal.SIGKILL)
        hub.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _fill(hub: Server, folder: Path) -> None:
    from tests import models
    from tests.hubs import push, shard

    many = {f"layers.{n}.weight": np.full(3, n, np.float32) for n in range(5000)}
    push(hub, write_checkpoint(folder / "small", {"model.safetensors": random_tensors()}, False), SMALL)
    push(hub, write_checkpoint(folder / "many", {"model.safetensors": many}, False), MANY)
    push(hub, models.save("llama", folder / "llama"), LLAMA)
    push(hub, _write_loras(folder / "loras"), LORAS)
    shard(hub, SMALL, RESULT, "90kB")
    shard(hub, LLAMA, MERGED, "1MB")
    report = json.loads(hub.ask("GET", f"/{MERGED}/resolve/main/sharding_report.json").body)
    lora = replace(LORA, repo_id=LORAS, revision=hub.api().model_info(LORAS).sha or "", inside="years/")
    merge = replace(MERGE, done=f"with the adapter {lora.text} merged", of=report["verification"]["tensors"], by=lora)
    report["source"]["beside"] = [asdict(lora)]
    report["plan"]["made"] = report["verification"]["made"] = [asdict(merge)]
    text = json.dumps(report).encode()
    hub.api().upload_file(repo_id=MERGED, path_in_repo="sharding_report.json", path_or_fileobj=text)


def _write_loras(folder: Path) -> Path:
    for name, says in HOSTILE.items():
        modules = [f"model.layers.{layer}.self_attn.q_proj" for layer in range(3000 if name == "pairs" else 200)]
        endings = ("", ".modules_to_save.default") if name == "pairs" else (".lora_A", ".lora_B")
        names = [f"base_model.model.{module}{ending}.weight" for module in modules for ending in endings]
        (folder / name).mkdir(parents=True)
        save_file({each: np.ones((1, 1), np.float32) for each in names}, folder / name / "adapter_model.safetensors")
        config = {"peft_type": "LORA", "r": 1, "target_modules": ["q_proj"], **says}
        (folder / name / "adapter_config.json").write_text(json.dumps(config))
    return folder


def origin(traceback: str) -> str:
    lines = [line.strip(" |") for line in traceback.splitlines()]
    place = next((line for line in reversed(lines) if line.startswith("File ")), "").replace('"', "")
    kind, named = lines[-1].partition(":")[0], re.sub(r"File (.*site-packages/|.*(?=sharding/))?", "", place)
    return f"{kind} in {named}"
