"""Make what a job transfers: the source's bytes, their cast, or what the classic engine has loaded and saved."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from sharding.core.computed import Computed
from sharding.core.gathered import Gathered
from sharding.core.hints import Hints
from sharding.core.options import Options
from sharding.core.protocols import Source
from sharding.core.values import Checkpoint, Plan, TensorEntry
from sharding.planning.cast import cast_tensors
from sharding.transfer.cast_source import CastSource
from sharding.transfer.dequantize_source import dequantizing
from sharding.transfer.noting_source import NotingSource
from sharding.transfer.strided_source import gathering


@dataclass(frozen=True)
class Making:
    """How tensors of a result are made of the bytes of a source: some put together, some computed, then all cast.

    `after` are the tensors `stored`, in their order, after the cast; both are empty where there is none.
    """

    gathered: tuple[Gathered, ...] = ()
    computed: tuple[Computed, ...] = ()
    stored: tuple[TensorEntry, ...] = ()
    after: tuple[TensorEntry, ...] = ()
    allow_overflow: bool = False

    def read_from(self, source: Source) -> Source:
        """Return a view of `source` in which the tensors lie in order, or itself where they do. Raises Refused."""
        reading = dequantizing(gathering(source, self.gathered), self.computed)
        if not self.after:
            return reading
        return CastSource(reading, self.stored, self.after, allow_overflow=self.allow_overflow)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a job transfers: bytes of `reading`, cut as in `plan`.

    `noted` remembers what is read of the source, where nothing else will show that it is what a Hub states. Where a
    process made these bytes first, as the classic engine does, `is_stated` says whether all that it read of a Hub was
    compared with a hash, and the last two what it took.
    """

    reading: Source
    checkpoint: Checkpoint
    plan: Plan
    making: Making = field(default_factory=Making)
    noted: NotingSource | None = None
    is_stated: bool = False
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
    making = making_of(checkpoint, plan.options, hints)
    noted = origin if isinstance(origin, NotingSource) else None
    return Prepared(making.read_from(origin), checkpoint, plan, making, noted)


def making_of(checkpoint: Checkpoint, options: Options, hints: Hints) -> Making:
    """Return how the tensors of `checkpoint` are put together, computed and cast as it and `options` say."""
    if options.dtype == "keep":
        return Making(checkpoint.gathered, checkpoint.computed)
    after = cast_tensors(checkpoint.tensors, options.dtype, hints)
    return Making(checkpoint.gathered, checkpoint.computed, checkpoint.tensors, after, options.allow_overflow)
