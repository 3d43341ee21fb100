"""Make what a job transfers: the source's bytes, their cast, or what the classic engine has loaded and saved."""

from collections.abc import Iterable
from dataclasses import dataclass

from sharding.core.hints import Hints
from sharding.core.options import Options
from sharding.core.protocols import Source
from sharding.core.values import Checkpoint, Plan
from sharding.planning.cast import cast_tensors
from sharding.transfer.cast_source import CastSource
from sharding.transfer.dequantize_source import dequantizing
from sharding.transfer.strided_source import gathering


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a job transfers: bytes of `reading`, cut as in `plan`.

    The last two are what a process took that made these bytes first, as the classic engine does.
    """

    reading: Source
    checkpoint: Checkpoint
    plan: Plan
    peak_anon_bytes: int = 0
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


def prepared_stream(origin: Source, checkpoint: Checkpoint, plan: Plan, hints: Hints) -> Prepared:
    """Return what streams the bytes of `origin` as `plan` has them, computed and cast where it says so."""
    if plan.options.dtype == "keep":
        return Prepared(gathering(origin, checkpoint), checkpoint, plan)
    return Prepared(cast_source(origin, checkpoint, plan.options, hints), checkpoint, plan)


def cast_source(source: Source, checkpoint: Checkpoint, options: Options, hints: Hints) -> CastSource:
    """Return `source` with the tensors of `checkpoint` put together, computed and cast as it and `options` say."""
    after = cast_tensors(checkpoint.tensors, options.dtype, hints)
    reading = dequantizing(gathering(source, checkpoint), checkpoint)
    return CastSource(reading, checkpoint.tensors, after, allow_overflow=options.allow_overflow)
