"""What a job transfers, and what has been done for that before."""

from collections.abc import Iterable
from dataclasses import dataclass

from sharding.core.extras import require
from sharding.core.protocols import Source
from sharding.core.values import Checkpoint, Plan, ShardRecord, Tensor
from sharding.transfer.noting_source import NotingSource


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a job transfers: the tensors of `plan`, made of `sources`. Refused where a library is missing.

    Where a process made these bytes first, as the classic engine does, `is_stated` says whether all that it read of a
    Hub was compared with a hash, and the last two what it took.
    """

    sources: tuple[Source, ...]
    checkpoint: Checkpoint
    plan: Plan
    is_stated: bool = False
    peak_anon_bytes: int = 0
    disk_bytes_written: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be made, before anything is said or written."""
        require_libraries(self.plan.tensors)

    @property
    def noted(self) -> tuple[NotingSource, ...]:
        """What remembers what is read of a source, where nothing else will show that it is what a Hub states."""
        return tuple(source for source in self.sources if isinstance(source, NotingSource))


def require_libraries(tensors: Iterable[Tensor]) -> None:
    """Raise Refused where making `tensors` takes a library that is not installed."""
    needed = {need for tensor in tensors if (need := tensor.recipe.needs())}
    for what, modules in sorted(needed):
        require(what, modules)


def overflowed_in(records: dict[str, ShardRecord]) -> dict[str, int]:
    """Return how many numbers of which tensor a cast has made infinite."""
    return {name: count for record in records.values() for name, count in record.overflowed.items()}
