"""Sum up what loading the original and the copy cost, for reports and pages. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from sharding.core.bounds import Count, Line, Word
from sharding.core.limits import CURVE_MOMENTS
from sharding.core.text import count, format_bytes
from sharding.loading.chart import draw_memory
from sharding.loading.costs import ClassicCost, Comparison, LoadCost, Moment, Prediction, Spread, Verdict, middle_run

_PHASES = ("import", "load", "forward", "tokens")
_FIGURES = ("working_seconds", "base_anon_bytes", "peak_anon_bytes", "peak_file_bytes", "peak_total_bytes")
_OF_THE_MIDDLE = (
    "architecture", "format", "files", "weight_bytes", "largest_file_bytes", "is_cast", "is_mapped", "cache",
    "memory_limited_by", "logits_sha256", "tokens",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSummary:
    """What loading one of two checkpoints cost: spreads over all `runs`, and the rest from the middle one."""

    runs: Count
    outcome: Word
    message: str
    architecture: Line
    format: Word
    files: Count
    weight_bytes: Count
    largest_file_bytes: Count
    stored_dtypes: Mapping[Word, Count]
    is_cast: bool
    is_mapped: bool | None
    cache: Word
    memory_limited_by: Word | None
    logits_sha256: Word
    tokens: tuple[int, ...]
    seconds: Mapping[Word, Spread]
    working_seconds: Spread
    base_anon_bytes: Spread
    peak_anon_bytes: Spread
    peak_file_bytes: Spread
    peak_total_bytes: Spread
    disk_bytes_read: Spread
    curve: Annotated[tuple[Moment, ...], Field(max_length=2 * CURVE_MOMENTS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonSummary:
    """What loading the original and the copy cost. `original` and `sharded` are None if nothing was loaded."""

    measured: bool
    reason_not_measured: Line
    verdict: Verdict
    method: Word
    dtype: Word | None
    memory_mapping: bool
    memory_limit_bytes: Count | None
    machine: Word
    predicted: Mapping[Literal["original", "sharded"], Prediction]
    original: LoadSummary | None
    sharded: LoadSummary | None
    classic: ClassicCost | None = None

    @property
    def picture(self) -> str | None:
        """Memory over time as an SVG, None if nothing was loaded. It shows only numbers."""
        return draw_memory(self.original.curve, self.sharded.curve) if self.original and self.sharded else None

    @property
    def table(self) -> tuple[tuple[str, ...], ...]:
        """The headings, then a row for each side, with medians and spreads or the outcome. () if nothing was loaded."""
        if not self.original or not self.sharded:
            return ()
        headings = ("", "files", "load and compute", "anonymous memory", "mapped files")
        return (headings, ("original", *_cells(self.original)), ("sharded copy", *_cells(self.sharded)))

    @property
    def how(self) -> str:
        """A sentence on how the figures of the table were measured, "" if nothing was loaded."""
        if not self.original:
            return ""
        settings = [self.method, self.dtype or "dtype as stored", f"cache {self.original.cache}"]
        settings += [] if self.memory_mapping else ["memory mapping off"]
        if self.memory_limit_bytes:
            by = self.original.memory_limited_by
            settings.append(f"limited to {format_bytes(self.memory_limit_bytes)}{by and f' by {by}' or ''}")
        runs = count(self.original.runs, "run")
        return f"Medians of {runs} each, in fresh processes ({', '.join(settings)}; {self.machine})."


def summarize_comparison(comparison: Comparison) -> ComparisonSummary:
    """Return a comparison with its runs summed up as spreads."""
    original, sharded = comparison.predicted
    same = ("reason_not_measured", "verdict", "method", "memory_limit_bytes", "machine", "classic")
    return ComparisonSummary(
        **{name: getattr(comparison, name) for name in same},
        measured=comparison.is_measured,
        dtype=comparison.dtype_asked,
        memory_mapping=comparison.with_mapping,
        predicted={"original": original, "sharded": sharded},
        original=_loads(comparison.original),
        sharded=_loads(comparison.sharded),
    )


def _loads(costs: Sequence[LoadCost]) -> LoadSummary | None:
    if not costs:
        return None
    shown = middle_run(costs)
    phases = [phase for phase in _PHASES if all(phase in cost.seconds for cost in costs)]
    same: dict[str, Any] = {name: getattr(shown, name) for name in _OF_THE_MIDDLE}
    figures: dict[str, Any] = {name: Spread.of([getattr(cost, name) for cost in costs]) for name in _FIGURES}
    return LoadSummary(
        runs=len(costs),
        outcome=next((cost.outcome for cost in costs if cost.outcome != "loaded"), "loaded"),
        message=next((cost.message for cost in costs if cost.message), ""),
        stored_dtypes=shown.stored_dtypes or {},
        seconds={phase: Spread.of([cost.seconds[phase] for cost in costs]) for phase in phases},
        disk_bytes_read=Spread.of([cost.disk_bytes_read or 0 for cost in costs]),
        curve=tuple(moment._replace(seconds=round(moment.seconds, 3)) for moment in shown.curve),
        **same,
        **figures,
    )


def _cells(loads: LoadSummary) -> tuple[str, ...]:
    def spread(figure: Spread, unit: float, name: str, digits: int) -> str:
        middle, low, high = (f"{value / unit:.{digits}f}" for value in (figure.median, figure.low, figure.high))
        return f"{middle} {name} ({low}-{high})"

    files = f"{loads.files:,} {loads.format}"
    if loads.outcome != "loaded":
        return (files, loads.outcome)
    memory = (spread(peak, 1e9, "GB", 2) for peak in (loads.peak_anon_bytes, loads.peak_file_bytes))
    return (files, spread(loads.working_seconds, 1, "s", 1), *memory)
