"""Say by how much another order of summation may change the numbers of a merged weight."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from typing_extensions import override

from sharding.core.dtypes import BY_NAME
from sharding.core.recipe import Chunk, Extent, Inputs, Kept, Recipe
from sharding.recipes.cast import Cast
from sharding.recipes.dora import Dora
from sharding.recipes.low_rank import LowRank

_FORMATS = {"F64": (52, -1022), "F32": (23, -126), "BF16": (7, -126), "F16": (10, -14)}
"""Bits of the fraction, and the least exponent of a normal number, of each dtype that can be cast (IEEE 754)."""

_OF_LENGTHS = 8
_MOST_SPREAD = 2.0**-8


@dataclass(frozen=True, slots=True)
class Tolerance(Recipe):
    """The tolerance of each number of `of`, a merged weight that is cast to `dtype`, as float32.

    It is the sum of

    - what the order of summation can change (`low_rank.spread_of`), at most `_MOST_SPREAD` of the largest number of its
      row,
    - one unit in the last place of the weight's dtype for each time that PEFT rounds to it, at the largest of the
      weight, its change and their sum,
    - for a DoRA, `_OF_LENGTHS` units of float32 there, for its norm, quotient and product,
    - one unit in the last place of `dtype`, if the weight is cast.

    All of these numbers are first multiplied by the factor of a DoRA.
    """

    of: Recipe
    dtype: str
    kind: Literal["tolerance"] = "tolerance"

    @property
    @override
    def size_bytes(self) -> int:
        return self.of.size_bytes * 32 // BY_NAME[_merged(self.of).dtype].bits

    @override
    def reads(self) -> Iterator[Extent]:
        return self.of.reads()

    @override
    def keeps(self) -> Iterator[Extent]:
        return self.of.keeps()

    @override
    def make(self, inputs: Inputs, kept: Kept) -> Iterator[Chunk]:
        import numpy as np

        merged = _merged(self.of)
        roundings = _roundings(merged)
        for term in merged.terms(inputs, kept, with_spread=True):
            with np.errstate(all="ignore"):
                change = 0.0 if term.change is None else term.change
                total = term.weight + change
                largest = np.maximum(np.maximum(np.abs(term.weight), np.abs(change)), np.abs(total))
                factor = np.abs(term.factor)
                # Terms that cancel could otherwise allow anything.
                most = _MOST_SPREAD * np.max(largest, axis=1, keepdims=True)
                allowed = factor * np.minimum(term.spread, most) + roundings * _last_place(
                    factor * largest, merged.dtype
                )
                if isinstance(merged, Dora):
                    allowed += _OF_LENGTHS * _last_place(factor * largest, "F32")
                allowed = np.zeros_like(total) if term.change is None else allowed
                allowed[~np.isfinite(allowed)] = 0  # an infinity must be the same one
                if self.dtype != merged.dtype and term.change is not None:
                    allowed += _last_place(np.abs(term.factor * total) + allowed, self.dtype)
            allowed = np.minimum(allowed, np.finfo(np.float32).max)  # an infinity would allow anything
            yield Chunk(np.ascontiguousarray(allowed, np.float32).reshape(-1).view(np.uint8).data.cast("B"))

    @override
    def words(self, shape: tuple[int, ...]) -> str:
        return f"tolerance of {self.of.words(shape)}"

    @override
    def key(self) -> bytes:
        return f"t{self.dtype} ".encode() + self.of.key()


def is_merged(recipe: Recipe) -> bool:
    """Return whether a recipe adds an update to a weight, so that its last bits depend on the order of summation."""
    return isinstance(recipe.of if isinstance(recipe, Cast) else recipe, LowRank | Dora)


def tolerance_of(recipe: Recipe, dtype: str) -> Tolerance:
    """Return the tolerance of a tensor of `dtype` whose recipe `is_merged`."""
    return Tolerance(recipe.of if isinstance(recipe, Cast) else recipe, dtype)


def _merged(recipe: Recipe) -> LowRank | Dora:
    assert isinstance(recipe, LowRank | Dora)
    return recipe


def _roundings(recipe: LowRank | Dora) -> int:
    """Return how many roundings a number goes through that another order of summation can turn."""
    own = 2 if isinstance(recipe, LowRank) and recipe.rounds_twice else 1
    return own + (2 * _roundings(recipe.of) if isinstance(recipe.of, LowRank | Dora) else 0)


def _last_place(numbers: Any, dtype: str) -> Any:
    """Return the unit in the last place of `dtype` at each of `numbers`, which are not negative."""
    import numpy as np

    fraction, least = _FORMATS[dtype]
    exponents = np.where(numbers > 0, np.frexp(numbers)[1] - 1, least)
    return np.ldexp(numbers.dtype.type(1), np.maximum(exponents, least) - fraction)
