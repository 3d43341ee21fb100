"""Draw the map of a checkpoint as a standalone SVG, and say what lies where in its strips, for a page."""

from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from sharding.core.errors import DestinationError
from sharding.core.text import count, format_bytes, share
from sharding.core.values import Content, Plan, folder_of
from sharding.drawing.model_map import HEIGHT, WIDTH, Box, Cell, Column, ModelMap, map_of_plan
from sharding.drawing.tensor_kinds import Kind

COLOURS: dict[Kind, tuple[str, str]] = {
    "attention": ("#0f766e", "#2fa79a"),
    "mlp": ("#3b76b8", "#6ba6dd"),
    "expert": ("#7666bd", "#a497e6"),
    "embedding": ("#c98f1f", "#e0b455"),
    "norm": ("#8d9aa2", "#8b9aa2"),
    "other": ("#5b6b76", "#b3c0c7"),
}
"""The colours of each kind: on a light page and on a dark page."""

NAMES: dict[Kind, str] = {
    "attention": "attention",
    "mlp": "MLP",
    "expert": "experts",
    "embedding": "embeddings and heads",
    "norm": "norms",
    "other": "other",
}

_MARGIN, _TITLE, _CAPTION, _STRIP, _SPACE, _LEGEND = 20, 52, 24, 120, 26, 36
_STRETCH = _STRIP / HEIGHT
_LIGHT, _DARK = ("".join(f".{kind}{{fill:{pair[side]}}}" for kind, pair in COLOURS.items()) for side in (0, 1))
_STYLE = (
    "text{font:14px system-ui,sans-serif;fill:#55626a}.title{font-size:20px;font-weight:650}.name{font-weight:650}"
    ".title,.name{fill:#14191c}.ground{fill:#fff}.file{fill:#e1e6e8}"
    "path{stroke:#fff;stroke-width:.7;stroke-opacity:.55;vector-effect:non-scaling-stroke}"
    f"{_LIGHT}@media(prefers-color-scheme:dark){{text{{fill:#9fadb4}}.title,.name{{fill:#e9eef0}}"
    f".ground{{fill:#161c1f}}.file{{fill:#273136}}path{{stroke:#161c1f}}{_DARK}}}"
)
_HATCH = (
    '<defs><pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect class="ground" width="2" height="5"/></pattern></defs>'
)


def draw_plan(checkpoint: Content, plan: Plan) -> str:
    """Return the SVG of the shards that `plan` makes of a checkpoint."""
    name = checkpoint.source.words
    title = f"{name}: {count(len(checkpoint.weight_files), 'file')} → {len(plan.shards):,}"
    return draw_map(map_of_plan(checkpoint, plan), title)


def draw_map(model_map: ModelMap, title: str) -> str:
    """Return the SVG of a map: the files of today above the files of the copy, and a legend of the colours."""
    strips = [("Today", model_map.today, [(cell, cell.today) for cell in model_map.cells])] if model_map.today else []
    strips.append(("After", model_map.after, [(cell, cell.after) for cell in model_map.cells]))
    height = _TITLE + len(strips) * (_CAPTION + _STRIP + _SPACE) + _LEGEND
    width = WIDTH + 2 * _MARGIN
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">',
        f"<title>{svg_text(title)}</title>",
        f"<style>{_STYLE}</style>",
        *([_HATCH] if model_map.changed else []),
        f'<rect class="ground" width="{width:.0f}" height="{height}" rx="12"/>',
        f'<text class="title" x="{_MARGIN}" y="36">{svg_text(title)}</text>',
    ]
    y = _TITLE
    for name, columns, cells in strips:
        drawn += _strip(name, columns, cells, y)
        y += _CAPTION + _STRIP + _SPACE
    return "\n".join([*drawn, *_legend(model_map, y), "</svg>", ""])


def files_caption(columns: Iterable[Column]) -> str:
    """Return the number and total size of the files in `columns`; also of the largest if each has its own column."""
    columns = list(columns)
    files, total = sum(column.files for column in columns), format_bytes(sum(column.bytes for column in columns))
    largest = f", the largest {format_bytes(max(column.bytes for column in columns))}"
    return f"{count(files, 'file')}, {total}" + (largest if 1 < files == len(columns) else "")


def _strip(name: str, columns: Sequence[Column], cells: Sequence[tuple[Cell, Box | None]], y: float) -> Iterable[str]:
    yield f'<text x="{_MARGIN}" y="{y + 14}"><tspan class="name">{name}</tspan>  {files_caption(columns)}</text>'
    yield f'<g transform="translate({_MARGIN} {y + _CAPTION}) scale(1 {_STRETCH:g})">'
    for column in columns:
        yield f'<rect class="file" x="{column.x:.1f}" width="{column.width:.1f}" height="{HEIGHT:.0f}"/>'
    for kind in COLOURS:
        path = "".join(_rectangle(box) for cell, box in cells if box and cell.kind == kind)
        if path:
            yield f'<path class="{kind}" d="{path}"/>'
    if name == "After" and (hatched := outline(cell for cell, _ in cells)):
        yield f'<path fill="url(#hatch)" d="{hatched}"/>'
    yield "</g>"


def outline(cells: Iterable[Cell]) -> str:
    """Return the path around the cells of the copy that a merge changes, "" if there are none."""
    return "".join(_rectangle(cell.after) for cell in cells if cell.changed)


def _rectangle(box: Box) -> str:
    return f"M{box.x:.1f} {box.y:.1f}h{box.width:.1f}v{box.height:.1f}h-{box.width:.1f}z"


def _legend(model_map: ModelMap, y: float) -> Iterable[str]:
    x, total = float(_MARGIN), sum(cell.bytes for cell in model_map.cells)
    sizes = {kind: sum(cell.bytes for cell in model_map.cells if cell.kind == kind) for kind in model_map.kinds}
    entries = [(f"{NAMES[kind]} {share(size, total)}", [f'class="{kind}"']) for kind, size in sizes.items()]
    if model_map.changed:
        verb = "filled" if "filled" in model_map.verb else "changes"
        changes = f"{verb}: {model_map.changed:,} of {count(model_map.tensors, 'tensor')}"
        entries.append((changes, ['class="file"', 'fill="url(#hatch)"']))
    if model_map.left_out:
        entries.append((f"left out: {count(model_map.left_out, 'tensor')}", ['class="file"']))
    for text, fills in entries:
        yield from (f'<rect {fill} x="{x:.0f}" y="{y}" width="13" height="13" rx="3"/>' for fill in fills)
        yield f'<text x="{x + 19:.0f}" y="{y + 11}">{text}</text>'
        x += 46 + 7.6 * len(text)


class Bracket(NamedTuple):
    """A line over neighbouring files, and its place in the strip."""

    name: str
    x: float
    width: float


def components(columns: Sequence[Column]) -> tuple[Bracket, ...]:
    """Return a bracket for each component of a pipeline of models, named after its folder. Plain models have none."""
    runs = [(folder, list(run)) for folder, run in groupby(columns, lambda column: folder_of(column.names[0]))]
    names = ((folder.rstrip("/") or "top folder", run[0].x, run[-1]) for folder, run in runs if len(runs) > 1)
    return tuple(Bracket(name, x, last.x + last.width - x) for name, x, last in names)


def file_numbers(columns: Sequence[Column]) -> list[int]:
    """Return the number in its folder of the first file of each column, 0 for a file that is alone there.

    >>> file_numbers([Column(names, 1, 1, 0, 1) for names in (["unet/a", "unet/b"], ["unet/c"], ["vae/d"])])
    [1, 3, 0]
    """
    before: dict[str, int] = {}
    numbers = []
    for column in columns:
        folder = folder_of(column.names[0])
        numbers.append((folder, before.get(folder, 0) + 1))
        before[folder] = before.get(folder, 0) + column.files
    return [0 if before[folder] == 1 else number for folder, number in numbers]


class Flow(NamedTuple):
    """Bytes that leave a column of today and arrive in one of the copy. Edges are shares of their columns."""

    today_column: int
    column: int
    today_bytes: int
    bytes: int
    today_x: float
    today_width: float
    x: float
    width: float


def flows_of(drawn: ModelMap) -> tuple[Flow, ...]:
    """Return the flows of a map, from left to right. There are none if today's files are not known."""
    sizes: dict[tuple[int, int], tuple[int, int]] = {}
    for cell in drawn.cells:
        if cell.today_column >= 0:
            pair = cell.today_column, cell.column
            today_bytes, size = sizes.get(pair, (0, 0))
            sizes[pair] = today_bytes + cell.today_bytes, size + cell.bytes
    pairs = sorted(sizes)
    leave = _edges(drawn.today, [(today, sizes[today, after][0]) for today, after in pairs])
    # In both columns the flows lie in the order of the columns that they come from or go to, so that few cross.
    arrive = _edges(drawn.after, [(after, sizes[today, after][1]) for today, after in pairs])
    return tuple(
        Flow(*pair, *sizes[pair], *left, *right) for pair, left, right in zip(pairs, leave, arrive, strict=True)
    )


def _edges(columns: Sequence[Column], flows: Sequence[tuple[int, int]]) -> list[tuple[float, float]]:
    """Return the start and length of the edge of each flow of (column, bytes)."""
    starts, edges = [column.x for column in columns], []
    for number, size in flows:
        width = columns[number].width * size / (columns[number].bytes or 1)
        edges.append((starts[number], width))
        starts[number] += width
    return edges


def script_data(drawn: ModelMap) -> dict[str, Any]:
    """Return what the page's script needs. A column: first and last file, tensors, size, files, number of the first. A
    flow: column of today, column, size, start and length of its edge today, then in the copy. A run of experts:
    experts, size, first and last column, first and last column of today."""
    data: dict[str, Any] = {"today": [], "after": [], "flows": [], "experts": []}
    for side, columns in (("today", drawn.today), ("after", drawn.after)):
        for column, number in zip(columns, file_numbers(columns), strict=True):
            held = count(column.tensors, "tensor"), format_bytes(column.bytes)
            data[side].append([*column.names[:1], *column.names[-1:], *held, column.files, number])
    for today, after, _, size, *edges in flows_of(drawn):
        data["flows"].append([today, after, format_bytes(size), *(round(side, 1) for side in edges)])
    for row in drawn.experts.rows if drawn.experts else ():
        runs = [[run.experts, format_bytes(run.bytes), *run.place] for run in row.runs]
        data["experts"].append([row.layer, runs])
    return data


def save_picture(path: str, svg: str) -> None:
    """Write an SVG file. Raises DestinationError if it cannot be written."""
    try:
        Path(path).write_text(svg, encoding="utf-8")
    except OSError as error:
        hint = "Choose a file in an existing folder that you may write to."
        raise DestinationError(f"The picture cannot be written to {path}: {error.strerror or error}.", hint) from error


def visible(text: str) -> str:
    """Return `text` with a question mark for each character that XML forbids or nobody sees."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def svg_text(text: str) -> str:
    """Return any text, such as a name from a file of a stranger, as it stands in an SVG."""
    return escape(visible(text))
