"""Find how many bytes go from which file of today to which file of the copy, and write it for the page. Pure."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sharding.core.text import count, format_bytes
from sharding.drawing.brackets import file_numbers
from sharding.drawing.model_map import Column, ModelMap


class Flow(NamedTuple):
    """The bytes that go from a column of today to a column of the copy, and the edges where they leave and arrive.

    A cast makes `bytes`, which arrive, differ from `today_bytes`, which leave. An edge is as long as its share of its
    column.
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
    columns = {
        side: [
            [*column.names[:1], *column.names[-1:], count(column.tensors, "tensor"), format_bytes(column.bytes)]
            + [column.files, number]
            for column, number in zip(held, file_numbers(held), strict=True)
        ]
        for side, held in (("today", drawn.today), ("after", drawn.after))
    }
    return columns | {
        "flows": [
            [flow.today_column, flow.column, format_bytes(flow.bytes)]
            + [round(side, 1) for side in (flow.today_x, flow.today_width, flow.x, flow.width)]
            for flow in flows_of(drawn)
        ],
        "experts": [
            [row.layer, [[run.experts, format_bytes(run.bytes), *run.place] for run in row.runs]]
            for row in (drawn.experts.rows if drawn.experts else ())
        ],
    }
