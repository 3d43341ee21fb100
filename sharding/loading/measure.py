"""Measure loads of an original and its sharded copy in turn, or predict how much memory a load takes.

A prediction reads headers only, and predicts no time. It follows how transformers 5.23 loads. Memory-mapped weights
cost page cache only. A cast makes a second set in anonymous memory. Without mapping, each whole file passes through
memory. We measured its two constants. `bench/loading.py` prints predictions beside measurements.
"""

import json
import platform
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import psutil

from sharding.checkpoint.documents import read_json
from sharding.checkpoint.readers.safetensors import read_headers
from sharding.core.dtypes import BY_NAME, BY_TORCH, NUMBERS
from sharding.core.environment import child_command, child_variables
from sharding.core.errors import ShardingError
from sharding.core.limits import CURVE_MOMENTS
from sharding.core.meter import stand_in
from sharding.core.protocols import Files
from sharding.core.text import format_bytes
from sharding.core.values import FileEntry, Tensor
from sharding.formats.names import LOADED
from sharding.loading.costs import LoadCost, Moment, Prediction, Probed

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
    """Load both folders in turn, `rounds` times after a warm-up or until one fails; yield every probe as it ends.

    Every second round has the opposite order, so that a machine that becomes slower favours neither.
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


def probe(folder: Path, load: Load) -> LoadCost:
    """Load `folder` in a fresh process and return the cost. Raises ShardingError if the probe itself fails."""
    command = child_command("sharding.loading.probe", str(folder), json.dumps(asdict(load)))
    done = subprocess.run(command, capture_output=True, text=True, env=child_variables(), stdin=subprocess.DEVNULL)
    if done.returncode:
        message = f"The process that loads {folder.name} failed: {done.stderr.strip()[-300:]}"
        raise ShardingError(message, "Run it again.")
    said: dict[str, Any] = json.loads(done.stdout)
    known = {key: value for key, value in said.items() if key in LoadCost.__dataclass_fields__}
    known |= {"tokens": tuple(said.get("tokens", ())), "base_anon_bytes": said.get("base_anon_bytes") or 0}
    known["curve"] = thin([Moment(*row) for row in said["curve"]])
    return LoadCost(**known)


def free_memory_bytes() -> int:
    """Return how many bytes a new process can take now without swapping or killing others."""
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
    edges = pairwise(len(curve) * number // most for number in range(most + 1))
    return tuple(max(curve[start:end], key=lambda moment: moment.anon_bytes) for start, end in edges)


_BASE_ANON_BYTES, _BASE_FILE_BYTES = 275_000_000, 110_000_000
"""Anonymous memory and mapped files of Python, torch 2.13 and transformers 5.23 alone, with a small forward pass."""


def predict(
    dtypes: Mapping[str, int], largest_file_bytes: int, dtype_asked: str | None, *, with_mapping: bool = True
) -> Prediction:
    """Return the predicted cost of loading a checkpoint with `dtypes` (safetensors' name to bytes).

    >>> predict({"BF16": 14_500_000_000}, 10_000_000_000, "float16").peak_anon_bytes
    14775000000
    """
    stored = sum(dtypes.values())
    cast = sum(
        size * BY_TORCH[dtype_asked].bits // BY_NAME[dtype].bits
        for dtype, size in dtypes.items()
        if dtype_asked and dtype in NUMBERS and BY_NAME[dtype].torch != dtype_asked
    )
    if with_mapping:
        return Prediction(_BASE_ANON_BYTES + cast, _BASE_FILE_BYTES + stored)
    return Prediction(_BASE_ANON_BYTES + (cast or stored) + largest_file_bytes, _BASE_FILE_BYTES)


def stored_dtypes(tensors: Iterable[Tensor]) -> dict[str, int]:
    """Return how many bytes of `tensors` each dtype has."""
    dtypes: dict[str, int] = {}
    for tensor in tensors:
        dtypes[tensor.dtype] = dtypes.get(tensor.dtype, 0) + tensor.bytes
    return dtypes


def is_loaded(path: str) -> bool:
    """Return whether a file holds weights that transformers loads."""
    return path.endswith(LOADED)


def predict_load(source: Files, files: Sequence[FileEntry], load: Load) -> Prediction:
    """Return the predicted cost of loading `files` of `source`, from headers and configuration."""
    weights = [file for file in files if is_loaded(file.path)]
    if weights[0].path.endswith(".bin"):
        document = read_json(source, next((file for file in source.files if file.path == "config.json"), None))
        name = (document.get("dtype") or document.get("torch_dtype")) if isinstance(document, dict) else None
        dtype = BY_TORCH[name].name if isinstance(name, str) and name in BY_TORCH else "F32"
        dtypes = {dtype: sum(file.bytes for file in weights)}
    else:
        dtypes = stored_dtypes(tensor for header in read_headers(source, weights) for tensor in header.tensors)
    largest = max(file.bytes for file in weights)
    return predict(dtypes, largest, load.dtype, with_mapping=load.with_mapping)
