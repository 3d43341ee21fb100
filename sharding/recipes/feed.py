"""Cut a stream of chunks into pieces of other lengths."""

from collections.abc import Iterator

from typing_extensions import override

from sharding.core.recipe import Inputs, Kept, Recipe
from sharding.recipes.stored import Stored


class Feed(Inputs):
    """A stream of chunks from which you take any number of bytes."""

    def __init__(self, chunks: Iterator[bytes | memoryview]) -> None:
        """Take from `chunks`."""
        self._chunks = chunks
        self._rest = memoryview(b"")
        self._room = bytearray()
        self.overflowed = 0
        """How many numbers became infinite in what was taken so far, if a recipe made it."""
        self.unchanged = False
        """Whether a recipe that merges made what was taken so far, and changed no number of it."""
        self.unsure = False
        """Whether something that was taken so far is `unsure`."""

    @property
    def marks(self) -> tuple[bool, bool]:
        """Whether all that was taken so far is unchanged, and whether some of it is unsure."""
        return self.unchanged, self.unsure

    @override
    def take(self, count: int) -> memoryview:
        # Use the same memory again, because fresh memory is slow.
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
    """Return the bytes that `recipe` makes of `inputs`. For a recipe that takes them as they are, that is `inputs`."""
    if isinstance(recipe, Stored):
        return inputs

    def data() -> Iterator[bytes | memoryview]:
        for chunk in recipe.make(inputs, kept):
            feed.overflowed += chunk.overflowed
            feed.unchanged = feed.unchanged and chunk.unchanged
            feed.unsure = feed.unsure or chunk.unsure
            yield chunk.data

    feed = Feed(data())
    feed.unchanged = True
    return feed
