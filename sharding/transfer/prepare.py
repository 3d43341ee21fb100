"""What a job transfers, and what has been done for that before."""

from dataclasses import dataclass

from sharding.core.protocols import Source
from sharding.core.values import Checkpoint, Plan, ShardRecord
from sharding.transfer.noting_source import NotingSource


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a job transfers: the tensors of `plan`, made of `sources`.

    Where a process made these bytes first, as the classic engine does, `is_stated` says whether all that it read of a
    Hub was compared with a hash, and the last two what it took.
    """

    sources: tuple[Source, ...]
    checkpoint: Checkpoint
    plan: Plan
    is_stated: bool = False
    peak_anon_bytes: int = 0
    disk_bytes_written: int = 0

    @property
    def noted(self) -> tuple[NotingSource, ...]:
        """What remembers what is read of a source, where nothing else will show that it is what a Hub states."""
        return tuple(source for source in self.sources if isinstance(source, NotingSource))


def overflowed_in(records: dict[str, ShardRecord]) -> dict[str, int]:
    """Return how many numbers of which tensor a cast has made infinite."""
    return {name: count for record in records.values() for name, count in record.overflowed.items()}
