"""Take a tensor's bytes from one file, as they are."""

from collections.abc import Iterable, Iterator

from typing_extensions import override

from sharding.core.recipe import Chunk, Extent, Feed, Kept, Recipe
from sharding.core.values import Tensor


class Stored(Extent, Recipe):
    """Bytes `[start_byte, end_byte)` of a file. It is a tuple, because a plan has a hundred thousand of them."""

    __slots__ = ()

    @property
    @override
    def size_bytes(self) -> int:
        return self.end_byte - self.start_byte

    @property
    @override
    def place(self) -> Extent:
        return self

    @override
    def files(self) -> frozenset[tuple[int, str]]:
        return frozenset([(self.source, self.file)])

    @override
    def reads(self) -> Iterator[Extent]:
        yield self

    @override
    def keeps(self) -> Iterator[Extent]:
        return iter(())

    @override
    def make(self, inputs: Feed, kept: Kept) -> Iterator[Chunk]:
        return map(Chunk, inputs.pieces(self.size_bytes))

    def words(self, shape: tuple[int, ...]) -> str:
        """Return the file and the byte range in words.

        >>> Stored(0, "f", 8, 16).words((2,))
        'f bytes 8–16'
        """
        other = f" of source {self.source}" if self.source else ""
        return f"{self.file}{other} bytes {self.start_byte}–{self.end_byte}"


def made_by(recipe: Recipe, inputs: Feed, kept: Kept) -> Feed:
    """Return the bytes that `recipe` makes of `inputs`. For a recipe that takes them as they are, that is `inputs`."""
    return inputs if isinstance(recipe, Stored) else Feed(recipe.make(inputs, kept))


def place_of(tensor: Tensor) -> Stored:
    """Return where the bytes of a tensor are in their file. The tensor comes from a header, and is not computed."""
    assert isinstance(tensor.recipe, Stored), tensor
    return tensor.recipe


def are_stored(tensors: Iterable[Tensor]) -> bool:
    """Return whether each of `tensors` is stored in one file of the first source, as it is."""
    return all((place := tensor.recipe.place) is not None and not place.source for tensor in tensors)
