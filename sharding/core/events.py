"""The events that a job yields while it runs. The last one is its result."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from sharding.core.bounds import Amount, Count, File, Line, Seconds
from sharding.core.limits import PROGRESS_FILES
from sharding.core.origin import Place
from sharding.core.values import Content, Plan
from sharding.core.verification import Verification

Phase = Literal["check", "transfer", "verify", "numbers", "fetch"]
"""The phase of a job: check the shards of an earlier run, write, read again, compare numbers, or fetch files."""

PHASES: Mapping[Phase, str] = {
    "check": "checking what is there",
    "transfer": "writing shards",
    "verify": "verifying",
    "numbers": "comparing numbers",
    "fetch": "fetching the files",
}


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan is ready, and no byte has moved yet."""

    checkpoint: Content
    plan: Plan


@dataclass(frozen=True, slots=True)
class AtWork:
    """A worker of a fleet at this moment: its process and node, its current file, its progress and its memory."""

    node: Line
    pid: Count
    file: Line
    bytes_done: Count
    seconds: Seconds
    anon_bytes: Count


@dataclass(frozen=True, slots=True)
class Progress:
    """Bytes moved so far in one phase of the job. `seconds_left` is None until a rate is known. `anon_bytes` is the
    current memory of the job's process, `waiting_seconds` how much longer the Hub asks to wait. `bytes_uploaded` and
    `bytes_deduplicated` count finished shards only. `files` has the bytes since the last event, by file that is
    written, or read in phases that only read. A fleet has them only while it writes."""

    phase: Annotated[Phase, Field(alias="stage")]
    bytes_done: Count
    bytes_total: Count
    file: str = ""
    bytes_per_second: Amount = 0.0
    seconds_left: Amount | None = None
    anon_bytes: Count = 0
    waiting_seconds: Amount = 0.0
    bytes_uploaded: Count = 0
    bytes_deduplicated: Count = 0
    workers: tuple[AtWork, ...] = ()
    files: Annotated[Mapping[File, Count], Field(max_length=PROGRESS_FILES)] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShardFinished:
    """A shard is safely at the destination. `kept` means that an earlier run had already finished it."""

    file: str
    bytes: Count
    sha256: str
    number: Count
    shards: Count
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Verified:
    """The result was read again and compared."""

    verification: Verification


@dataclass(frozen=True, slots=True)
class Published:
    """The result is visible at `place`, a path or the address of a page. `remark` names what you still have to do."""

    ref: Place
    place: str
    remark: str = ""
