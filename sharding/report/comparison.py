"""Sum up what loading the original and the copy cost, for reports and pages, and draw their memory over time. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import Annotated, Any

from pydantic import Field

from sharding.core.bounds import Count, Line, Word
from sharding.core.limits import CURVE_MOMENTS
from sharding.core.text import count, format_bytes
from sharding.loading.costs import (
    ClassicCost,
    Comparison,
    LoadCost,
    Moment,
    Prediction,
    Side,
    Spread,
    Verdict,
    middle_run,
)

_SINCE = "since the libraries were imported"
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
    """What loading the original and the copy cost. `original` and `sharded` are None if they were not loaded."""

    measured: bool
    reason_not_measured: Line
    verdict: Verdict
    method: Word
    dtype: Word | None
    memory_mapping: bool
    memory_limit_bytes: Count | None
    machine: Word
    predicted: Mapping[Side, Prediction]
    original: LoadSummary | None
    sharded: LoadSummary | None
    classic: ClassicCost | None = None

    @property
    def picture(self) -> str | None:
        """Memory over time as an SVG, None if nothing was loaded. It shows only numbers."""
        return draw_memory(self.original.curve if self.original else (), self.sharded.curve) if self.sharded else None

    @property
    def table(self) -> tuple[tuple[str, ...], ...]:
        """The headings, then a row for each side, with medians and spreads or the outcome. () if nothing was loaded."""
        sides = {"original": self.original, "sharded copy": self.sharded}
        rows = [(name, *_cells(side)) for name, side in sides.items() if side]
        return (("", "files", "load and compute", "anonymous memory", "mapped files"), *rows) if rows else ()

    @property
    def how(self) -> str:
        """A sentence on how the figures of the table were measured, "" if nothing was loaded."""
        if not self.sharded:
            return ""
        settings = [self.method, self.dtype or "dtype as stored", f"cache {self.sharded.cache}"]
        settings += [] if self.memory_mapping else ["memory mapping off"]
        if self.memory_limit_bytes:
            by = self.sharded.memory_limited_by
            settings.append(f"limited to {format_bytes(self.memory_limit_bytes)}{by and f' by {by}' or ''}")
        runs, imports = count(self.sharded.runs, "run"), self.sharded.seconds.get("import")
        how = f"Medians of {runs} each, in processes of their own ({', '.join(settings)}; {self.machine})."
        return how + (f" Times are {_SINCE}, which took {imports.median:.1f} s." if imports else "")


def summarize_comparison(comparison: Comparison) -> ComparisonSummary:
    """Return a comparison with its runs summed up as spreads."""
    same = ("reason_not_measured", "predicted", "verdict", "method", "memory_limit_bytes", "machine", "classic")
    return ComparisonSummary(
        **{name: getattr(comparison, name) for name in same},
        measured=comparison.is_measured,
        dtype=comparison.dtype_asked,
        memory_mapping=comparison.with_mapping,
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


_WIDTH, _HEIGHT = 430, 320  # So narrow that its letters can be read on a phone.
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 14, 108, 48
_COLOURS = {"original": "#c2571a", "sharded copy": "#2563eb"}
_TITLE = "Memory while loading and computing"
_STYLE = (
    ".chart-ground{fill:#fff}.chart-line{stroke:#e5e7eb}.chart text{fill:#4b5563}.chart-title{fill:#1f2937}"
    "@media(prefers-color-scheme:dark){.chart-ground{fill:#161c1f}.chart-line{stroke:#273136}.chart text{fill:#9fadb4}"
    ".chart-title{fill:#e9eef0}}"
)
"""Class names that nothing else uses: a style applies to the whole page around the SVG, whose own colours win."""


def draw_memory(original: Sequence[Moment], sharded: Sequence[Moment]) -> str:
    """Return an SVG: lines of anonymous memory, dashed ones with mapped files. One load may have no moments."""
    seconds = _nice(max((moment.seconds for moment in (*original, *sharded)), default=1.0))
    size = _nice(max((moment.total_bytes for moment in (*original, *sharded)), default=1.0))
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" class="chart" role="img" '
        f'width="{_WIDTH}" height="{_HEIGHT}" font-family="system-ui, sans-serif" font-size="13">',
        f"<title>{_TITLE}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="chart-ground" width="{_WIDTH}" height="{_HEIGHT}" rx="8"/>',
        f'<text class="chart-title" x="{_LEFT}" y="28" font-size="16" font-weight="600">{_TITLE}</text>',
        *_axes(seconds, size),
    ]

    def path(points: Iterable[tuple[float, float]]) -> str:
        places = (_place(*point, seconds, size) for point in points)
        return " L".join(f"{x:.1f},{y:.1f}" for x, y in places)

    # One below the other, so that a phone shows them whole.
    for row, ((name, colour), moments) in enumerate(zip(_COLOURS.items(), (original, sharded), strict=True)):
        if not moments:
            continue
        peak = max((moment.anon_bytes for moment in moments), default=0)
        text = f"{name}: {format_bytes(peak)} anonymous at peak"
        y = 42 + 20 * row
        drawn.append(f'<rect x="{_LEFT}" y="{y}" width="12" height="12" rx="2" fill="{colour}"/>')
        drawn.append(f'<text x="{_LEFT + 18}" y="{y + 11}">{text}</text>')
        anon = path((moment.seconds, moment.anon_bytes) for moment in moments)
        total = path((moment.seconds, moment.total_bytes) for moment in moments)
        area = f"M{path([(moments[0].seconds, 0)])} L{anon} L{path([(moments[-1].seconds, 0)])} Z"
        drawn.append(f'<path d="{area}" fill="{colour}" fill-opacity="0.12"/>')
        line = f'fill="none" stroke="{colour}" stroke-width'
        drawn.append(f'<path d="M{total}" {line}="1.2" stroke-dasharray="4 3"/>')
        drawn.append(f'<path d="M{anon}" {line}="2.2"/>')
    return "\n".join([*drawn, "</svg>", ""])


def _axes(seconds: float, size: float) -> list[str]:
    drawn = []
    for step in range(5):
        x, y = _place(seconds * step / 4, size * step / 4, seconds, size)
        drawn.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="chart-line"/>')
        label = format_bytes(size * step / 4) if step else "0"
        drawn.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
        label = f"{seconds * step / 4:g} s"
        anchor = "end" if step == 4 else "middle"
        drawn.append(f'<text x="{x:.1f}" y="{_HEIGHT - 26}" text-anchor="{anchor}">{label}</text>')
    notes = {94: "filled: anonymous memory; dashed: plus mapped files", _HEIGHT - 8: f"time {_SINCE}"}
    drawn += [f'<text x="{_LEFT}" y="{y}" font-size="11">{note}</text>' for y, note in notes.items()]
    return drawn


def _place(at_seconds: float, at_bytes: float, seconds: float, size: float) -> tuple[float, float]:
    x = _LEFT + (_WIDTH - _LEFT - _RIGHT) * at_seconds / seconds
    return x, _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * at_bytes / size


def _nice(most: float) -> float:
    """Return a round number of at least `most` that divides well by four.

    >>> _nice(13.2), _nice(0.9)
    (16.0, 1.0)
    """
    unit = 10.0 ** floor(log10(max(most, 1e-9)))
    steps = (1.0, 1.2, 1.6, 2.0, 2.4, 3.2, 4.0, 5.0, 6.0, 8.0, 10.0)
    return next(unit * step for step in steps if unit * step >= most or step == 10.0)
