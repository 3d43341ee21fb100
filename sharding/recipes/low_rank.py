"""Add the low-rank updates of a LoRA or a DoRA to a weight, as PEFT merges them."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, NamedTuple

from typing_extensions import override

from sharding.core.dtypes import BY_NAME, CASTABLE
from sharding.core.limits import BATCH_BYTES
from sharding.core.recipe import Chunk, Extent, Feed, Kept, Recipe
from sharding.core.text import count
from sharding.recipes.cast import np, numbers, numpy_dtype, settle, uncast
from sharding.recipes.product import Spread, product
from sharding.recipes.stored import Stored, made_by

MERGED_BYTES = 512 << 10
"""Bytes of a weight to which an update is added at once. The sums and products take ten times as many."""

LEAST_ROWS, LEAST_COLUMNS = 8, 64
"""Fewest rows to multiply at once, or columns of a weight that is stored transposed. Fewer give other bits."""


@dataclass(frozen=True, slots=True)
class Update:
    """A change `(b @ a) * scale` of the rows `[first_row, last_row)` of a weight, which are `count` matrices.

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
    count: int = 1
    transposed: bool = False
    is_grouped: bool = False

    def reads(self) -> Iterator[Extent]:
        """Yield what it reads, in the order of use."""
        if self.a:
            yield from self.a.reads()
        yield from self.b.reads()

    @property
    def memory_bytes(self) -> int:
        """How much memory its numbers take, as float32."""
        of_a = self.a.size_bytes * 32 // BY_NAME[self.a_dtype].bits if self.a else 0
        return of_a + self.b.size_bytes * 32 // BY_NAME[self.b_dtype].bits

    def words(self) -> str:
        """Return it in words."""
        b = self.b.words(())
        return f"{self.scale:g} × ({b} @ {self.a.words(())})" if self.a else f"{self.scale:g} × {b}"


class Term(NamedTuple):
    """Some rows of a weight in the dtype of the sum, their change, the `spread` of its order, and a factor of both."""

    weight: Any
    change: Any = None
    spread: Spread | None = None
    factor: Any = None


@dataclass(frozen=True, slots=True)
class LowRank(Recipe):
    """The numbers that `of` makes, of `shape` and `dtype`, with the changes of `updates`, in the order of their rows.

    Each sum is computed in float32 (float64 for F64) and rounded once to `dtype`. With `rounds_twice`, the change is
    rounded to `dtype` before it is added. A weight that `is_stacked` has the rows of a matrix for each index of its
    first dimension; any other has one row for each. Dtypes are named as in safetensors.

    With `magnitude`, the lengths of the outputs, it is a DoRA with a single update. With the sum `v` of weight and
    change, the result is then `magnitude / norm(v) * v`. The norm of each output is torch's, because numpy's has other
    bits, so `make` needs torch. A weight of a convolution has the outputs in its first dimension. The formulas are
    those of PEFT 0.21 (`tuners/lora/variants.py` and `dora.py`).
    """

    of: Recipe
    dtype: str
    shape: tuple[int, ...]
    updates: tuple[Update, ...]
    is_stacked: bool = False
    rounds_twice: bool = False
    magnitude: Recipe | None = None
    magnitude_dtype: str = ""
    kind: Literal["low_rank"] = "low_rank"

    @override
    def reads(self) -> Iterator[Extent]:
        if not self.is_in_turn:
            for update in self.updates:
                yield from update.reads()
            yield from self.magnitude.reads() if self.magnitude else ()
            yield from self.of.reads()
            return
        assert isinstance(self.of, Stored)
        end, row_bytes = self.of.start_byte, self._columns * BY_NAME[self.dtype].bits // 8
        for part, rows in self._parts():
            yield from part.reads() if part else ()
            start, end = end, end + rows * row_bytes
            yield self.of._replace(start_byte=start, end_byte=end)

    @property
    def is_in_turn(self) -> bool:
        """Whether each update is read just before its rows, so that not all of them are in memory."""
        return len(self.updates) > 1 and isinstance(self.of, Stored)

    @property
    def _columns(self) -> int:
        return prod(self.shape[2 if self.is_stacked else 1 :])

    @override
    def make(self, inputs: Feed, kept: Kept) -> Iterator[Chunk]:
        for term in self.terms(inputs, kept):
            yield from _rounded(term, self.dtype, self.rounds_twice)

    def terms(self, inputs: Feed, kept: Kept) -> Iterator[Term]:
        """Yield the rows of the weight in order, some at a time, each with its change."""
        changes: Iterator[Matrices] = (Matrices(update, inputs, kept) for update in self.updates)
        changes = changes if self.is_in_turn else iter(list(changes))
        lengths = _loaded(self.magnitude, self.magnitude_dtype, inputs, kept) if self.magnitude else None
        source, row_bytes = made_by(self.of, inputs, kept), self._columns * BY_NAME[self.dtype].bits // 8
        for update, rows in self._parts():
            change = None  # the last one is free before the next one is read
            change, matrices = (next(changes), update.count) if update else (None, 1)
            for matrix in range(matrices):
                is_turned = update is not None and update.transposed
                for start, end in [(0, rows)] if is_whole(self) else tiles(rows // matrices, row_bytes, is_turned):
                    weight = _widened(source.take((end - start) * row_bytes), self.dtype).reshape(-1, self._columns)
                    term = change.term(weight, start, end, matrix) if change else Term(weight)
                    if lengths is not None:
                        term = self._lengthened(term, lengths if is_turned else lengths[start:end].reshape(-1, 1))
                    yield term

    def _lengthened(self, term: Term, lengths: Any) -> Term:
        """Return a term of a DoRA with its factor. The layout of both parts in memory decides the norms' last bits."""
        import torch

        weight, change = term.weight, term.change
        if self.updates[0].transposed:
            weight, change = weight.T, change.T
        total = torch.from_numpy(weight) + torch.from_numpy(change)
        if len(self.shape) > 2:
            total = total.reshape(-1, *self.shape[1:])
            norms = total.norm(p=2, dim=tuple(range(1, len(self.shape))))
        else:
            norms = torch.linalg.norm(total, dim=1)
        with np.errstate(all="ignore"):  # as torch divides by the norm of a row of zeros
            return term._replace(factor=lengths / norms.numpy().reshape(lengths.shape))

    def _parts(self) -> Iterator[tuple[Update | None, int]]:
        """Yield how many rows each update has, in order, and those between them, which have none."""
        position, rows = 0, prod(self.shape[: 2 if self.is_stacked else 1])
        for update in self.updates:
            if update.first_row > position:
                yield None, update.first_row - position
            yield update, update.last_row - update.first_row
            position = update.last_row
        if position < rows:
            yield None, rows - position

    @override
    def words(self, shape: tuple[int, ...]) -> str:
        more = f" and {count(len(self.updates) - 1, 'more update')}" if len(self.updates) > 1 else ""
        how, more = ("dora", f"; lengths {self.magnitude.words(())}") if self.magnitude else ("add", more)
        return f"{how}({self.dtype} {list(self.shape)}, {self.of.words(self.shape)}; {self.updates[0].words()}{more})"


class Matrices:
    """The numbers of an update, in memory."""

    def __init__(self, update: Update, inputs: Feed, kept: Kept) -> None:
        self._update, rank, self._a = update, 1, None
        if update.a:
            rank = update.rank
            self._a = _loaded(update.a, update.a_dtype, inputs, kept).reshape(update.count, rank, -1)
        b = _loaded(update.b, update.b_dtype, inputs, kept)
        b = b.reshape(-1, update.count, rank).swapaxes(1, 2) if update.is_grouped else b.reshape(-1, rank, update.count)
        self._b = b

    def term(self, weight: Any, start: int, end: int, matrix: int = 0) -> Term:
        """Return `weight`, rows `[start, end)` of a matrix, with its change."""
        scale, is_turned, b = self._update.scale, self._update.transposed, self._b[:, :, matrix]
        with np.errstate(all="ignore"):  # torch gives the same infinite numbers
            if self._a is None:
                return Term(weight, b[start:end] * np.float32(scale))
            a = self._a[matrix]
            a, b = (a[:, start:end], b) if is_turned else (a, b[start:end])
            change = product(b, a)
            change *= np.float32(scale)
            if is_turned:
                return Term(weight, change.T, Spread(a.T, b.T, scale))
            return Term(weight, change, Spread(b, a, scale))


def tiles(rows: int, row_bytes: int, transposed: bool = False) -> Iterator[tuple[int, int]]:
    """Yield `rows` rows in parts of about `MERGED_BYTES`. A tail that is too short joins the one before.

    >>> list(tiles(15, MERGED_BYTES // 8)), list(tiles(30, MERGED_BYTES // 8))
    ([(0, 15)], [(0, 8), (8, 16), (16, 30)])
    """
    least, start = LEAST_COLUMNS if transposed else LEAST_ROWS, 0
    # In multiples, because some kernels of a BLAS compute the last rows of a group of 4 in another way.
    at_once = max(least, MERGED_BYTES // max(1, row_bytes) // least * least)
    while start < rows:
        end = rows if rows - start - at_once < least else start + at_once
        yield start, end
        start = end


def _loaded(recipe: Recipe, dtype: str, inputs: Feed, kept: Kept) -> Any:
    source, item = made_by(recipe, inputs, kept), BY_NAME[dtype].bits // 8
    array = np.empty(recipe.size_bytes // item, np.float32)
    at_once = BATCH_BYTES // 8
    for start in range(0, len(array), at_once):
        part = array[start : start + at_once]
        part[...] = numbers(source.take(len(part) * item), dtype)
    return array


def _widened(data: memoryview, dtype: str) -> Any:
    """Return numbers in the dtype in which torch adds a float32 to them."""
    return numbers(data, dtype).astype(np.float64 if dtype == "F64" else np.float32)


def _rounded(term: Term, dtype: str, is_twice: bool = False) -> Iterator[Chunk]:
    """Yield the merged numbers in `dtype`. If `is_twice`, round the change too. Count those that became infinite."""
    weight, change, spread, factor = term
    is_unsure = spread is not None and spread.is_unsure(weight, change, dtype)
    infinity = CASTABLE[dtype].infinity
    with np.errstate(all="ignore"):  # torch gives the same infinite numbers
        total = weight
        if change is not None:
            total = weight + (change.astype(numpy_dtype(dtype)) if is_twice else change)
        total = np.ascontiguousarray(total if factor is None else factor * total)
        result = total.astype(numpy_dtype(dtype))
    bits = result.reshape(-1).view(f"u{result.itemsize}")
    settle(total.reshape(-1), bits, infinity)
    odd = bits & (np.iinfo(bits.dtype).max >> 1) >= infinity
    overflowed = int(np.count_nonzero(odd & np.isfinite(weight).reshape(-1))) if odd.any() else 0
    before, after = weight.reshape(-1), result.reshape(-1)
    parts = ((before[:1024], after[:1024]), (before, after))  # a few first, as most merges change those too
    unchanged = all(np.array_equal(one, other.astype(one.dtype), equal_nan=True) for one, other in parts)
    data = bits.view(np.uint8).data.cast("B")
    for start in range(0, len(data), BATCH_BYTES):
        yield Chunk(data[start : start + BATCH_BYTES], 0 if start else overflowed, unchanged, is_unsure)


def is_whole(recipe: Recipe) -> bool:
    """Return whether it is in memory as a whole: a DoRA in which the norm of an output is over all rows."""
    if not isinstance(recipe, LowRank) or recipe.magnitude is None:
        return False
    return recipe.updates[0].transposed or len(recipe.shape) > 2


def needs_torch(recipe: Recipe) -> bool:
    """Return whether torch is needed to make it."""
    merged = uncast(recipe)
    return isinstance(merged, LowRank) and merged.magnitude is not None
