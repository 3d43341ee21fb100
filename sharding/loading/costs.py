"""The frozen values of a comparison: the cost of each load, the comparison of all loads, and the verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, NamedTuple

from sharding.core.bounds import Amount, Count, Line, Seconds

Outcome = Literal["loaded", "out-of-memory", "unsupported", "failed"]
Kind = Literal["no-difference", "gain", "loss", "mixed", "not-loaded", "outputs-differ", "copy-alone"]
Side = Literal["original", "sharded"]
Cause = Literal["dtype", "format", "file-size", "memory-mapping", "unknown"]


class Moment(NamedTuple):
    """The memory of a process at one moment after its start. In JSON it is a row of four numbers."""

    seconds: Seconds
    anon_bytes: Count
    file_bytes: Count
    total_bytes: Count


@dataclass(frozen=True, slots=True)
class LoadCost:
    """The cost of one load in a fresh process, including a computation. `base_anon_bytes` is of the libraries alone,
    `mapped_bytes` what is still in the page cache. Equal `logits_sha256` mean bit-identical logits."""

    outcome: Outcome
    message: str
    method: str
    dtype_asked: str | None
    memory_limited_by: str | None
    cache: str
    seconds: Mapping[str, float]
    peak_anon_bytes: int
    peak_file_bytes: int
    peak_total_bytes: int
    curve: tuple[Moment, ...] = ()
    architecture: str = ""
    format: str = ""
    files: int = 0
    weight_bytes: int = 0
    largest_file_bytes: int = 0
    base_anon_bytes: int = 0
    loaded_bytes: int = 0
    mapped_bytes: int | None = None
    disk_bytes_read: int | None = None
    stored_dtypes: Mapping[str, int] | None = None
    is_cast: bool = False
    logits_sha256: str = ""
    tokens: tuple[int, ...] = ()

    @property
    def working_seconds(self) -> float:
        """Seconds to load, to compute once and to generate: the time a person waits after the imports."""
        return sum(self.seconds.get(phase, 0.0) for phase in ("load", "forward", "tokens"))

    @property
    def is_mapped(self) -> bool | None:
        """Whether most of the loaded weights are memory-mapped; None if the system does not report it."""
        return None if self.mapped_bytes is None else 2 * self.mapped_bytes > self.loaded_bytes


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over several runs.

    >>> Spread.of([3.0, 1.0, 2.0])
    Spread(median=2.0, low=1.0, high=3.0)
    """

    median: Amount
    low: Amount
    high: Amount

    @classmethod
    def of(cls, values: list[float]) -> "Spread":
        """Return the median, the smallest and the largest of `values`."""
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a comparison in a few sentences, with its kind and the cause that it names."""

    kind: Kind
    cause: Cause | None
    sentence: Line


@dataclass(frozen=True, slots=True)
class Prediction:
    """The memory that a load should take, calculated by `predict`. None of it was measured."""

    peak_anon_bytes: Count
    peak_file_bytes: Count


CLASSIC_WAY = "from_pretrained and save_pretrained"


@dataclass(frozen=True, slots=True)
class ClassicCost:
    """What making the same shards in the usual `way` cost; predicted if `seconds` is None."""

    seconds: Seconds | None
    peak_anon_bytes: Count
    disk_bytes: Count
    reason_not_run: Line = ""
    mapped_bytes: Count = 0  # Weights in the page cache beside `peak_anon_bytes`.
    way: Line = CLASSIC_WAY


@dataclass(frozen=True, slots=True)
class Comparison:
    """Original and sharded copy loaded in turn. If `sharded` is empty, it holds predictions, and the reason why nothing
    was measured. If only `original` is empty, the original cannot be loaded here, and the verdict says why."""

    method: str
    dtype_asked: str | None
    with_mapping: bool
    memory_limit_bytes: int | None
    original: tuple[LoadCost, ...]
    sharded: tuple[LoadCost, ...]
    verdict: Verdict
    predicted: Mapping[Side, Prediction]
    machine: str
    reason_not_measured: str = ""
    classic: ClassicCost | None = None

    @property
    def is_measured(self) -> bool:
        """Whether the figures come from real loads."""
        return bool(self.sharded)


@dataclass(frozen=True, slots=True)
class Probed:
    """One of all `loads` was measured. Round 0 is the warm-up and does not count."""

    side: Side
    round: int
    rounds: int
    cost: LoadCost
    loads: int = 0


@dataclass(frozen=True, slots=True)
class Compared:
    """Original and sharded copy were compared by loading them."""

    comparison: Comparison


def middle_run(costs: Sequence[LoadCost]) -> LoadCost:
    """Return the run with the median time, whose curve is shown."""
    return sorted(costs, key=lambda cost: cost.working_seconds)[(len(costs) - 1) // 2]
