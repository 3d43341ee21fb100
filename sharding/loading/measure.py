"""Measure loads of an original and its sharded copy in turn."""

import json
import platform
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import psutil

from sharding.core.environment import child_command, child_variables
from sharding.core.errors import ShardingError
from sharding.core.limits import CURVE_MOMENTS
from sharding.core.meter import stand_in
from sharding.core.text import format_bytes
from sharding.loading.costs import LoadCost, Moment, Probed

Method = Literal["from_pretrained", "load_checkpoint_and_dispatch", "offload", "load_sharded_checkpoint", "torch_load"]


@dataclass(frozen=True, slots=True)
class Load:
    """How to load: the method, the dtype to cast to (None: as stored), memory mapping, and limits in bytes."""

    method: Method = "from_pretrained"
    dtype: str | None = None
    with_mapping: bool = True
    memory_limit_bytes: int | None = None
    max_memory_bytes: int | None = None
    cold: bool = True


def measure(original: Path, sharded: Path, load: Load, rounds: int) -> Iterator[Probed]:
    """Load both folders in turn, `rounds` times each, and yield every probe as it ends.

    A warm-up of each comes first and does not count. Every second round has the opposite order, so that a machine that
    becomes slower favours neither. If a load fails, the round is the last one, because it would fail again.
    """
    sides: list[tuple[Literal["original", "sharded"], Path]] = [("original", original), ("sharded", sharded)]
    for number in range(rounds + 1):
        broken = False
        for side, folder in sides:
            cost = probe(folder, load)
            broken |= cost.outcome != "loaded"
            yield Probed(side, number, rounds, cost)
        if broken:
            return
        sides.reverse()


def probe(folder: Path, load: Load, timeout_seconds: float = 3600.0) -> LoadCost:
    """Load the checkpoint in `folder` in a fresh process and return the cost.

    A load that fails is a result as well. Raises ShardingError if the probe itself fails.
    """
    options: list[tuple[str, object]] = [
        ("--dtype", load.dtype),
        ("--memory-limit", load.memory_limit_bytes),
        ("--max-memory", load.max_memory_bytes),
        ("--timeout", timeout_seconds),
    ]
    command = child_command("sharding.loading.probe", str(folder), "--method", load.method)
    command += [str(word) for name, value in options if value is not None for word in (name, value)]
    command += ["--no-mmap"] * (not load.with_mapping) + ["--cold"] * load.cold
    done = subprocess.run(command, capture_output=True, text=True, env=child_variables(), stdin=subprocess.DEVNULL)
    if done.returncode:
        message = f"The process that loads {folder.name} failed: {done.stderr.strip()[-300:]}"
        raise ShardingError(message, "Run it again.")
    return _cost(json.loads(done.stdout))


def free_memory_bytes() -> int:
    """Return how many bytes a new process can take now without swapping and without other processes being killed."""
    return int(psutil.virtual_memory().available)


def describe_machine() -> str:
    """Return one line: cores, memory, system, versions of the libraries, and how memory is counted."""
    memory = format_bytes(psutil.virtual_memory().total)
    libraries = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "accelerate", "safetensors"))
    counted = f", memory counted as {stand_in()}" if stand_in() else ""
    return f"{psutil.cpu_count()} cores, {memory} of memory, {platform.system()}, {libraries}{counted}"


def thin(curve: Sequence[Moment], most: int = CURVE_MOMENTS) -> tuple[Moment, ...]:
    """Return at most `most` moments of `curve` with the same shape: the highest of each stretch, in order."""
    if len(curve) <= most:
        return tuple(curve)
    edges = [len(curve) * number // most for number in range(most + 1)]
    return tuple(
        max(curve[start:end], key=lambda moment: moment.anon_bytes)
        for start, end in zip(edges, edges[1:], strict=False)
    )


def _cost(document: dict[str, Any]) -> LoadCost:
    limit = document.pop("memory_limit")
    curve = tuple(Moment(*row) for row in document.pop("curve"))
    known = {key: value for key, value in document.items() if key in LoadCost.__dataclass_fields__}
    known["tokens"] = tuple(known.get("tokens", ()))
    known["base_anon_bytes"] = known.get("base_anon_bytes") or 0
    return LoadCost(**known, memory_limited_by=limit["by"] if limit else None, curve=thin(curve))
