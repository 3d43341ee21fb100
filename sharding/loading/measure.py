"""Measure loads of an original and its sharded copy in turn, or predict how much memory a load takes.

A prediction reads headers, and follows transformers 5.23: mapped weights cost page cache only, a cast makes a second
set, and without mapping each whole file passes through memory. Its two constants were measured.
"""

import json
import platform
import subprocess
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal

import psutil

from sharding.checkpoint.documents import config_text
from sharding.checkpoint.readers.safetensors import read_headers
from sharding.core.dtypes import BY_NAME, BY_TORCH, NUMBERS
from sharding.core.environment import child_command, child_variables
from sharding.core.errors import ShardingError
from sharding.core.limits import CURVE_MOMENTS
from sharding.core.meter import stand_in
from sharding.core.protocols import Files
from sharding.core.text import format_bytes, parsed_json
from sharding.core.values import FileEntry, Tensor
from sharding.formats.names import LOADED
from sharding.formats.quantization import NEEDS_KERNELS, method_of, quantization_of
from sharding.loading.costs import LoadCost, Moment, Prediction, Probed, Side

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


def measure(folders: Mapping[Side, Path], load: Load, rounds: int) -> Iterator[Probed]:
    """Load the `folders` in turn, `rounds` times after a warm-up or until one fails; yield every probe as it ends."""
    # Back and forth, so that a machine that becomes slower favours neither.
    turns = [(number, side) for number in range(rounds + 1) for side in list(folders)[:: -1 if number % 2 else 1]]
    had, broken = Counter[int](), False
    with closing(probes([folders[side] for _, side in turns], load)) as costs:
        for (number, side), cost in zip(turns, costs, strict=False):
            broken |= cost.outcome != "loaded"
            yield Probed(side, number, rounds, cost, len(turns))
            had[number] += 1
            if broken and had[number] == len(folders):
                return


def probes(folders: Sequence[Path], load: Load) -> Generator[LoadCost]:
    """Load each of `folders` in a process of its own, in turn, and yield what it cost. Several are forks of one
    process, which imports once. Closing ends the load under way. Raises ShardingError if the probe itself fails."""
    command = child_command("sharding.loading.probe", *map(str, folders), json.dumps(asdict(load)))
    with TemporaryFile() as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True, env=child_variables()
        )
        with process:
            try:
                assert process.stdout, "it is a pipe"
                for line in process.stdout:
                    yield _cost(json.loads(line))
            except BaseException:
                process.terminate()
                raise
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip()
    if process.returncode:
        raise ShardingError(f"The process that loads models failed: {said[-300:]}", "Run it again.")


def _cost(said: Mapping[str, Any]) -> LoadCost:
    known = {key: value for key, value in said.items() if key in LoadCost.__dataclass_fields__}
    known |= {"tokens": tuple(said.get("tokens", ())), "curve": thin([Moment(*row) for row in said["curve"]])}
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


BASE_ANON_BYTES, _BASE_FILE_BYTES = 275_000_000, 110_000_000
"""Anonymous memory and mapped files of Python, torch 2.13 and transformers 5.23 alone, with a small forward pass."""


def predict(
    dtypes: Mapping[str, int],
    largest_file_bytes: int,
    dtype_asked: str | None,
    *,
    with_mapping: bool = True,
    dequantized_bytes: int = 0,
) -> Prediction:
    """Return the predicted cost of loading a checkpoint with `dtypes` (safetensors' name to bytes).

    `dequantized_bytes` are the weights that transformers makes of quantized ones.

    >>> predict({"BF16": 14_500_000_000}, 10_000_000_000, "float16").peak_anon_bytes
    14775000000
    """
    stored = sum(dtypes.values())
    cast = sum(
        size * BY_TORCH[dtype_asked].bits // BY_NAME[dtype].bits
        for dtype, size in dtypes.items()
        if dtype_asked and dtype in NUMBERS and BY_NAME[dtype].torch != dtype_asked
    )
    made = cast + dequantized_bytes
    if with_mapping:
        return Prediction(BASE_ANON_BYTES + made, _BASE_FILE_BYTES + stored)
    return Prediction(BASE_ANON_BYTES + (made or stored) + largest_file_bytes, _BASE_FILE_BYTES)


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
    weights, dequantized = [file for file in files if is_loaded(file.path)], 0
    text = config_text(source, "config.json") or b""
    config = text.decode(errors="replace")
    if weights[0].path.endswith(".bin"):
        document = parsed_json(config)
        name = (document.get("dtype") or document.get("torch_dtype")) if isinstance(document, dict) else None
        dtype = BY_TORCH[name].name if isinstance(name, str) and name in BY_TORCH else "F32"
        dtypes = {dtype: sum(file.bytes for file in weights)}
    else:
        tensors = [tensor for header in read_headers(source, weights) for tensor in header.tensors]
        dtypes, how = stored_dtypes(tensors), quantization_of(config)
        if how is not None and method_of(how) in NEEDS_KERNELS:
            dequantized = sum(map(_dequantized_bytes, tensors))
    largest = max(file.bytes for file in weights)
    return predict(dtypes, largest, load.dtype, with_mapping=load.with_mapping, dequantized_bytes=dequantized)


def _dequantized_bytes(tensor: Tensor) -> int:
    """Return the size of what transformers makes of FP8 numbers, or of the two MXFP4 numbers in a byte; else 0."""
    per_byte = 2 if tensor.dtype.startswith("F8_E4M3") else 4 if tensor.name.endswith("_blocks") else 0
    return tensor.bytes * per_byte
