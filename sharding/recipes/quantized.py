"""Compute the numbers of quantized weights: unpack codes, subtract zeros, multiply by scales."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, Literal

from typing_extensions import override

from sharding.core.dtypes import BY_NAME, CASTABLE, tensor_bytes
from sharding.core.errors import SourceError
from sharding.core.limits import BATCH_BYTES
from sharding.core.recipe import Chunk, Extent, Feed, Kept, Recipe
from sharding.recipes.cast import PIECE_ELEMENTS, np, numbers, numpy_dtype, rounded, settle
from sharding.recipes.stored import made_by

_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The number for each four bits of E2M1 (OCP Microscaling Formats 1.0, table 5)."""
_BITS = {"E2M1": 4, "2·E2M1": 4, "MAP4": 4, "MAP8": 8, "2^": 8, "2^/2": 8}
_BITS |= {f"U{bits}{more}": bits for bits in (2, 4, 8) for more in ("", "+1")}


@dataclass(frozen=True, slots=True)
class Codes:
    """How a tensor stores numbers.

    `kind` is a dtype of safetensors, or U2, U4, U8 (integers in the bits of words), E2M1 (FP4), MAP4, MAP8 (places in a
    list of numbers), 2^ (an exponent of two, plus 127). "U4+1" is one more, and 0 for the largest. "2·E2M1" and "2^/2"
    are the doubled number and half the power: their product is that of `ldexp`, which has powers that no float32 holds.

    The numbers of a word start at its lowest bits, or are in `order`: number i has the place `order[i]`. They are
    neighbours in a row, or in a column if a word goes `down`; the value is its bytes.
    """

    kind: str
    order: tuple[int, ...] = ()
    down: int = 0

    @property
    def bits(self) -> int:
        """The bits of a code."""
        return _BITS.get(self.kind) or BY_NAME[self.kind].bits

    @property
    def tall(self) -> int:
        """How many rows a row of words has."""
        return self.down * 8 // self.bits or 1

    def row_bytes(self, columns: int) -> int:
        """Return the bytes of a row of so many numbers, or of so many words that go down."""
        size = columns * self.down or -(-columns * self.bits // 8)
        return -(-size // 4) * 4 if self.kind.startswith("U") else size

    def numbers(self, data: bytes | memoryview, rows: int, table: Any = None) -> Any:
        """Return the numbers in `rows` rows of codes or words, as float32 of shape (rows · tall, columns)."""
        if self.kind in CASTABLE:
            return numbers(data, self.kind).astype(np.float32).reshape(rows, -1)
        found = (_table(self.kind) if table is None else table).take(np.frombuffer(data, np.uint8), axis=0)
        if self.order:
            found = found.reshape(-1, len(self.order))[:, self.order]
        if not self.down:
            return found.reshape(rows, -1)
        return found.reshape(rows, -1, self.tall).swapaxes(1, 2).reshape(rows * self.tall, -1)


@dataclass(frozen=True, slots=True)
class Grid:
    """Numbers of which each `block` of the last two dimensions of a weight has one, such as scales.

    Blocks at the edges may be smaller. The grid of a matrix lies row by row, or is `turned`: column by column. Each
    number is multiplied by the single float32 `times`, or divided by it.
    """

    of: Recipe
    codes: Codes
    block: tuple[int, int]
    turned: bool = False
    times: Recipe | None = None
    divides: bool = False


@dataclass(frozen=True, slots=True)
class Scaled(Recipe):
    """The numbers of `shape` that codes stand for: ((code - zero) · scale) · `factor` + `plus`.

    Each step is rounded to float32, and the last one to `dtype`. A zero is that of the grid, plus `zero`. `map` has
    the float32 for each code of MAP4 and MAP8. `index` has the column in the grids for each column of the weight.
    """

    of: Recipe
    codes: Codes
    shape: tuple[int, ...]
    scales: Grid
    dtype: str
    zeros: Grid | None = None
    zero: int = 0
    factor: float = 1.0
    plus: float = 0.0
    map: Recipe | None = None
    index: Recipe | None = None
    kind: Literal["scaled"] = "scaled"

    @property
    @override
    def size_bytes(self) -> int:
        return tensor_bytes(self.dtype, self.shape)

    @override
    def keeps(self) -> Iterator[Extent]:
        yield from self.of.keeps()
        grids = [grid for grid in (self.scales, self.zeros) if grid]
        for one in (*(grid.of for grid in grids), *(grid.times for grid in grids), self.map, self.index):
            if one:
                yield from (*one.reads(), *one.keeps())

    @override
    def make(self, inputs: Feed, kept: Kept) -> Iterator[Chunk]:
        dtype, filled = numpy_dtype(self.dtype), 0
        room = np.empty(0, dtype)
        for found in self._numbers(inputs, kept):  # few at a time; the chunks are larger, because each costs time
            if filled + found.size > room.size:
                if filled:
                    yield Chunk(room[:filled].view(np.uint8).data)
                filled, most = 0, max(found.size, min(prod(self.shape), BATCH_BYTES // 4 // dtype.itemsize))
                room = room if room.size >= most else np.empty(most, dtype)
            part = room[filled : filled + found.size].reshape(found.shape)
            with np.errstate(all="ignore"):
                part[...] = rounded(found, self.dtype)
            settle(found, part.view(f"u{part.itemsize}"), CASTABLE[self.dtype].infinity)
            filled += found.size
        if filled:
            yield Chunk(room[:filled].view(np.uint8).data)

    def _numbers(self, inputs: Feed, kept: Kept) -> Iterator[Any]:
        """Yield the numbers as float32, as many at a time as fit into a processor's cache."""
        source, codes = made_by(self.of, inputs, kept), self.codes
        rows, columns = (1, 1, *self.shape)[-2:]
        table = _spread(_floats(self.map, kept), codes.bits) if self.map else _table(codes.kind)
        table = table - np.float32(self.zero)  # integers are so small that this is exact
        scales = _Factors(self, self.scales, kept)
        zeros = _Factors(self, self.zeros, kept) if self.zeros else None
        height, at_a_time, row = self.scales.block[0], PIECE_ELEMENTS // columns if columns else 0, 0
        while row < (prod(self.shape[:-1]) if columns else 0):
            below = rows - row % rows
            if height > 1:  # the rows of a row of blocks have the same scales
                below = min(below, height - row % rows % height)
            count = min(below, max(at_a_time // codes.tall, 1) * codes.tall)
            length = columns if at_a_time or codes.tall > 1 else max(PIECE_ELEMENTS // 16, 1) * 16
            for start in range(0, columns, length):
                end = min(start + length, columns)
                size = codes.row_bytes(columns) - codes.row_bytes(start) if end == columns else codes.row_bytes(length)
                found = codes.numbers(source.take(size * (count // codes.tall)), count // codes.tall, table)
                found = np.ascontiguousarray(found[:, : end - start])
                with np.errstate(all="ignore"):  # torch gives the same infinite numbers
                    if zeros is not None:
                        zeros.apply(np.subtract, found, row, start)
                    scales.apply(np.multiply, found, row, start)
                    if self.factor != 1:
                        found *= np.float32(self.factor)
                    if self.plus:
                        found += np.float32(self.plus)
                yield found
            row += count

    @override
    def words(self, shape: tuple[int, ...]) -> str:
        height, width = self.scales.block
        what = f"{self.codes.kind} {list(self.shape)}, {self.of.words(self.shape)}"
        scales = f"a {self.scales.codes.kind} scale for {height}×{width}, {self.scales.of.words(())}"
        times = f", {'÷' if self.scales.divides else '×'} {self.scales.times.words(())}" if self.scales.times else ""
        zeros = f"; zeros, {self.zeros.of.words(())}" if self.zeros else ""
        return f"dequantize({what}; {scales}{times}{zeros})"


class _Factors:
    """The numbers of a grid for each number of a weight."""

    def __init__(self, of: Scaled, grid: Grid, kept: Kept) -> None:
        self._grid, self._kept = grid, kept
        self._rows, columns = (1, 1, *of.shape)[-2:]
        self._height, self._width = -(-self._rows // grid.block[0]), -(-columns // grid.block[1])
        self._times = _floats(grid.times, kept)[0] if grid.times else None
        self._index = _index(of.index, kept, columns, self._width, grid.block[1])
        # What lies in pieces or is computed would be made again for each read.
        is_computed = grid.of.place is None and not grid.turned
        self._whole = kept.read(grid.of, 0, grid.of.size_bytes) if is_computed else b""
        self._is_single = grid.of.size_bytes * 8 == grid.codes.bits
        self._last: tuple[Any, Any] = (None, None)
        self._last_turned: tuple[Any, Any] = (None, None)

    def apply(self, step: Any, to: Any, row: int, start: int) -> None:
        """Do a `step` to numbers of a weight, the first of which is in `row` and the column `start`.

        Rows are counted through all matrices. Several rows are of one matrix, have all columns, and have one row of
        blocks in common or are blocks of their own.
        """
        (tall, wide), (matrix, inside), (count, length) = self._grid.block, divmod(row, self._rows), to.shape
        matrix, end = 0 if self._is_single else matrix, start + length
        first, last = inside // tall, (inside + count - 1) // tall + 1
        left, right = (0, self._width) if self._index is not None else (start // wide, -(-end // wide))
        if tall == 1 and wide >= 32 and start % wide == length % wide == 0 and self._index is None:
            to = to.reshape(count, -1, wide)
            step(to, self._numbers(matrix, first, last, left, right)[..., None], out=to)
            return
        key = matrix, first, last, left, right
        if self._last[0] != key:
            found = self._numbers(matrix, first, last, left, right)
            is_spread = self._index is None and wide > 1 and right - left > 1
            self._last = key, np.repeat(found, wide, axis=1) if is_spread else found
        found, skip = self._last[1], start - left * wide
        if self._index is not None:
            found = found.take(self._index[start:end], axis=1)
        elif found.shape[1] > 1:
            found = found[:, skip : skip + length]
        step(to, found, out=to)

    def _numbers(self, matrix: int, first: int, last: int, left: int, right: int) -> Any:
        codes = self._grid.codes
        if self._grid.turned:
            return self._turned(matrix)[first:last, left:right]
        above, below, size = first // codes.tall, -(-last // codes.tall), codes.row_bytes(self._width)
        at = (matrix * -(-self._height // codes.tall) + above) * size
        if below - above == 1 and codes.bits % 8 == 0 and not codes.down:  # perhaps few of its columns
            step = codes.bits // 8
            found = codes.numbers(self._read(at + left * step, at + right * step), 1)
        else:
            found = codes.numbers(self._read(at, at + (below - above) * size), below - above)
            found = found[first - above * codes.tall :][: last - first, left:right]
        return self._times_second(found)

    def _turned(self, matrix: int) -> Any:
        if self._last_turned[0] != matrix:
            size = self._width * self._grid.codes.row_bytes(self._height)
            data = self._kept.read(self._grid.of, matrix * size, (matrix + 1) * size)
            found = self._grid.codes.numbers(data, self._width)[:, : self._height]
            self._last_turned = matrix, self._times_second(np.ascontiguousarray(found.T))
        return self._last_turned[1]

    def _times_second(self, found: Any) -> Any:
        if self._times is None:
            return found
        with np.errstate(all="ignore"):
            return found / self._times if self._grid.divides else found * self._times

    def _read(self, start: int, end: int) -> Any:
        return self._whole[start:end] if self._whole else self._kept.read(self._grid.of, start, end)


def _floats(recipe: Recipe, kept: Kept) -> Any:
    return numbers(kept.read(recipe, 0, recipe.size_bytes), "F32")


def _index(recipe: Recipe | None, kept: Kept, columns: int, width: int, block: int) -> Any:
    """Return the column in the grid for each column of a weight. None if they follow one another.

    Raises SourceError if there is none. A negative one means that nothing was put in another order.
    """
    if recipe is None:
        return None
    found = np.frombuffer(kept.read(recipe, 0, recipe.size_bytes), np.int32)
    if (found < 0).all() or np.array_equal(found, np.arange(columns) // block):
        return None
    if len(found) != columns or found.min() < 0 or found.max() >= width:
        message = f"{recipe.words((columns,))} does not say which scales the columns of its weight have."
        raise SourceError(message, "Download the model again, or ask the person who quantized it.")
    return found


@cache
def _table(kind: str) -> Any:
    """Return the float32 of each code of a kind, as a row for each byte."""
    codes, bits = np.arange(256), _BITS.get(kind, 8)
    if kind.startswith("U"):
        return _spread(np.roll(codes[: 1 << bits], -kind.count("+")), bits)
    if "E2M1" in kind:
        return _spread(np.array(_FP4) * (2 if "2·" in kind else 1), bits)
    if "^" in kind:
        return _spread(np.ldexp(1.0, codes - (128 if "/" in kind else 127)), bits)
    return _spread(numbers(bytes(range(256)), kind), bits)


def _spread(of: Any, bits: int) -> Any:
    """Return for each byte the numbers of its codes of so many bits, the lowest bits first."""
    with np.errstate(all="ignore"):  # not every power is a float32
        table = np.asarray(of).astype(np.float32)
    return table[np.arange(256)[:, None] >> np.arange(0, 8, bits) & (1 << bits) - 1]
