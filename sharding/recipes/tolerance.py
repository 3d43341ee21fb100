"""Say by how much another order of summation may change the numbers of a merged weight."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from typing_extensions import override

from sharding.core.dtypes import BY_NAME
from sharding.core.recipe import Chunk, Feed, Kept, Recipe
from sharding.recipes.cast import np, uncast
from sharding.recipes.low_rank import LowRank, Term
from sharding.recipes.product import MOST_UNITS, last_place

_OF_LENGTHS = 8


@dataclass(frozen=True, slots=True)
class Tolerance(Recipe):
    """How far each number of `of`, a merged weight cast to `dtype`, may be from another one, as pairs of float32.

    Up to the first, another order of summation explains it. Beyond the second, nothing does. Between both, nobody can
    tell. Both are the sum of

    - what the order of summation can change in this number (`Spread.numbers`), for the first only up to a few units,
    - one unit in the last place of the weight's dtype for each time that PEFT rounds to it,
    - for a DoRA, `_OF_LENGTHS` units of float32 for the norm, the quotient and the product,
    - one unit in the last place of `dtype`, if the weight is cast.

    Units are taken at the larger of the weight and its change, or at their sum if it needs a larger unit to be rounded.
    All is first multiplied by the factor of a DoRA. The order of summation also changes the length of its row, or of
    its column if the weight is stored transposed.
    """

    of: LowRank
    dtype: str
    kind: Literal["tolerance"] = "tolerance"

    @property
    @override
    def size_bytes(self) -> int:
        return self.of.size_bytes * 64 // BY_NAME[self.of.dtype].bits

    @override
    def make(self, inputs: Feed, kept: Kept) -> Iterator[Chunk]:
        most = np.finfo(np.float32).max
        for term in self.of.terms(inputs, kept):
            pairs = np.zeros((term.weight.size, 2), np.float32)
            if term.change is not None:
                with np.errstate(all="ignore"):
                    for number, allowed in enumerate(self._allowed(term)):
                        pairs[:, number] = np.minimum(allowed, most).reshape(-1)  # an infinity would allow anything
            yield Chunk(pairs.view(np.uint8).reshape(-1).data.cast("B"))

    def _allowed(self, term: Term) -> Iterator[Any]:
        merged = self.of
        largest = np.maximum(np.abs(term.weight), np.abs(term.change))
        total, factor = term.weight + term.change, np.float32(1) if term.factor is None else np.abs(term.factor)
        spread = term.spread.numbers() if term.spread else np.zeros_like(largest)
        if merged.magnitude:
            spread = spread + np.abs(total) * _of_length(spread, total, axis=0 if merged.updates[0].transposed else 1)
        spread, largest = factor * spread, factor * largest
        # The sum may need a larger unit than both. If it is smaller, its own unit says nothing.
        rounding = _roundings(merged) * last_place(np.maximum(largest, factor * np.abs(total)), merged.dtype)
        if merged.magnitude:
            rounding += _OF_LENGTHS * last_place(largest, "F32")
        coarser = max(self.dtype, merged.dtype, key=lambda dtype: last_place(np.float64(1), dtype))
        sure = MOST_UNITS * last_place(largest, coarser)
        for explained in (np.fmin(spread, sure), np.where(np.isnan(spread), np.inf, spread)):
            allowed = explained + rounding
            if self.dtype != merged.dtype:
                allowed += last_place(factor * np.abs(total) + allowed, self.dtype)
            yield np.where(np.isfinite(largest), allowed, 0)  # an infinity must be the same one

    @override
    def words(self, shape: tuple[int, ...]) -> str:
        return f"tolerance of {self.of.words(shape)}"


def tolerance_of(recipe: Recipe, dtype: str) -> Tolerance | None:
    """Return how far the numbers of `recipe`, as `dtype`, may be from those of another machine. None: not at all."""
    merged = uncast(recipe)
    return Tolerance(merged, dtype) if isinstance(merged, LowRank) else None


def _of_length(spread: Any, total: Any, axis: int) -> Any:
    """Return by which part of itself the length of each row (or column) of `total` may differ."""
    part = np.linalg.norm(spread, axis=axis, keepdims=True) / np.linalg.norm(total, axis=axis, keepdims=True)
    return np.where(part < 1, part / (1 - part), np.inf)


def _roundings(recipe: LowRank) -> int:
    """Return how many roundings a number goes through that another order of summation can turn."""
    own = 2 if recipe.rounds_twice else 1
    return own + (2 * _roundings(recipe.of) if isinstance(recipe.of, LowRank) else 0)
