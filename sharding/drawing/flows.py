"""Find how many bytes go from which file of today to which file of the copy. Pure."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

from sharding.drawing.model_map import Cell, Column, ModelMap


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
            today_bytes, size = sizes.get(_pair(cell), (0, 0))
            sizes[_pair(cell)] = today_bytes + cell.today_bytes, size + cell.bytes
    pairs = sorted(sizes)
    leave = _edges(drawn.today, [(today, sizes[today, after][0]) for today, after in pairs])
    # In both columns the flows lie in the order of the columns that they come from or go to, so that few cross.
    arrive = _edges(drawn.after, [(after, sizes[today, after][1]) for today, after in pairs])
    return tuple(
        Flow(*pair, *sizes[pair], *left, *right) for pair, left, right in zip(pairs, leave, arrive, strict=True)
    )


_pair: Callable[[Cell], tuple[int, int]] = attrgetter("today_column", "column")


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
