"""Compare the cost of loading an original and its sharded copy. Predict it if it cannot be measured."""

import shutil
import time
from collections.abc import Generator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

from sharding.checkpoint.documents import read_small
from sharding.checkpoint.loadable import files_beside, loadable_files
from sharding.core.dtypes import torch_name
from sharding.core.errors import Remedy, SourceError, UsageError
from sharding.core.events import Progress
from sharding.core.limits import MEMORY_SHARE
from sharding.core.option import chosen
from sharding.core.protocols import Destination, Files
from sharding.core.text import format_bytes, name_some, parse_bytes
from sharding.core.values import Content, FileEntry, Plan, ShardRecord
from sharding.formats.file_formats import format_of
from sharding.formats.names import is_weights
from sharding.loading.classic import download_bytes, free_disk_bytes, lay_out, refuse_too_large, run_classic
from sharding.loading.costs import ClassicCost, Compared, Comparison, LoadCost, Probed, Side
from sharding.loading.measure import Load, Method, describe_machine, free_memory_bytes, is_loaded, measure, predict_load
from sharding.loading.verdict import judge, judge_predicted
from sharding.model_class.architecture import refuse_contradiction
from sharding.transfer.lanes import Pace

_LEAVE_OUT = Remedy("leave_comparison_out")


def compare_loads(
    original: Files,
    sharded: Files,
    load: Load,
    rounds: int,
    written: Mapping[str, bytes] | None = None,
    max_shard_bytes: int | None = None,
    *,
    alone: str = "",
    computes_the_same: bool = True,
) -> Generator[Probed | Progress, None, Comparison]:
    """Fetch both, load them in turn, yield every probe, and return the comparison. `written` are files of the copy that
    are not stored yet. With `max_shard_bytes`, the classic way makes the copy too. `alone` says why only the copy can
    be loaded. `computes_the_same` asks for equal logits. The comparison holds predictions, and the reason, if both do
    not fit here or need code of a repo. Raises SourceError if transformers finds no weights in the copy."""
    sides: dict[Side, tuple[Files, list[FileEntry]]] = {"sharded": (sharded, loadable_files(sharded))}
    try:
        sides = sides if alone else {"original": (original, loadable_files(original)), **sides}
    except SourceError as error:
        alone = error.message
    predicted = {side: predict_load(*one, load) for side, one in sides.items()}
    costs: dict[Side, list[LoadCost]] = {side: [] for side in sides}
    needed, free = max(side.peak_anon_bytes for side in predicted.values()), free_memory_bytes()
    reason = ""
    if load.memory_limit_bytes is None and needed > MEMORY_SHARE * free:
        reason = f"Loading needs about {format_bytes(needed)} of memory, but only {format_bytes(free)} are free."
    expected = classic = None
    if max_shard_bytes is not None and not alone:
        # The model is in memory then, and its copy and the downloads are on the disk.
        held = sum(file.bytes for file in sides["original"][1] if is_loaded(file.path))
        disk_bytes = download_bytes(*sides["original"]) + held
        expected = ClassicCost(None, predicted["original"].peak_anon_bytes, disk_bytes, mapped_bytes=held)
    with TemporaryDirectory(prefix="compare-") as scratch:
        download, room = sum(download_bytes(*one) for one in sides.values()), free_disk_bytes(Path(scratch))
        if not reason and download > room:
            reason = f"The download needs {format_bytes(download)}, but the disk has only {format_bytes(room)} free."
        if not reason:
            folders, pace = {side: Path(scratch) / side for side in sides}, Pace("fetch", download, time.monotonic())
            for side, (source, files) in sides.items():
                for size in lay_out(source, files, folders[side], written if side == "sharded" else None):
                    if event := pace.add(size, time.monotonic()):
                        yield event
            for probed in measure(folders, load, rounds):
                costs[probed.side].append(probed.cost)
                yield probed
            runs = [run for side in costs.values() for run in side]
            reason = runs[0].message if all(run.outcome == "unsupported" for run in runs) else ""
            if max_shard_bytes is not None and expected:
                classic = _classic(
                    folders["original"], Path(scratch) / "classic", max_shard_bytes, load.dtype, expected
                )
    # The warm-up does not count, unless it is the only run.
    counted = {side: () if reason else tuple(runs[1:] or runs) for side, runs in costs.items()}
    originals, copies = counted.get("original", ()), counted["sharded"]
    return Comparison(
        method=load.method,
        dtype_asked=load.dtype,
        with_mapping=load.with_mapping,
        memory_limit_bytes=load.memory_limit_bytes,
        original=originals,
        sharded=copies,
        verdict=judge_predicted(predicted, alone) if reason else judge(originals, copies, alone, computes_the_same),
        predicted=predicted,
        machine=describe_machine(),
        reason_not_measured=reason,
        classic=classic or (expected and replace(expected, reason_not_run=reason)),
    )


def _classic(folder: Path, out: Path, max_shard_bytes: int, dtype: str | None, expected: ClassicCost) -> ClassicCost:
    try:
        refuse_too_large(expected.peak_anon_bytes, expected.mapped_bytes, folder.parent)
        cost = run_classic(folder, out, max_shard_bytes, dtype)
    except SourceError as error:
        return replace(expected, reason_not_run=error.message)
    finally:
        shutil.rmtree(out, ignore_errors=True)
    disk_bytes = cost.disk_bytes + expected.disk_bytes - expected.mapped_bytes
    return replace(cost, disk_bytes=disk_bytes, mapped_bytes=expected.mapped_bytes)


def how_to_load(
    method: Method = "from_pretrained", dtype: str = "keep", memory_limit: str = "", *, with_mapping: bool = True
) -> Load:
    """Return how probes load. `dtype` is an option's value, `memory_limit` a size or "". Raises UsageError."""
    # With offload, half of the memory is for weights.
    limit = parse_bytes(memory_limit, "a memory limit") if memory_limit else None
    room = (limit or free_memory_bytes()) // 2 if method == "offload" else None
    return Load(chosen("method", method, get_args(Method)), torch_name(dtype), with_mapping, limit, room)


def refuse_incomparable(checkpoint: Content, origin: Files) -> str:
    """Return why transformers can load only a copy, or "". Raises UsageError, Refused, ModelRefused if neither."""
    refuse_contradiction(checkpoint.configs.get("", ""), (tensor.shape for tensor in checkpoint.tensors))
    if not checkpoint.has_loadable_copy:
        what = f"is for {checkpoint.library}" if checkpoint.library != "unknown" else "is for no known library"
        what = f"is the variant {checkpoint.variant}" if checkpoint.variant else what
        name = checkpoint.source.words
        raise UsageError(f"A comparison cannot load {name}, which {what}.", "Leave --compare out.", _LEAVE_OUT)
    if checkpoint.of_ranks:
        return "It is in the pieces of a training run."
    try:
        loadable_files(origin)
    except SourceError:
        names = name_some([file.path for file in checkpoint.weight_files])
        return f"transformers does not find weights named {names}."
    return ""


def compare_staged(
    plan: Plan, records: Mapping[str, ShardRecord], origin: Files, target: Destination, rounds: int, alone: str
) -> Generator[Probed | Progress | Compared, None, Comparison]:
    """Load original and unpublished result in turn. `alone` says why the original cannot be loaded."""
    beside = [file for file in files_beside(origin) if not is_weights(file.path)]
    configs = {file.path: read_small(origin, file, file.bytes) for file in beside}
    configs |= {path: text for path, text in plan.written.items() if path in configs}
    load = Load(dtype=torch_name(plan.options.dtype))
    is_alike = all(change.kind == "dtype" for change in plan.made)  # a load casts both
    most_bytes = plan.options.max_shard_bytes if is_alike else None
    asked = load, rounds, configs | dict(format_of(plan).beside(plan)), most_bytes
    loading = compare_loads(origin, target.open_staged(records), *asked, alone=alone, computes_the_same=is_alike)
    yield Compared(comparison := (yield from loading))
    return comparison
