"""Say what lies where in the strips of a map: components, stages, and the bytes that go from file to file. Pure."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from sharding.core.text import count, format_bytes
from sharding.core.values import folder_of
from sharding.drawing.model_map import WIDTH, Column, ModelMap


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


def stretches(columns: Sequence[Column], spans: Iterator[tuple[int, int]]) -> Iterator[tuple[float, float]]:
    """Yield start and length in the strip of each of the `spans`, which are first byte and end."""
    for start, end in spans:
        x = position(columns, start)
        yield x, position(columns, end, ends=True) - x


def position(columns: Sequence[Column], byte: int, ends: bool = False) -> float:
    """Return where a byte of all files lies in the strip. Between two files, a span `ends` in the first of them.

    >>> files = [Column(["a"], 1, 100, 0, 480), Column(["b"], 1, 100, 520, 480)]
    >>> position(files, 50), position(files, 100), position(files, 100, ends=True)
    (240.0, 520.0, 480.0)
    """
    for column in columns:
        if byte < column.bytes or (ends and byte == column.bytes):
            return column.x + column.width * byte / column.bytes
        byte -= column.bytes
    return WIDTH


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
    """The bytes that leave a column of today, and arrive in a column of the copy after a cast; and where they do so.

    An edge is as long as its share of its column.
    """

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
    starts = [column.x for column in columns]
    edges = []
    for number, size in flows:
        column = columns[number]
        width = column.width * size / column.bytes if column.bytes else 0.0
        edges.append((starts[number], width))
        starts[number] += width
    return edges


def script_data(drawn: ModelMap) -> dict[str, Any]:
    """Return what the script of the page needs to know: columns, the flows between them, and the experts of a map.

    A column is [first file, last file, tensors, size, number of files, number of the first], a flow [column of today,
    column, size, start and length of its edge today, and in the copy]. A run of experts is [experts, size, first and
    last column, first and last column of today].
    """
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
