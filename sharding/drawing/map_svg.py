"""Draw the map of a checkpoint as a standalone SVG, with colours for light and for dark pages. Pure."""

from collections.abc import Iterable, Sequence

from sharding.core.text import count, format_bytes, share, source_name
from sharding.core.values import Checkpoint, Plan
from sharding.drawing.model_map import HEIGHT, WIDTH, Box, Cell, Column, ModelMap, map_of_plan
from sharding.drawing.picture import svg_text
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
_HATCH = (
    '<defs><pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect class="ground" width="2" height="5"/></pattern></defs>'
)


def draw_plan(checkpoint: Checkpoint, plan: Plan) -> str:
    """Return the SVG of the shards that `plan` makes of a checkpoint."""
    name = source_name(checkpoint.source.kind, checkpoint.source.name)
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
        f"<style>{_style()}</style>",
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
    total = sum(cell.bytes for cell in model_map.cells)
    x = float(_MARGIN)
    for kind in model_map.kinds:
        text = f"{NAMES[kind]} {share(sum(cell.bytes for cell in model_map.cells if cell.kind == kind), total)}"
        yield f'<rect class="{kind}" x="{x:.0f}" y="{y}" width="13" height="13" rx="3"/>'
        yield f'<text x="{x + 19:.0f}" y="{y + 11}">{text}</text>'
        x += 46 + 7.6 * len(text)
    if model_map.changed:
        text = f"changes: {model_map.changed:,} of {count(model_map.tensors, 'tensor')}"
        yield f'<rect class="file" x="{x:.0f}" y="{y}" width="13" height="13" rx="3"/>'
        yield f'<rect fill="url(#hatch)" x="{x:.0f}" y="{y}" width="13" height="13" rx="3"/>'
        yield f'<text x="{x + 19:.0f}" y="{y + 11}">{text}</text>'


def _style() -> str:
    light, dark = ("".join(f".{kind}{{fill:{pair[side]}}}" for kind, pair in COLOURS.items()) for side in (0, 1))
    return (
        "text{font:14px system-ui,sans-serif;fill:#55626a}.title{font-size:20px;font-weight:650}.name{font-weight:650}"
        ".title,.name{fill:#14191c}.ground{fill:#fff}.file{fill:#e1e6e8}"
        "path{stroke:#fff;stroke-width:.7;stroke-opacity:.55;vector-effect:non-scaling-stroke}"
        f"{light}@media(prefers-color-scheme:dark){{text{{fill:#9fadb4}}.title,.name{{fill:#e9eef0}}"
        f".ground{{fill:#161c1f}}.file{{fill:#273136}}path{{stroke:#161c1f}}{dark}}}"
    )
