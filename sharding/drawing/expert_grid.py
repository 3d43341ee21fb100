"""Lay the experts of a model out as a grid: a row for each layer, and in it the files of each expert. Pure."""

import re
from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

from sharding.drawing.tensor_kinds import layer_of
from sharding.planning.order import natural_key

_EXPERT = re.compile(r"experts?[._](\d{1,6})\.")
MOST_ROWS, MOST_EXPERTS, MOST_RUNS = 200, 1000, 1000
"""Beyond these, a grid cannot be read, or it is too heavy for a page. Runs are many if files are mixed."""

Place = tuple[int, int, int, int]
"""First and last column of the copy, first and last column of today (-1: none)."""


class Run(NamedTuple):
    """Neighbouring experts of a layer that have as many bytes in the same columns."""

    experts: int
    place: Place
    bytes: int


class Row(NamedTuple):
    """The experts of a layer, from the first to the last."""

    layer: str
    runs: tuple[Run, ...]


class ExpertGrid(NamedTuple):
    """The layers with experts. `experts` is the number of columns."""

    experts: int
    rows: tuple[Row, ...]


def expert_grid(tensors: Iterable[tuple[str, int, int, int]]) -> ExpertGrid | None:
    """Return the grid of a copy from the (name, column, column of today, bytes) of its tensors.

    Return None if its experts are not separate tensors, or if they are too many or too mixed for a picture.
    """
    layers: dict[str, dict[int, tuple[Place, int]]] = {}
    for name, column, today, size in tensors:
        match = _EXPERT.search(name)
        if match is None:
            continue
        experts = layers.setdefault(layer_of(name), {})
        place, held = experts.get(int(match[1]), ((column, column, today, today), 0))
        first, last, first_today, last_today = place
        place = min(first, column), max(last, column), min(first_today, today), max(last_today, today)
        experts[int(match[1])] = place, held + size
    most = max((max(experts) + 1 for experts in layers.values()), default=0)
    if not 2 <= most <= MOST_EXPERTS or len(layers) > MOST_ROWS:
        return None
    missing: tuple[Place, int] = (-1, -1, -1, -1), 0
    rows = []
    for layer in sorted(layers, key=natural_key):
        alike = groupby(layers[layer].get(number, missing) for number in range(most))
        rows.append(Row(layer, tuple(Run(len(list(run)), *shared) for shared, run in alike)))
    return ExpertGrid(most, tuple(rows)) if sum(len(row.runs) for row in rows) <= MOST_RUNS else None
