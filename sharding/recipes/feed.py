"""Take bytes that come in chunks of any length in others."""

from collections.abc import Iterator

from typing_extensions import override

from sharding.core.recipe import Inputs, Kept, Recipe
from sharding.recipes.stored import Stored


class Feed(Inputs):
    """Chunks of any length, taken in others."""

    def __init__(self, chunks: Iterator[bytes | memoryview]) -> None:
        """Take from `chunks`."""
        self._chunks = chunks
        self._rest = memoryview(b"")
        self._room = bytearray()

    @override
    def take(self, count: int) -> memoryview:
        # In memory that is used again: fresh memory is slow to come by.
        if len(self._room) < count:
            self._room = bytearray(count)
        data, filled = memoryview(self._room)[:count], 0
        for piece in self.pieces(count):
            data[filled : filled + len(piece)] = piece
            filled += len(piece)
        return data

    @override
    def pieces(self, count: int) -> Iterator[memoryview]:
        while count:
            self._rest = self._rest or memoryview(next(self._chunks))
            piece, self._rest = self._rest[:count], self._rest[count:]
            count -= len(piece)
            yield piece


def made_by(recipe: Recipe, inputs: Inputs, kept: Kept) -> Inputs:
    """Return the bytes that `recipe` makes of `inputs`: these themselves where it takes them as they are."""
    if isinstance(recipe, Stored):
        return inputs
    return Feed(chunk.data for chunk in recipe.make(inputs, kept))
