"""Say what a recipe is: how the bytes of one tensor come about, and what it may ask for. Pure."""

from collections.abc import Iterator
from functools import reduce
from operator import or_
from typing import Any, NamedTuple, Protocol

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema


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


class Recipe:
    """How the bytes of a tensor come about: their stream in C order. A frozen value.

    Its borders follow from it alone, so that whoever makes it, a job, a proof or another machine, makes the same bits.
    In JSON one that is a tuple is a list, and any other an object with its `kind`.
    """

    __slots__ = ()
    kinds = dict[str, Any]()
    """Every recipe that there is, by its name."""

    def __init_subclass__(cls) -> None:
        """Have one more kind."""
        Recipe.kinds[cls.__name__] = cls  # a dataclass with slots is made twice: the second one counts

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return how pydantic reads it: as the kind that is asked for, or as any."""
        return handler(source) if cls is not Recipe else handler.generate_schema(reduce(or_, Recipe.kinds.values()))

    @property
    def size_bytes(self) -> int:
        """How many bytes it makes."""
        raise NotImplementedError

    @property
    def file(self) -> str:
        """The file that its first byte is made of."""
        return next(self.reads()).file

    def files(self) -> frozenset[tuple[int, str]]:
        """Return which files it reads, each with the number of its source."""
        return frozenset((extent.source, extent.file) for extent in (*self.reads(), *self.keeps()))

    def reads(self) -> Iterator[Extent]:
        """Yield what is read in the order of use, some of it perhaps more than once."""
        raise NotImplementedError

    def keeps(self) -> Iterator[Extent]:
        """Yield the small inputs of every step."""
        return iter(())

    def make(self, inputs: Inputs, kept: Kept) -> Iterator[Chunk]:
        """Yield the bytes of the tensor, made of `inputs`, which are what `reads` yields, and of what is `kept`."""
        raise NotImplementedError

    def words(self, shape: tuple[int, ...]) -> str:
        """Return how a tensor of `shape` is made, in a few words."""
        raise NotImplementedError

    def key(self) -> bytes:
        """Return it as bytes that are the same only where the same bytes are made of the same."""
        raise NotImplementedError
