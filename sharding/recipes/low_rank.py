"""Add the low-rank updates of a LoRA to a weight, as PEFT merges them."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, NamedTuple

from typing_extensions import override

from sharding.core.dtypes import BY_NAME, CASTABLE
from sharding.core.limits import BATCH_BYTES
from sharding.core.recipe import Chunk, Extent, Feed, Kept, Recipe
from sharding.core.text import count
from sharding.recipes.cast import np, numbers, numpy_dtype, settle
from sharding.recipes.product import Spread, product
from sharding.recipes.stored import Stored, made_by

MERGED_BYTES = 512 << 10
"""Bytes of a weight to which an update is added at once. The sums and products take ten times as many."""

LEAST_ROWS, LEAST_COLUMNS = 8, 64
"""Fewest rows to multiply at once, or columns of a weight that is stored transposed. Fewer give other bits."""


@dataclass(frozen=True, slots=True)
class Update:
    """A change `(b @ a) * scale` of the rows `[first_row, last_row)` of the matrices `[first, last)` of a weight.

    For one matrix, `a` makes (rank, inputs) numbers and `b` (outputs, rank). For several, the rows of `a` are those of
    the first matrix, then of the second. The columns of `b` are one of each matrix, then the second of each. With
    `is_grouped`, they are all of the first matrix, then of the second. Without `a`, the change is `b * scale`. If the
    update is `transposed`, the weight has (inputs, outputs) numbers.

    That is how PEFT 0.21 multiplies (`tuners/lora/layer.py`, `Linear`, `Embedding` and `ParamWrapper`): it casts both
    to float32 first, and scales last.
    """

    a: Recipe | None
    b: Recipe
    a_dtype: str
    b_dtype: str
    rank: int
    scale: float
    first_row: int
    last_row: int
    first: int = 0
    last: int = 1
    transposed: bool = False
    is_grouped: bool = False

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        """What it reads, in this order."""
        return (self.a, self.b) if self.a else (self.b,)

    @property
    def memory_bytes(self) -> int:
        """How much memory its numbers take, as float32."""
        of_a = self.a.size_bytes * 32 // BY_NAME[self.a_dtype].bits if self.a else 0
        return of_a + self.b.size_bytes * 32 // BY_NAME[self.b_dtype].bits


class Term(NamedTuple):
    """Some rows of a weight in the dtype of the sum, their change, its factor, and the `spread` of its order."""

    weight: Any
    change: Any = None
    factor: Any = 1.0
    spread: Spread | None = None


@dataclass(frozen=True, slots=True)
class LowRank(Recipe):
    """The numbers that `of` makes, of `shape` and `dtype`, with the changes of `updates`, which do not overlap.

    Each sum is computed in float32 (float64 for F64) and rounded once to `dtype`. With `rounds_twice`, the change is
    rounded to `dtype` before it is added. A weight with `is_stacked` has a matrix for each index of its first
    dimension; any other is one matrix of its first dimension times all others. Dtypes are named as in safetensors.
    """

    of: Recipe
    dtype: str
    shape: tuple[int, ...]
    updates: tuple[Update, ...]
    is_stacked: bool = False
    rounds_twice: bool = False
    kind: Literal["low_rank"] = "low_rank"

    @override
    def reads(self) -> Iterator[Extent]:
        if not self.is_in_turn:
            for update in self.updates:
                for recipe in update.recipes:
                    yield from recipe.reads()
            yield from self.of.reads()
            return
        assert isinstance(self.of, Stored)
        begun, start = set[int](), self.of.start_byte
        for _, number, first, last in self._parts():
            if number is not None and number not in begun:
                begun.add(number)
                for recipe in self.updates[number].recipes:
                    yield from recipe.reads()
            end = start + (last - first) * self._row_bytes
            yield self.of._replace(start_byte=start, end_byte=end)
            start = end

    @property
    def is_in_turn(self) -> bool:
        """Whether each update is read just before its rows, so that not all of them are in memory."""
        return len(self.updates) > 1 and isinstance(self.of, Stored)

    @property
    def _row_bytes(self) -> int:
        return self._matrices()[2] * BY_NAME[self.dtype].bits // 8

    @override
    def make(self, inputs: Feed, kept: Kept) -> Iterator[Chunk]:
        for weight, change, _, spread in self.terms(inputs, kept):
            is_unsure = spread is not None and spread.is_unsure(weight, change, self.dtype)
            with np.errstate(all="ignore"):  # torch gives the same infinite numbers
                change = change.astype(numpy_dtype(self.dtype)) if change is not None and self.rounds_twice else change
                total = weight if change is None else weight + change
            yield from rounded(weight, total, self.dtype, is_unsure)

    def terms(self, inputs: Feed, kept: Kept) -> Iterator[Term]:
        """Yield the rows of the weight in order, some at a time, each with its change."""
        in_turn = self.is_in_turn
        changes = {} if in_turn else {n: _Change(update, inputs, kept) for n, update in enumerate(self.updates)}
        source = made_by(self.of, inputs, kept)
        row_bytes, columns = self._row_bytes, self._matrices()[2]
        for matrix, number, first, last in self._parts():
            if in_turn and number is not None and number not in changes:
                change = None  # the last one is free before the next one is read
                changes = {n: one for n, one in changes.items() if one.update.last > matrix + 1}
                changes[number] = _Change(self.updates[number], inputs, kept)
            change = None if number is None else changes[number]
            for start, end in tiles(first, last, row_bytes, change is not None and change.update.transposed):
                weight = widened(source.take((end - start) * row_bytes), self.dtype).reshape(-1, columns)
                yield change.of(weight, matrix, start - first, end - first) if change else Term(weight)

    def _parts(self) -> Iterator[tuple[int, int | None, int, int]]:
        """Yield the rows in order: their matrix, the number of their update (None: they have none), first and last."""
        matrices, rows, _ = self._matrices()
        of_matrix: dict[int, list[int]] = {}
        for number, update in enumerate(self.updates):
            for matrix in range(update.first, update.last):
                of_matrix.setdefault(matrix, []).append(number)
        for matrix in range(matrices):
            position = 0
            for number in sorted(of_matrix.get(matrix, ()), key=lambda number: self.updates[number].first_row):
                update = self.updates[number]
                if update.first_row > position:
                    yield matrix, None, position, update.first_row
                yield matrix, number, update.first_row, update.last_row
                position = update.last_row
            if position < rows:
                yield matrix, None, position, rows

    def _matrices(self) -> tuple[int, int, int]:
        """Return the number of matrices, and the rows and columns of each."""
        if self.is_stacked:
            return self.shape[0], self.shape[1], prod(self.shape[2:])
        return 1, self.shape[0], prod(self.shape[1:])

    @override
    def refusal(self, name: str, dtype: str, infinite: int) -> tuple[str, str]:
        return of_merge(name, infinite)

    @override
    def tolerance(self, dtype: str) -> Recipe:
        made: Recipe = Recipe.kinds["Tolerance"](self, dtype)  # it knows this kind
        return made

    @override
    def words(self, shape: tuple[int, ...]) -> str:
        first = self.updates[0]
        more = f" and {count(len(self.updates) - 1, 'more update')}" if len(self.updates) > 1 else ""
        return f"add({self.dtype} {list(self.shape)}, {self.of.words(self.shape)}; {words_of(first)}{more})"


class _Change:
    """An update, with its numbers in memory."""

    def __init__(self, update: Update, inputs: Feed, kept: Kept) -> None:
        self.update = update
        count, rank, self._a = update.last - update.first, 1, None
        if update.a:
            rank = update.rank
            self._a = loaded(update.a, update.a_dtype, inputs, kept).reshape(count, rank, -1)
        b = loaded(update.b, update.b_dtype, inputs, kept)
        self._b = b.reshape(-1, count, rank).swapaxes(1, 2) if update.is_grouped else b.reshape(-1, rank, count)

    def of(self, weight: Any, matrix: int, start: int, end: int) -> Term:
        """Return the change of `weight`, rows `[start, end)` of a matrix, counted from the first row of the update."""
        number, scale = matrix - self.update.first, np.float32(self.update.scale)
        b = self._b[:, :, number]
        with np.errstate(all="ignore"):  # torch gives the same infinite numbers
            if self._a is None:
                return Term(weight, b[start:end] * scale)
            a = self._a[number]
            if self.update.transposed:
                a = a[:, start:end]
                return Term(weight, (product(b, a) * scale).T, 1.0, Spread(a, b, self.update.scale, transposed=True))
            b = b[start:end]
            change = product(b, a)
            change *= scale
            return Term(weight, change, 1.0, Spread(a, b, self.update.scale))


def of_merge(name: str, infinite: int) -> tuple[str, str]:
    """Return the message and the hint for a merge that would make finite numbers infinite."""
    numbers = f"{infinite:,} finite {'number' if infinite == 1 else 'numbers'}"
    message = f"The merge would make {numbers} of {name} infinite, or no number at all."
    return message, "Check the adapter: its weights may be broken."


def tiles(first: int, last: int, row_bytes: int, transposed: bool = False) -> Iterator[tuple[int, int]]:
    """Yield the rows `[first, last)` in parts of about `MERGED_BYTES`. A tail that is too short joins the one before.

    >>> list(tiles(0, 15, MERGED_BYTES // 8))
    [(0, 15)]
    >>> list(tiles(0, 30, MERGED_BYTES // 8))
    [(0, 8), (8, 16), (16, 30)]
    """
    least = LEAST_COLUMNS if transposed else LEAST_ROWS
    # In multiples, because some kernels of a BLAS compute the last rows of a group of 4 in another way.
    at_once = max(least, MERGED_BYTES // max(1, row_bytes) // least * least)
    while first < last:
        end = first + at_once
        end = last if last - end < least else end
        yield first, end
        first = end


def loaded(recipe: Recipe, dtype: str, inputs: Feed, kept: Kept) -> Any:
    """Return all numbers of `recipe` in memory, as float32."""
    source, item = made_by(recipe, inputs, kept), BY_NAME[dtype].bits // 8
    array = np.empty(recipe.size_bytes // item, np.float32)
    at_once = BATCH_BYTES // 8
    for start in range(0, len(array), at_once):
        part = array[start : start + at_once]
        part[...] = numbers(source.take(len(part) * item), dtype)
    return array


def widened(data: memoryview, dtype: str) -> Any:
    """Return numbers in the dtype in which torch adds a float32 to them."""
    return numbers(data, dtype).astype(np.float64 if dtype == "F64" else np.float32)


def rounded(weight: Any, total: Any, dtype: str, is_unsure: bool) -> Iterator[Chunk]:
    """Yield the numbers of `total`, the sum of `weight` and a change, in `dtype`. Count those that became infinite."""
    infinity = CASTABLE[dtype].infinity
    with np.errstate(all="ignore"):  # torch gives the same infinite numbers
        result = np.ascontiguousarray(total).astype(numpy_dtype(dtype))
    bits = result.reshape(-1).view(f"u{result.itemsize}")
    settle(np.ascontiguousarray(total).reshape(-1), bits, infinity)
    odd = bits & (np.iinfo(bits.dtype).max >> 1) >= infinity
    overflowed = int(np.count_nonzero(odd & np.isfinite(weight).reshape(-1))) if odd.any() else 0
    before, after = weight.reshape(-1), result.reshape(-1)
    parts = ((before[:1024], after[:1024]), (before, after))  # a few first, as most merges change those too
    unchanged = all(np.array_equal(one, other.astype(one.dtype), equal_nan=True) for one, other in parts)
    data = bits.view(np.uint8).data.cast("B")
    for start in range(0, len(data), BATCH_BYTES):
        yield Chunk(data[start : start + BATCH_BYTES], 0 if start else overflowed, unchanged, is_unsure)


def words_of(update: Update) -> str:
    """Return an update in words."""
    b = update.b.words(())
    return f"{update.scale:g} × ({b} @ {update.a.words(())})" if update.a else f"{update.scale:g} × {b}"
