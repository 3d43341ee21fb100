"""Draw the memory of two loads over time as an SVG, on the same axes. Pure."""

from collections.abc import Iterable, Sequence
from math import floor, log10

from sharding.core.text import format_bytes
from sharding.loading.costs import Moment

_WIDTH, _HEIGHT = 760, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 20, 84, 48
_COLOURS = {"original": "#c2571a", "sharded copy": "#2563eb"}
_TITLE = "Memory while loading and computing"
_STYLE = (
    ".chart-ground{fill:#fff}.chart-line{stroke:#e5e7eb}.chart text{fill:#4b5563}.chart-title{fill:#1f2937}"
    "@media(prefers-color-scheme:dark){.chart-ground{fill:#161c1f}.chart-line{stroke:#273136}.chart text{fill:#9fadb4}"
    ".chart-title{fill:#e9eef0}}"
)
"""Class names that nothing else uses, because a style applies to the whole page around the SVG. The page's own colours
win."""


def draw_memory(original: Sequence[Moment], sharded: Sequence[Moment]) -> str:
    """Return an SVG of the memory of both loads. The line is anonymous memory, the dashed one adds mapped files."""
    seconds = _nice(max((moment.seconds for moment in (*original, *sharded)), default=1.0))
    size = _nice(max((moment.total_bytes for moment in (*original, *sharded)), default=1.0))
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" class="chart" role="img" '
        f'font-family="system-ui, sans-serif" font-size="13">',
        f"<title>{_TITLE}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="chart-ground" width="{_WIDTH}" height="{_HEIGHT}" rx="8"/>',
        f'<text class="chart-title" x="{_LEFT}" y="28" font-size="16" font-weight="600">{_TITLE}</text>',
        *_axes(seconds, size),
    ]
    x = _LEFT
    for (name, colour), moments in zip(_COLOURS.items(), (original, sharded), strict=True):
        peak = max((moment.anon_bytes for moment in moments), default=0)
        text = f"{name}: {format_bytes(peak)} anonymous at peak"
        drawn.append(f'<rect x="{x}" y="42" width="12" height="12" rx="2" fill="{colour}"/>')
        drawn.append(f'<text x="{x + 18}" y="53">{text}</text>')
        x += 40 + 7 * len(text)
        anon = _path(((moment.seconds, moment.anon_bytes) for moment in moments), seconds, size)
        total = _path(((moment.seconds, moment.total_bytes) for moment in moments), seconds, size)
        if moments:
            first, last = (_place(moment.seconds, 0, seconds, size) for moment in (moments[0], moments[-1]))
            area = f"M{first[0]:.1f},{first[1]:.1f} L{anon[1:]} L{last[0]:.1f},{last[1]:.1f} Z"
            drawn.append(f'<path d="{area}" fill="{colour}" fill-opacity="0.12"/>')
            drawn.append(f'<path d="{total}" fill="none" stroke="{colour}" stroke-width="1.2" stroke-dasharray="4 3"/>')
            drawn.append(f'<path d="{anon}" fill="none" stroke="{colour}" stroke-width="2.2"/>')
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
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    note = "time since the start of the process, including imports"
    drawn.append(f'<text x="{middle}" y="{_HEIGHT - 8}" font-size="11" text-anchor="middle">{note}</text>')
    note = "filled: anonymous memory; dashed: plus mapped files, which the system can drop and read again"
    drawn.append(f'<text x="{_LEFT}" y="72" font-size="11">{note}</text>')
    return drawn


def _path(points: Iterable[tuple[float, float]], seconds: float, size: float) -> str:
    places = (_place(x, y, seconds, size) for x, y in points)
    return "M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in places)


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
