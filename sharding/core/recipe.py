"""The protocol of recipes: how the bytes of one tensor are made. Pure."""

from collections.abc import Iterator
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema

from sharding.core.text import count


class Extent(NamedTuple):
    """Bytes `[start_byte, end_byte)` of `file` in a source. `source` is its number among the sources of a job."""

    source: int
    file: str
    start_byte: int
    end_byte: int


class Chunk(NamedTuple):
    """A few megabytes of a tensor at most, and how many of its numbers a cast has made infinite. `unchanged`: a merge
    could have changed its numbers and did not. `unsure`: many of them depend so much on the order of summation that
    nobody can judge them."""

    data: bytes | memoryview
    overflowed: int = 0
    unchanged: bool = False
    unsure: bool = False


class Feed:
    """The bytes that recipes read, one after another in the order of use, or that a recipe makes."""

    # Of what was taken so far: how many of its numbers became infinite, whether a recipe that merges made it and
    # changed no number of it, and whether some of it is `unsure`.
    overflowed, unchanged, unsure = 0, True, False
    _rest, _room = memoryview(b""), bytearray()

    def __init__(self, chunks: Iterator[bytes | memoryview | Chunk]) -> None:
        self._chunks = chunks

    def take(self, count: int) -> memoryview:
        """Return the next `count` bytes, as a copy that stays valid until the next call."""
        # Use the same memory again, because fresh memory is slow.
        if len(self._room) < count:
            self._room = bytearray(count)
        data, filled = memoryview(self._room)[:count], 0
        for piece in self.pieces(count):
            data[filled : filled + len(piece)] = piece
            filled += len(piece)
        return data

    def pieces(self, count: int) -> Iterator[memoryview]:
        """Yield the next `count` bytes in the pieces in which they arrived."""
        while count:
            self._rest = self._rest or memoryview(self._next())
            piece, self._rest = self._rest[:count], self._rest[count:]
            count -= len(piece)
            yield piece

    def _next(self) -> bytes | memoryview:
        chunk = next(self._chunks)
        if not isinstance(chunk, Chunk):
            self.unchanged = False
            return chunk
        self.overflowed += chunk.overflowed
        self.unchanged = self.unchanged and chunk.unchanged
        self.unsure = self.unsure or chunk.unsure
        return chunk.data


class Kept(Protocol):
    """The small inputs that every step needs, read once and kept in memory page by page."""

    def read(self, recipe: "Recipe", start_byte: int, end_byte: int) -> bytes:
        """Return the bytes `[start_byte, end_byte)` of the output of `recipe`. Raises SourceError."""


class Recipe:
    """How the bytes of a tensor are made, as a stream in C order. The recipe alone decides where its pieces start and
    end, so a job, a proof and another machine make the same bits. In JSON one that is a tuple is a list, any other an
    object with its `kind`. Most change the bytes of another one, `of`. What they do not say otherwise is as in that
    one."""

    __slots__ = ()
    if TYPE_CHECKING:  # pydantic would take it for a field of every kind
        of: "Recipe"
    kinds = dict[str, Any]()

    def __init_subclass__(cls) -> None:
        Recipe.kinds[cls.__name__] = cls  # a dataclass with slots creates its class twice, and the second one counts

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return how pydantic reads a recipe: as one kind or, for this class, as any kind."""
        return handler(source) if cls is not Recipe else handler.generate_schema(reduce(or_, Recipe.kinds.values()))

    @property
    def size_bytes(self) -> int:
        """How many bytes it makes."""
        return self.of.size_bytes

    @property
    def file(self) -> str:
        """The file of its first byte."""
        return next(self.reads()).file

    @property
    def place(self) -> Extent | None:
        """Where its bytes are in one file, as they are. None if they are computed or put together."""
        return None

    def refusal(self, name: str, dtype: str, infinite: int) -> tuple[str, str]:
        """Return the message and the hint if `infinite` finite numbers of the tensor `name` would become infinite."""
        message = f"The merge would make {count(infinite, 'finite number')} of {name} infinite, or no number at all."
        return message, "Check the adapter: its weights may be broken."

    def files(self) -> frozenset[tuple[int, str]]:
        """Return the files that it reads, each with the number of its source."""
        return frozenset((extent.source, extent.file) for extent in (*self.reads(), *self.keeps()))

    def reads(self) -> Iterator[Extent]:
        """Yield the extents that it reads, in the order of use. It may read some bytes more than once."""
        return self.of.reads()

    def keeps(self) -> Iterator[Extent]:
        """Yield the extents of the small inputs that every step needs."""
        return self.of.keeps()

    def make(self, inputs: Feed, kept: Kept) -> Iterator[Chunk]:
        """Yield the bytes of the tensor. `inputs` holds the bytes of `reads`, and `kept` those of `keeps`."""
        raise NotImplementedError

    def words(self, shape: tuple[int, ...]) -> str:
        """Return in a few words how a tensor of `shape` is made."""
        raise NotImplementedError

    def key(self) -> bytes:
        """Return bytes that are equal only for recipes that make the same bytes from the same inputs."""
        return ascii(self).encode()
