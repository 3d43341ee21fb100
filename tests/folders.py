"""What tests do with folders: shard one, read what is in one, tell whether two hold the same."""

import hashlib
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from safetensors.numpy import load_file

from sharding import job
from sharding.core.errors import SourceError
from sharding.core.events import ShardFinished, Verified
from sharding.core.values import ShardRecord
from sharding.core.verification import Verification
from sharding.formats.names import STAGING_FOLDER
from sharding.job import Event
from sharding.report.schema import Report
from sharding.storage.folder_writing import RECORD
from sharding.storage.records import parse_line
from tests.conftest import listing, options_of, random_tensors

if TYPE_CHECKING:
    import torch

Result = TypeVar("Result")


def finish(events: Iterable[Event]) -> Report:
    """Run a job to its end."""
    *_, report = events
    assert isinstance(report, Report)
    return report


def compared(one: object, other: object, **choices: Any) -> Verification:
    """What a comparison of two checkpoints finds."""
    *_, last = job.verify(str(one), str(other), **choices)
    assert isinstance(last, Verified)
    return last.verification


def ended(events: Iterable[Event]) -> str:
    """What is wrong with a result, which is then not published, or why there is none."""
    try:
        verification = finish(events).verification
    except SourceError as error:
        return error.message
    assert not verification.may_be_published
    return " ".join(f"{one.tensor}: {one.problem}" for one in verification.mismatches)


def flip(path: Path, at_byte: int = -1) -> Callable[[], None]:
    """Turn a bit of a file; return what turns it back."""
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[at_byte] ^= 1
    path.write_bytes(data)
    return lambda: flip(path, at_byte) and None


def until_shard(events: Iterator[Event], number: int | None = None, stop: bool = False) -> ShardFinished:
    """Go on with a job until shard `number` is finished, with 0 the last, with -1 the last but one; `stop` it there.

    Without a number it is the first of which the job says so, which may be kept of an earlier run.
    """
    for event in events:
        if not isinstance(event, ShardFinished):
            continue
        if number is None or event.number == (number if number > 0 else event.shards + number):
            if stop:
                events.close()  # type: ignore[attr-defined]
            return event
    raise AssertionError("The job has ended before.")


def kept(events: Iterable[object]) -> int:
    """How many shards of an earlier run a job has kept."""
    return len([event for event in events if isinstance(event, ShardFinished) and event.kept])


def reshard(source: Path, out: Path, size: str = "50kB", **choices: object) -> Report:
    """Run a job that must find its result identical."""
    options, more = options_of(size, choices)
    report = finish(job.shard(str(source), str(out), options, **more))
    assert report.verification.identical
    return report


def said(folder: Path, variant: str = "") -> dict[str, str]:
    """What is found in a checkpoint, by code."""
    return {finding.code: finding.message for finding in job.inspect(str(folder), variant=variant).findings}


def weights(folder: Path) -> dict[str, bytes]:
    """Every weight file and the index, byte for byte."""
    return {name: data for name, data in listing(folder).items() if "safetensors" in name}


def arrays(folder: Path) -> dict[str, np.ndarray]:
    return {name: array for path in sorted(folder.glob("*.safetensors")) for name, array in load_file(path).items()}


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].tobytes() == other[name].tobytes()
        and one[name].dtype == other[name].dtype
        and one[name].shape == other[name].shape
        for name in one
    )


def tensors(folder: Path) -> "dict[str, torch.Tensor]":
    from safetensors.torch import load_file

    return {name: tensor for path in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(path).items()}


def bits(tensor: "torch.Tensor") -> "tuple[torch.dtype, tuple[int, ...], bytes]":
    """What a tensor is: two are the same where these are."""
    import torch

    flat = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)
    return tensor.dtype, tuple(tensor.shape), flat.numpy().tobytes()


def in_folders(folder: Path) -> dict[str, bytes]:
    """The bytes of every tensor below `folder`, by folder and name."""
    return {
        f"{place.relative_to(folder).as_posix()}/{name}": bits(tensor)[2]
        for place in sorted({path.parent for path in folder.rglob("*.safetensors")})
        for name, tensor in tensors(place).items()
    }


def staged(out: Path) -> Path:
    """Where a job keeps what it has not published yet."""
    return out / STAGING_FOLDER


def recorded_in(out: Path) -> dict[str, ShardRecord]:
    """The finished shards of the job in a folder, whatever plan it follows."""
    records = [parse_line(ShardRecord, path.read_bytes()) for path in staged(out).glob(f"*{RECORD}")]
    assert all(records), "a record is there whole or not at all"
    return {record.file: record for record in records if record}


def result_of(work: Generator[object, None, Result]) -> Result:
    """Run a generator to its end; return what it returns."""
    return all_of(work)[1]


def all_of(work: Generator[Any, None, Result]) -> tuple[list[Any], Result]:
    """Run a generator to its end; return what it yields, and what it returns."""
    events: list[Any] = []
    while True:
        try:
            events.append(next(work))
        except StopIteration as end:
            return events, end.value


def write_ranks(folder: Path) -> Path:
    """Write the weights as the ranks of a training run do, without a configuration."""
    import torch
    import torch.distributed.checkpoint as dcp

    weights = {name: torch.from_numpy(array.copy()) for name, array in random_tensors().items()}
    with warnings.catch_warnings(action="ignore"):
        dcp.save({"model": weights}, storage_writer=dcp.FileSystemWriter(folder), no_dist=True)
    return folder


def in_cache(checkpoint: Path, cache: Path, name: str = "models--owner--name", is_shared: bool = False) -> Path:
    """Lay `checkpoint` out as the Hub's client does; return the folder of the commit.

    If that `is_shared`, large files lie in the store for all repos.
    """
    repo = cache / name
    snapshot = repo / "snapshots" / ("0" * 40)
    for folder in (snapshot, repo / "blobs"):
        folder.mkdir(parents=True)
    for number, path in enumerate(sorted(checkpoint.iterdir())):
        is_large, data = path.suffix == ".safetensors", path.read_bytes()
        blob = repo / "blobs" / (hashlib.sha256(data).hexdigest() if is_large else f"{number:040x}")
        place = cache / "blobs" / blob.name[:2] / blob.name if is_large and is_shared else blob
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        if place != blob:
            blob.symlink_to(f"../../blobs/{blob.name[:2]}/{blob.name}")
        (snapshot / path.name).symlink_to(f"../../blobs/{blob.name}")
    return snapshot
