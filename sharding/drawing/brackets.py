"""Place what stands above and below the strips of a map: components, and what fits where. Pure."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from sharding.core.values import folder_of
from sharding.drawing.model_map import WIDTH, Column


class Bracket(NamedTuple):
    """A line over neighbouring files, and its place in the strip."""

    name: str
    x: float
    width: float


def components(columns: Sequence[Column]) -> tuple[Bracket, ...]:
    """Return a bracket for each component of a pipeline of models, named after its folder. Plain models have none."""
    runs = [(folder, list(run)) for folder, run in groupby(columns, lambda column: folder_of(column.names[0]))]
    if len(runs) == 1:
        return ()
    return tuple(
        Bracket(folder.rstrip("/") or "top folder", run[0].x, run[-1].x + run[-1].width - run[0].x)
        for folder, run in runs
    )


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
        numbers.append(before.get(folder, 0) + 1)
        before[folder] = before.get(folder, 0) + column.files
    return [
        0 if before[folder_of(column.names[0])] == 1 else number
        for column, number in zip(columns, numbers, strict=True)
    ]
