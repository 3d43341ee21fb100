"""Compare the cost of loading an original and its sharded copy. Predict it if it cannot be measured."""

import shutil
from collections.abc import Generator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

from sharding.checkpoint.documents import read_small
from sharding.checkpoint.loadable import loadable_files
from sharding.core.dtypes import torch_name
from sharding.core.errors import Remedy, SourceError, UsageError
from sharding.core.limits import MEMORY_SHARE
from sharding.core.options import chosen
from sharding.core.protocols import Destination, Files
from sharding.core.text import format_bytes, name_some, parse_bytes
from sharding.core.values import Content, Plan, ShardRecord
from sharding.formats.file_formats import format_of
from sharding.formats.names import is_weights
from sharding.loading.classic import download_bytes, free_disk_bytes, lay_out, refuse_too_large, run_classic
from sharding.loading.costs import ClassicCost, Compared, Comparison, LoadCost, Probed
from sharding.loading.measure import Load, Method, describe_machine, free_memory_bytes, is_loaded, measure, predict_load
from sharding.loading.verdict import judge, judge_predicted
from sharding.model_class.architecture import refuse_contradiction

_LEAVE_OUT = Remedy("leave_comparison_out")


def compare_loads(
    original: Files,
    sharded: Files,
    load: Load,
    rounds: int,
    written: Mapping[str, bytes] | None = None,
    max_shard_bytes: int | None = None,
) -> Generator[Probed, None, Comparison]:
    """Load both in turn, yield every probe, and return the comparison.

    `written` are files of the sharded copy that are not stored yet: its index and its configuration. With
    `max_shard_bytes` it also makes the copy in the classic way and measures that. If the two do not fit on the disk or
    into memory, or if only code of the repo can load them, the comparison holds predictions and the reason. Raises
    SourceError if there is nothing to compare.
    """
    sides = [(source, loadable_files(source)) for source in (original, sharded)]
    predicted = [predict_load(source, files, load) for source, files in sides]
    costs: dict[str, list[LoadCost]] = {"original": [], "sharded": []}
    needed, free = max(side.peak_anon_bytes for side in predicted), free_memory_bytes()
    reason = ""
    if load.memory_limit_bytes is None and needed > MEMORY_SHARE * free:
        reason = f"Loading needs about {format_bytes(needed)} of memory, but only {format_bytes(free)} are free."
    # In the classic way, the model is in memory, and its copy and the downloads on the disk.
    disk_bytes = download_bytes(*sides[0]) + sum(file.bytes for file in sides[0][1] if is_loaded(file.path))
    expected, classic = ClassicCost(None, predicted[0].peak_anon_bytes, disk_bytes), None
    with TemporaryDirectory(prefix="compare-") as scratch:
        download, room = sum(download_bytes(*side) for side in sides), free_disk_bytes(Path(scratch))
        if not reason and download > room:
            reason = f"The download needs {format_bytes(download)}, but the disk has only {format_bytes(room)} free."
        if not reason:
            folders = [
                lay_out(source, files, Path(scratch) / name, extra)
                for (source, files), name, extra in zip(sides, costs, (None, written), strict=True)
            ]
            for probed in measure(folders[0], folders[1], load, rounds):
                costs[probed.side].append(probed.cost)
                yield probed
            runs = [run for side in costs.values() for run in side]
            reason = runs[0].message if all(run.outcome == "unsupported" for run in runs) else ""
            if max_shard_bytes is not None:
                classic = _classic(folders[0], Path(scratch) / "classic", max_shard_bytes, load.dtype, expected)
    # The warm-up does not count, unless it is the only run.
    originals, copies = (tuple(runs[1:] or runs) for runs in costs.values())
    return Comparison(
        method=load.method,
        dtype_asked=load.dtype,
        with_mapping=load.with_mapping,
        memory_limit_bytes=load.memory_limit_bytes,
        original=() if reason else originals,
        sharded=() if reason else copies,
        verdict=judge_predicted(*predicted) if reason else judge(originals, copies),
        predicted=(predicted[0], predicted[1]),
        machine=describe_machine(),
        reason_not_measured=reason,
        classic=None if max_shard_bytes is None else classic or replace(expected, reason_not_run=reason),
    )


def _classic(folder: Path, out: Path, max_shard_bytes: int, dtype: str | None, expected: ClassicCost) -> ClassicCost:
    """Make the copy in the classic way, measure the cost, and delete it."""
    weight_bytes = sum(path.stat().st_size for path in folder.iterdir() if is_loaded(path.name))
    try:
        refuse_too_large(expected.peak_anon_bytes, weight_bytes, folder.parent)
        cost = run_classic(folder, out, max_shard_bytes, dtype)
    except SourceError as error:
        return replace(expected, reason_not_run=error.message)
    finally:
        shutil.rmtree(out, ignore_errors=True)
    return replace(cost, disk_bytes=cost.disk_bytes + expected.disk_bytes - weight_bytes)


def how_to_load(
    method: Method = "from_pretrained", dtype: str = "keep", memory_limit: str = "", *, with_mapping: bool = True
) -> Load:
    """Return how probes load. `dtype` is an option's value, `memory_limit` a size or "". Raises UsageError."""
    # With offload, half of the memory is for weights.
    limit = parse_bytes(memory_limit, "a memory limit") if memory_limit else None
    room = (limit or free_memory_bytes()) // 2 if method == "offload" else None
    return Load(chosen("method", method, get_args(Method)), torch_name(dtype), with_mapping, limit, room)


def refuse_incomparable(checkpoint: Content, origin: Files) -> None:
    """Raise UsageError, Refused or ModelRefused if transformers cannot load `checkpoint` of `origin`."""
    refuse_contradiction(checkpoint.configs.get("", ""), (tensor.shape for tensor in checkpoint.tensors))
    if not checkpoint.is_plain_model:
        what = f"is for {checkpoint.library}" if checkpoint.library != "unknown" else "is for no known library"
        what = f"is the variant {checkpoint.variant}" if checkpoint.variant else what
        what = "is in the pieces of a training run" if checkpoint.of_ranks else what
        name = checkpoint.source.words
        raise UsageError(f"A comparison cannot load {name}, which {what}.", "Leave --compare out.", _LEAVE_OUT)
    try:
        loadable_files(origin)
    except SourceError as error:
        names = name_some([file.path for file in checkpoint.weight_files])
        message = f"transformers does not find weights named {names}, so a comparison cannot load the original."
        hint = "Leave --compare out. The copy has names that transformers finds."
        raise UsageError(message, hint, _LEAVE_OUT) from error


def compare_staged(
    plan: Plan,
    records: Mapping[str, ShardRecord],
    origin: Files,
    target: Destination,
    rounds: int,
    configs: Mapping[str, bytes],
) -> Generator[Probed | Compared, None, Comparison]:
    """Load the original and the result in turn. The result is not published yet, and has its own `configs`."""
    beside = [file for file in loadable_files(origin) if not is_weights(file.path)]
    written = {file.path: read_small(origin, file, file.bytes) for file in beside} | dict(format_of(plan).beside(plan))
    written |= {path: text for path, text in configs.items() if path in written}
    load = Load(dtype=torch_name(plan.options.dtype))
    staged, size = target.open_staged(records), plan.options.max_shard_bytes
    comparison = yield from compare_loads(origin, staged, load, rounds, written, size)
    yield Compared(comparison)
    return comparison
