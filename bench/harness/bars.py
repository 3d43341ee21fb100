"""Draw what contenders took as horizontal bars, ours first, as an SVG."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _LABEL, _RIGHT = 760, 210, 96
_ROW, _BAR, _TOP, _GAP = 30, 18, 62, 44
_OURS, _OTHERS, _INK, _QUIET = "#c2571a", "#9ca3af", "#1f2937", "#4b5563"


@dataclass(frozen=True, slots=True)
class Panel:
    """One quantity: its name, its values by contender, ours first, and how one is written."""

    title: str
    values: Sequence[tuple[str, float]]
    form: str


def draw_bars(title: str, panels: Sequence[Panel]) -> str:
    """Return an SVG of `panels`, one below the other, each with a scale of its own that begins at zero."""
    height = _TOP + sum(_GAP + _ROW * len(panel.values) for panel in panels)

    def marks() -> Iterator[str]:
        y = _TOP
        for panel in panels:
            yield f'<text x="24" y="{y + 10}" fill="{_QUIET}">{escape(panel.title)}</text>'
            longest = max(value for _, value in panel.values)
            for number, (name, value) in enumerate(panel.values):
                top = y + 22 + _ROW * number
                length = (_WIDTH - _LABEL - _RIGHT) * value / longest
                colour, weight = (_OURS, "600") if number == 0 else (_OTHERS, "400")
                text = f'y="{top + 14}" font-weight="{weight}"'
                yield f'<text x="{_LABEL - 12}" {text} text-anchor="end">{escape(name)}</text>'
                yield f'<rect x="{_LABEL}" y="{top}" width="{length:.1f}" height="{_BAR}" rx="3" fill="{colour}"/>'
                yield f'<text x="{_LABEL + length + 8:.1f}" {text}>{panel.form.format(value)}</text>'
            y += _GAP + _ROW * len(panel.values)

    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
            f'font-family="system-ui, sans-serif" font-size="13" fill="{_INK}">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{_WIDTH}" height="{height}" rx="8" fill="#ffffff"/>',
            f'<text x="24" y="34" font-size="16" font-weight="600">{escape(title)}</text>',
            *marks(),
            "</svg>",
            "",
        ]
    )
