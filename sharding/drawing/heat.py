"""Draw by how much the layers of two checkpoints differ, as a standalone SVG for light and for dark pages. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import ceil, inf
from typing import NamedTuple

from sharding.core.text import count
from sharding.core.verification import NOT_FINITE, Difference
from sharding.drawing.map_svg import svg_text
from sharding.drawing.tensor_kinds import layer_of
from sharding.planning.order import natural_key

STEPS = (1e-5, 1e-3, 1e-1)
"""Where the colour becomes stronger, as 1 − cosine. Rounding to bf16 stays below the first, to FP8 below the second."""

EQUAL, STRONGEST, NO_NUMBERS = 0, len(STEPS) + 1, len(STEPS) + 2  # Levels. The last: nothing to compare.
_LEGEND = ("equal", "≤ 10⁻⁵", "≤ 10⁻³", "≤ 10⁻¹", "more", "not comparable")
_LIGHTS = ("#e1e6e8", "#c3e4e0", "#7cc3ba", "#2b9187", "#0a534d")
_DARKS = ("#273136", "#1c4643", "#22746c", "#36b3a5", "#a5efe6")

_MOST_STACKS, _MOST_PARTS, _MOST_COLUMNS = 6, 28, 128
_WIDTH, _LABEL, _LEGEND_WIDTH, _ROW, _WIDEST = 1040.0, 236.0, 790.0, 20.0, 40.0
_LABEL_CHARACTERS = 32
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")

_PATTERN = (
    f'<defs><pattern id="heat-none" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    f'<rect class="h{EQUAL}" width="5" height="5"/><path class="line" d="M0 0v5"/></pattern></defs>'
)
_DAY, _DARK = ("".join(f"--heat-{level}:{colour};" for level, colour in enumerate(one)) for one in (_LIGHTS, _DARKS))
_NIGHT = f"{_DARK}--heat-ink:#e9eef0;--heat-muted:#9fadb4"
_FILLS = "".join(f".heat .h{level}{{fill:var(--heat-{level})}}" for level in range(STRONGEST + 1))
_STYLE = (
    f".heat{{{_DAY}--heat-ink:#14191c;--heat-muted:#55626a}}.heat text{{font:13px system-ui,sans-serif;"
    "fill:var(--heat-muted)}.heat .stack{font-weight:650;fill:var(--heat-ink)}.heat .axis{text-anchor:middle}"
    f"{_FILLS}.heat .h{NO_NUMBERS}{{fill:url(#heat-none)}}.heat .line{{stroke:var(--heat-muted);stroke-width:2.4}}"
    f".dark .heat{{{_NIGHT}}}@media(prefers-color-scheme:dark){{.heat:root{{{_NIGHT}}}}}"
)


class Cell(NamedTuple):
    """The tensors of one part in one layer, or in several that share a column: their level, and words for a pointer."""

    level: int
    words: str


class Stack(NamedTuple):
    """The layers of one list of modules: cells of each part by number of the column. "" is what is outside."""

    name: str
    columns: tuple[str, ...]
    rows: Mapping[str, Mapping[int, Cell]]


def level_of(difference: Difference) -> int:
    """Return the strength of the colour for a tensor that differs.

    >>> level_of(Difference("w", 0.1, 0.01, 0.9999, 0.0)), level_of(Difference("w", note="only in the first"))
    (2, 5)
    """
    if difference.equal is None:
        return NO_NUMBERS
    return EQUAL if difference.equal == 1 else 1 + sum(distance_of(difference) > step for step in STEPS)


def distance_of(difference: Difference) -> float:
    """Return 1 − cosine: 0 if all are equal, infinite if there is no angle or some that differ are not finite."""
    if difference.equal == 1:
        return 0.0
    if difference.cosine is None or NOT_FINITE in difference.note:
        return inf
    return 1 - difference.cosine


def stacks_of(names: Iterable[str], differences: Iterable[Difference]) -> list[Stack]:
    """Return the stacks of the tensors `names` in natural order, only those that differ most if there are too many."""
    by_name = {difference.tensor: difference for difference in differences}
    found: dict[str, dict[str, dict[str, list[str]]]] = {}
    for name in sorted({*names, *by_name}, key=natural_key):
        layer = layer_of(name)
        stack, _, number = layer.rpartition(".") if layer else ("", "", "")
        part = _NUMBER.sub("*", name[len(layer) + 1 :]) if layer else name
        found.setdefault(stack, {}).setdefault(part, {}).setdefault(number, []).append(name)
    ordered = sorted(found, key=lambda stack: stack == "")  # what is outside of layers comes last
    levels = {stack: max(_level(row, by_name) for row in found[stack].values()) for stack in found}
    kept = set(sorted(ordered, key=lambda stack: -levels[stack])[:_MOST_STACKS])
    return [_stack(stack, found[stack], by_name) for stack in ordered if stack in kept]


def draw_heat(names: Iterable[str], differences: Sequence[Difference]) -> str:
    """Return the SVG: a row for each part of a layer, a column for each layer. `names` are all tensors of both."""
    names = {*names}
    stacks = stacks_of(names, differences)
    title = f"By how much the layers differ: {count(len(differences), 'tensor')} of {len(names):,}"
    y, drawn = 8.0, list[str]()
    for stack in stacks:
        drawn += _draw_stack(stack, y)
        y += 26 + _ROW * len(stack.rows) + 18
    drawn.append(f'<text x="0" y="{y + 16:.0f}">1 − cosine: 0 if they agree</text>')
    x = _LABEL
    for level, words in enumerate(_LEGEND):
        drawn.append(f'<rect class="h{level}" x="{x:.0f}" y="{y + 4:.0f}" width="14" height="14" rx="3"/>')
        drawn.append(f'<text x="{x + 20:.0f}" y="{y + 16:.0f}">{words}</text>')
        x += 42 + 7.2 * len(words)
    widest = max((_LABEL + len(stack.columns) * _size(stack) for stack in stacks), default=0.0)
    width, height = max(widest, _LEGEND_WIDTH), y + 30
    place = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    head = f'<svg class="heat" xmlns="http://www.w3.org/2000/svg" {place} role="img">\n<title>{svg_text(title)}</title>'
    return "\n".join([head, f"<style>{_STYLE}</style>", _PATTERN, *drawn, "</svg>", ""])


def _level(row: Mapping[str, Iterable[str]], by_name: Mapping[str, Difference]) -> int:
    names = chain.from_iterable(row.values())
    return max((level_of(by_name[name]) for name in names if name in by_name), default=EQUAL)


def _stack(name: str, parts: Mapping[str, Mapping[str, Sequence[str]]], by_name: Mapping[str, Difference]) -> Stack:
    numbers = sorted({number for row in parts.values() for number in row}, key=natural_key)
    width = ceil(len(numbers) / _MOST_COLUMNS)
    groups = [numbers[start : start + width] for start in range(0, len(numbers), width)]
    column_of = {number: column for column, group in enumerate(groups) for number in group}
    levels = {part: _level(row, by_name) for part, row in parts.items()}
    kept = set(sorted(parts, key=lambda part: -levels[part])[: _MOST_PARTS - (len(parts) > _MOST_PARTS)])
    rows: dict[str, dict[int, list[str]]] = {}
    for part, row in parts.items():
        label = part if part in kept else f"{len(parts) - len(kept)} other parts"
        for number, held in row.items():
            rows.setdefault(label, {}).setdefault(column_of[number], []).extend(held)
    cells = {label: {column: _cell(held, by_name) for column, held in row.items()} for label, row in rows.items()}
    titles = tuple("–".join(dict.fromkeys([*group[:1], *group[-1:]])) for group in groups)
    return Stack(name, titles, cells)


def _cell(names: Sequence[str], by_name: Mapping[str, Difference]) -> Cell:
    differing = [by_name[name] for name in names if name in by_name]
    if not differing:
        return Cell(EQUAL, f"{names[0]}: {'equal' if len(names) == 1 else f'all {len(names):,} equal'}")
    worst = max(differing, key=lambda one: (level_of(one), distance_of(one)))
    more = f" ({len(differing):,} of {len(names):,} differ; the worst)" if len(names) > 1 else ""
    return Cell(level_of(worst), f"{worst.tensor}{more}: {in_words(worst)}")


def in_words(difference: Difference) -> str:
    """Return by how much a tensor differs.

    >>> in_words(Difference("w", 0.5, 0.25, 0.75, 0.5))
    '1 − cosine 0.25, largest difference 0.5, 50% equal'
    """
    if difference.equal is None:
        return difference.note
    angle = "no angle" if difference.cosine is None else f"1 − cosine {distance_of(difference):.2g}"
    largest = "" if difference.largest_abs is None else f", largest difference {difference.largest_abs:.2g}"
    return f"{angle}{largest}, {100 * difference.equal:.3g}% equal"


def _size(stack: Stack) -> float:
    return min((_WIDTH - _LABEL) / len(stack.columns), _WIDEST)


def _draw_stack(stack: Stack, y: float) -> Iterator[str]:
    size = _size(stack)
    yield f'<text class="stack" x="0" y="{y + 14:.0f}">{svg_text(_short(stack.name or "outside of layers"))}</text>'
    every = max(ceil(30 / size), 1) if len(stack.columns) > 1 else 1
    for column, title in enumerate(stack.columns):
        if title and column % every == 0:
            middle = _LABEL + (column + 0.5) * size
            yield f'<text class="axis" x="{middle:.1f}" y="{y + 14:.0f}">{svg_text(title)}</text>'
    y += 22
    for part, row in stack.rows.items():
        label = part.removesuffix(".weight")
        yield f'<text x="0" y="{y + 14:.0f}">{svg_text(_short(label))}<title>{svg_text(part)}</title></text>'
        for column, cell in row.items():
            x, width = _LABEL + column * size, max(size - 1, 1)
            place = f'x="{x:.1f}" y="{y:.0f}" width="{width:.1f}" height="{_ROW - 1:.0f}"'
            yield f'<rect class="h{cell.level}" {place}><title>{svg_text(cell.words)}</title></rect>'
        y += _ROW


def _short(label: str) -> str:
    """Return a label that fits beside its row. The end of a name says more than its start."""
    return label if len(label) <= _LABEL_CHARACTERS else f"…{label[1 - _LABEL_CHARACTERS :]}"
