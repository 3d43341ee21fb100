"""Describe what a job transfers."""

from dataclasses import dataclass

from sharding.core.protocols import Source
from sharding.core.values import Checkpoint, Plan, ShardRecord
from sharding.transfer.noting_source import NotingSource


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a job transfers: the tensors of `plan`, made of `sources`.

    The last three fields are for the classic engine, which first runs a process that makes these bytes. `is_stated`
    says whether everything that it read from a Hub was compared with a hash. The other two are what it cost.
    """

    sources: tuple[Source, ...]
    checkpoint: Checkpoint
    plan: Plan
    is_stated: bool = False
    peak_anon_bytes: int = 0
    disk_bytes_written: int = 0

    @property
    def noted(self) -> tuple[NotingSource, ...]:
        """The sources that record their reads, because nothing else will show that these match the Hub's hashes."""
        return tuple(source for source in self.sources if isinstance(source, NotingSource))


def overflowed_in(records: dict[str, ShardRecord]) -> dict[str, int]:
    """Return tensor name to how many of its numbers a cast has made infinite."""
    return {name: count for record in records.values() for name, count in record.overflowed.items()}
