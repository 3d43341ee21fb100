"""Compare loading an original with loading its sharded copy: measured where that is possible, else predicted."""

import json
import shutil
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from sharding.checkout import download_bytes, lay_out, loadable_files, refuse_without_room
from sharding.classic import refuse_too_large, run_classic
from sharding.costs import ClassicCost, Comparison, LoadCost, Prediction
from sharding.errors import SourceError
from sharding.events import Probed
from sharding.headers import read_headers, read_small
from sharding.hub import Hub
from sharding.limits import MAX_CONFIG_BYTES, MEMORY_SHARE, format_bytes
from sharding.measure import Load, describe_machine, free_memory_bytes, measure
from sharding.predict import predict, stored_dtypes
from sharding.protocols import Source
from sharding.values import FileEntry
from sharding.verdict import judge, judge_predicted


def compare_loads(
    original: Source,
    sharded: Source,
    load: Load,
    rounds: int,
    hub: Hub,
    written: Mapping[str, bytes] | None = None,
    max_shard_bytes: int | None = None,
) -> Generator[Probed, None, Comparison]:
    """Load both in turn; yield every probe, return the comparison.

    `written` is what belongs to the sharded copy and lies nowhere yet: its index, its configuration. With
    `max_shard_bytes` the copy is made once more, the classic way, to say what that takes. Where the
    two do not fit on the disk or into memory, or only code of the repo could load them, the comparison holds
    predictions and the reason. Raises SourceError where there is nothing to compare.
    """
    sides = [(source, loadable_files(source)) for source in (original, sharded)]
    predicted = [predict_load(source, files, load) for source, files in sides]
    costs: dict[str, list[LoadCost]] = {"original": [], "sharded": []}
    reason = _reason_not_to(load, predicted)
    expected = _expect_classic(*sides[0], predicted[0])
    classic = None
    with TemporaryDirectory(prefix="compare-") as place:
        try:
            refuse_without_room(Path(place), sum(download_bytes(*side) for side in sides))
        except SourceError as error:
            reason = reason or error.message
        if not reason:
            folders = [
                lay_out(source, files, Path(place) / name, hub, extra)
                for (source, files), name, extra in zip(sides, costs, (None, written), strict=True)
            ]
            for probed in measure(folders[0], folders[1], load, rounds):
                costs[probed.side].append(probed.cost)
                yield probed
            reason = _unsupported(costs)
            if max_shard_bytes is not None:
                classic = _classic(folders[0], Path(place) / "classic", max_shard_bytes, load.dtype, expected)
    comparison = _conclude(load, costs, (predicted[0], predicted[1]), reason)
    if max_shard_bytes is not None:
        comparison = replace(comparison, classic=classic or replace(expected, reason_not_run=reason))
    return comparison


def _classic(folder: Path, out: Path, max_shard_bytes: int, dtype: str | None, expected: ClassicCost) -> ClassicCost:
    """Do the job the classic way, with a copy that is thrown away."""
    downloaded_bytes = expected.disk_bytes - _weight_bytes(folder)
    try:
        refuse_too_large(expected.peak_anon_bytes, _weight_bytes(folder), folder.parent)
        cost = run_classic(folder, out, max_shard_bytes, dtype or "keep")
    except SourceError as error:
        return replace(expected, reason_not_run=error.message)
    finally:
        shutil.rmtree(out, ignore_errors=True)
    return replace(cost, disk_bytes=cost.disk_bytes + downloaded_bytes)


def _weight_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.name.endswith((".safetensors", ".bin")))


def _expect_classic(source: Source, files: Sequence[FileEntry], predicted: Prediction) -> ClassicCost:
    """Return what the classic way should take: the model in memory, and on the disk its copy and what is downloaded."""
    copy_bytes = sum(file.bytes for file in files if file.path.endswith((".safetensors", ".bin")))
    return ClassicCost(None, predicted.peak_anon_bytes, download_bytes(source, files) + copy_bytes)


def _conclude(
    load: Load, costs: Mapping[str, Sequence[LoadCost]], predicted: tuple[Prediction, Prediction], reason: str
) -> Comparison:
    # The warm-up does not count, unless it is all there is.
    original, sharded = (tuple(runs[1:] or runs) for runs in (costs["original"], costs["sharded"]))
    return Comparison(
        method=load.method,
        dtype_asked=load.dtype,
        with_mapping=load.with_mapping,
        memory_limit_bytes=load.memory_limit_bytes,
        original=() if reason else original,
        sharded=() if reason else sharded,
        verdict=judge_predicted(*predicted) if reason else judge(original, sharded),
        predicted=predicted,
        machine=describe_machine(),
        reason_not_measured=reason,
    )


def _reason_not_to(load: Load, predicted: Sequence[Prediction]) -> str:
    needed_bytes, free_bytes = max(side.peak_anon_bytes for side in predicted), free_memory_bytes()
    if load.memory_limit_bytes is None and needed_bytes > MEMORY_SHARE * free_bytes:
        return f"It would take about {format_bytes(needed_bytes)} of memory and {format_bytes(free_bytes)} are free."
    return ""


def _unsupported(costs: Mapping[str, Sequence[LoadCost]]) -> str:
    """Return why no side can be loaded at all, empty where one can."""
    runs = [run for side in costs.values() for run in side]
    return runs[0].message if all(run.outcome == "unsupported" for run in runs) else ""


def predict_load(source: Source, files: Sequence[FileEntry], load: Load) -> Prediction:
    """Return what loading `files` of `source` should cost, from headers and configuration."""
    weights = [file for file in files if file.path.endswith((".safetensors", ".bin"))]
    if weights[0].path.endswith(".bin"):
        dtypes = {_configured_dtype(source): sum(file.bytes for file in weights)}
    else:
        dtypes = stored_dtypes(tensor for header in read_headers(source, weights) for tensor in header.tensors)
    largest = max(file.bytes for file in weights)
    return predict(dtypes, largest, load.dtype, with_mapping=load.with_mapping)


def _configured_dtype(source: Source) -> str:
    config = next((file for file in source.files if file.path == "config.json"), None)
    document = json.loads(read_small(source, config, MAX_CONFIG_BYTES)) if config else {}
    name = document.get("dtype") or document.get("torch_dtype") or "float32"
    return {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}.get(name, "F32")
