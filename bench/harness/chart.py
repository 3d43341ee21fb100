"""Draw a few lines over a logarithmic axis as an SVG."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

_WIDTH, _HEIGHT = 760, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 30, 70, 56
_COLOURS = ("#c2571a", "#2563eb", "#0f766e", "#7c3aed")


@dataclass(frozen=True, slots=True)
class Line:
    """A name, and points from left to right."""

    title: str
    points: tuple[tuple[float, float], ...]


def draw(title: str, axes: tuple[str, str], lines: Sequence[Line]) -> str:
    """Return an SVG of `lines`: across a power of ten a step, upwards from zero."""
    powers = range(
        floor(log10(min(x for line in lines for x, _ in line.points))),
        ceil(log10(max(x for line in lines for x, _ in line.points))) + 1,
    )
    step = _nice(max(y for line in lines for _, y in line.points) / 4)
    across, up = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        return _LEFT + across * (log10(x) - powers[0]) / (len(powers) - 1), _HEIGHT - _BOTTOM - up * y / (5 * step)

    def marks() -> Iterator[str]:
        for number in range(6):
            x, y = place(10 ** powers[0], number * step)
            yield f'<path d="M{x:.1f},{y:.1f} H{_WIDTH - _RIGHT}" stroke="#e5e7eb"/>'
            yield f'<text x="{x - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">{number * step:g}</text>'
        for power in powers:
            x, y = place(10**power, 0)
            yield f'<text x="{x:.1f}" y="{y + 20:.1f}" text-anchor="middle">{10.0**power:,g}</text>'

    def curves() -> Iterator[str]:
        for number, (line, colour) in enumerate(zip(lines, _COLOURS, strict=False)):
            at = [place(x, y) for x, y in line.points]
            path = " L".join(f"{x:.1f},{y:.1f}" for x, y in at)
            yield f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2.2"/>'
            yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in at)
            yield f'<text x="{_LEFT + 140 * number}" y="52" fill="{colour}">● {escape(line.title)}</text>'

    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
            'font-family="system-ui, sans-serif" font-size="13" fill="#1f2937">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" rx="8" fill="#ffffff"/>',
            f'<text x="{_LEFT}" y="28" font-size="16" font-weight="600">{escape(title)}</text>',
            *marks(),
            *curves(),
            f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 10}" text-anchor="end" fill="#4b5563">{escape(axes[0])}</text>',
            f'<text x="{_WIDTH - _RIGHT}" y="28" text-anchor="end" fill="#4b5563">{escape(axes[1])}</text>',
            "</svg>",
            "",
        ]
    )


def _nice(value: float) -> float:
    """Return the next number above `value` that is 1, 2 or 5 times a power of ten."""
    power = 10.0 ** floor(log10(value))
    return float(next(factor * power for factor in (1, 2, 5, 10) if factor * power >= value))
