"""Say what a recipe is: how the bytes of one tensor come about, and what it may ask for. Values and protocols alone."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol


class Extent(NamedTuple):
    """Bytes `[start_byte, end_byte)` of `file` of a source, which has its number among those of a job."""

    source: int
    file: str
    start_byte: int
    end_byte: int


class Chunk(NamedTuple):
    """Some bytes of a tensor, a few megabytes at most, and how many numbers in it a cast has made infinite."""

    data: bytes | memoryview
    overflowed: int = 0


class Inputs(Protocol):
    """The bytes of the extents that recipes read, one after another in the order of use."""

    def take(self, count: int) -> memoryview:
        """Return a copy of the next `count` bytes, which is there until the next are taken."""
        ...

    def pieces(self, count: int) -> Iterator[memoryview]:
        """Yield the next `count` bytes as they came."""
        ...


class Kept(Protocol):
    """The small inputs of every step, read once and kept a page at a time."""

    def read(self, recipe: "Recipe", start_byte: int, end_byte: int) -> bytes:
        """Return the bytes `[start_byte, end_byte)` of what `recipe` makes. Raises SourceError."""
        ...


class Recipe(Protocol):
    """How the bytes of a tensor come about: their stream in C order. A frozen value.

    Its borders follow from it alone, so that whoever makes it, a job, a proof or another machine, makes the same bits.
    """

    def __hash__(self) -> int:
        """Return the same for the same recipe."""
        ...

    @property
    def size_bytes(self) -> int:
        """How many bytes it makes."""
        ...

    @property
    def file(self) -> str:
        """The file that its first byte is made of."""
        ...

    def files(self) -> frozenset[tuple[int, str]]:
        """Return which files it reads, each with the number of its source."""
        ...

    def reads(self) -> Iterator[Extent]:
        """Yield what is read in the order of use, some of it perhaps more than once."""
        ...

    def keeps(self) -> Iterator[Extent]:
        """Yield the small inputs of every step."""
        ...

    def make(self, inputs: Inputs, kept: Kept) -> Iterator[Chunk]:
        """Yield the bytes of the tensor, made of `inputs`, which are what `reads` yields, and of what is `kept`."""
        ...

    def words(self, shape: tuple[int, ...]) -> str:
        """Return how a tensor of `shape` is made, in a few words."""
        ...

    def key(self) -> bytes:
        """Return it as bytes that are the same only for the same recipe."""
        ...

    def needs(self) -> tuple[str, tuple[str, ...]] | None:
        """Return what it does, for a sentence, and the modules that this takes; None where a plain install has all."""
        ...
