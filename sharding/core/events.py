"""What a job yields while it runs; the last event is its result."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from sharding.core.bounds import Count, Line, Seconds
from sharding.core.values import Checkpoint, Plan, RepoRef, Verification

Phase = Literal["check", "transfer", "verify"]
"""What is done with bytes: look at what an earlier run left, write, read again."""


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan is made; no byte has moved."""

    checkpoint: Checkpoint
    plan: Plan


@dataclass(frozen=True, slots=True)
class AtWork:
    """A worker of a fleet: its process on a node, the file that it is at, and how far; memory is that of now."""

    node: Line
    pid: Count
    file: Line
    bytes_done: Count
    seconds: Seconds
    anon_bytes: Count


@dataclass(frozen=True, slots=True)
class Progress:
    """Bytes moved so far in one phase of the job (in JSON its `stage`); `seconds_left` is None until a rate is known.

    `anon_bytes` is the memory of the job's process now; `bytes_uploaded` and `bytes_deduplicated` are those of
    its finished shards. They stay 0 where no job but a mere comparison makes progress. `workers` are those of a fleet.
    """

    phase: Annotated[Phase, Field(alias="stage")]
    bytes_done: Count
    bytes_total: Count
    file: str = ""
    bytes_per_second: float = 0.0
    seconds_left: float | None = None
    anon_bytes: Count = 0
    bytes_uploaded: Count = 0
    bytes_deduplicated: Count = 0
    workers: tuple[AtWork, ...] = ()


@dataclass(frozen=True, slots=True)
class ShardFinished:
    """A shard is safely at the destination; `kept` when an earlier run had finished it already."""

    file: str
    bytes: Count
    sha256: str
    number: Count
    shards: Count
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Verified:
    """The result has been read again and compared."""

    verification: Verification


@dataclass(frozen=True, slots=True)
class Published:
    """The result can be seen, at `place`: a path or the address of a page. `remark` is what is left to do."""

    ref: RepoRef
    place: str
    remark: str = ""
