"""Replace some rows of a tensor."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from typing_extensions import override

from sharding.core.limits import BATCH_BYTES
from sharding.core.recipe import Chunk, Extent, Inputs, Kept, Recipe
from sharding.recipes.feed import Feed, made_by


@dataclass(frozen=True, slots=True)
class Rows(Recipe):
    """The rows that `of` makes, of `row_bytes` each, with those in `places` replaced by the rows of `by`, in order.

    No row is replaced twice.
    """

    of: Recipe
    by: Recipe
    places: tuple[int, ...]
    row_bytes: int
    kind: Literal["rows"] = "rows"

    @override
    def reads(self) -> Iterator[Extent]:
        yield from self.by.reads()
        yield from self.of.reads()

    @override
    def keeps(self) -> Iterator[Extent]:
        yield from self.by.keeps()
        yield from self.of.keeps()

    @override
    def make(self, inputs: Inputs, kept: Kept) -> Iterator[Chunk]:
        new_rows = made_by(self.by, inputs, kept)
        by_place = {place: bytes(new_rows.take(self.row_bytes)) for place in self.places}
        source, rows = made_by(self.of, inputs, kept), self.size_bytes // self.row_bytes
        at_once = max(1, BATCH_BYTES // self.row_bytes)
        for start in range(0, rows, at_once):
            data, unchanged = source.take(min(at_once, rows - start) * self.row_bytes), True
            for place in by_place.keys() & set(range(start, start + at_once)):
                row = data[(place - start) * self.row_bytes :][: self.row_bytes]
                unchanged = unchanged and row == by_place[place]
                row[:] = by_place[place]
            was_unchanged, unsure = source.marks if isinstance(source, Feed) else (True, False)
            yield Chunk(data, 0, unchanged and was_unchanged, unsure)

    @override
    def words(self, shape: tuple[int, ...]) -> str:
        count = len(self.places)
        new = f"{count} {'row' if count == 1 else 'rows'} from {self.by.words((count, *shape[1:]))}"
        return f"replace({self.of.words(shape)}; {new})"
