"""Make what a job transfers: the source's bytes, their cast, or what the classic engine has loaded and saved."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from sharding.cast import CastSource
from sharding.checkout import download_bytes, lay_out, loadable_files
from sharding.classic import refuse_too_large, run_classic
from sharding.comparison import predict_load
from sharding.costs import ClassicCost
from sharding.dtypes import cast_tensors
from sharding.files import sort_files
from sharding.gather import gathering
from sharding.headers import read_checkpoint
from sharding.hub import Hub
from sharding.measure import DTYPES, Load
from sharding.plan import plan_components
from sharding.protocols import Source
from sharding.source import open_folder
from sharding.values import Checkpoint, Hints, Plan, Shard


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a job transfers: bytes of `reading`, cut as in `plan`. `cost` is what the classic engine took."""

    reading: Source
    checkpoint: Checkpoint
    plan: Plan
    cost: ClassicCost | None = None
    disk_bytes_written: int = 0

    def overflowed(self, kept: Iterable[str]) -> dict[str, int]:
        """Return how many numbers of which tensor a cast has made infinite, those in the shards `kept` included."""
        if not isinstance(self.reading, CastSource):
            return {}
        kept = set(kept)
        self.reading.count_overflow(
            tensor.name for shard in self.plan.shards if shard.file in kept for tensor in shard.tensors
        )
        return dict(self.reading.overflowed)


def prepared_stream(
    origin: Source, checkpoint: Checkpoint, plan: Plan, hints: Hints, *, allow_overflow: bool
) -> Prepared:
    """Return what streams the bytes of `origin` as `plan` has them, cast where it says so."""
    if plan.dtype == "keep":
        return Prepared(gathering(origin, checkpoint), checkpoint, plan)
    reading = cast_source(origin, checkpoint, plan.dtype, hints, allow_overflow=allow_overflow)
    return Prepared(reading, checkpoint, plan)


def cast_source(
    source: Source, checkpoint: Checkpoint, dtype: str, hints: Hints, *, allow_overflow: bool
) -> CastSource:
    """Return `source` with the tensors of `checkpoint` cast to `dtype`."""
    after = cast_tensors(checkpoint.tensors, dtype, hints)
    return CastSource(gathering(source, checkpoint), checkpoint.tensors, after, allow_overflow=allow_overflow)


@contextmanager
def prepared_classic(origin: Source, max_shard_bytes: int, dtype: str, hub: Hub) -> Iterator[Prepared]:
    """Load `origin` as `dtype` and save it in a temporary folder; yield that, with the cuts that accelerate made.

    Raises SourceError, with the figures, where the model does not fit into memory or its copies onto the disk.
    """
    files = loadable_files(origin)
    predicted = predict_load(origin, files, Load(dtype=DTYPES[dtype]))
    weight_bytes = sum(file.bytes for file in files)
    cast_bytes = max(weight_bytes, predicted.peak_anon_bytes)
    with TemporaryDirectory(prefix="classic-") as place:
        refuse_too_large(predicted.peak_anon_bytes, download_bytes(origin, files) + cast_bytes, Path(place))
        folder = lay_out(origin, files, Path(place) / "original", hub)
        cost = run_classic(folder, Path(place) / "saved", max_shard_bytes, DTYPES[dtype] or "keep")
        saved = open_folder(str(Path(place) / "saved"))
        checkpoint = read_checkpoint(saved)
        plan = plan_components(checkpoint.components, checkpoint.tensors, max_shard_bytes, order="stored")
        yield Prepared(
            reading=saved,
            checkpoint=replace(checkpoint, source=origin.ref, side_files=sort_files(origin.files, ())[0]),
            plan=replace(plan, shards=_as_saved(checkpoint), order="stored", dtype=dtype),
            cost=cost,
            disk_bytes_written=sum(file.bytes for file in saved.files) + download_bytes(origin, files),
        )


def _as_saved(checkpoint: Checkpoint) -> tuple[Shard, ...]:
    """Return the shards that the files of a checkpoint are."""
    shards = []
    for file in checkpoint.weight_files:
        tensors = tuple(tensor for tensor in checkpoint.tensors if tensor.file == file.path)
        shards.append(Shard(file.path, tensors, sum(tensor.bytes for tensor in tensors)))
    return tuple(shards)
