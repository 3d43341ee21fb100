"""Add a DoRA to a weight, as PEFT merges it: a low-rank update, then a new length for each output."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from typing_extensions import override

from sharding.core.dtypes import BY_NAME
from sharding.core.recipe import Chunk, Extent, Feed, Kept, Recipe
from sharding.recipes.cast import np, uncast
from sharding.recipes.low_rank import Matrices, Term, Update, loaded, rounded, tiles, widened
from sharding.recipes.stored import made_by


@dataclass(frozen=True, slots=True)
class Dora(Recipe):
    """The numbers that `of` makes, of `shape` and `dtype`, with the change of `update` and the lengths of `magnitude`.

    With the sum `v` of weight and change, the result is `magnitude / norm(v) * v`. It is computed in float32 and
    rounded once. The norm of each output is torch's, because numpy's has other bits, so `make` needs torch. A
    transposed weight is made in memory as a whole, because the norm of an output runs over all of its rows. A weight
    of a convolution has the outputs in its first dimension.

    The formulas are those of PEFT 0.21 (`tuners/lora/variants.py` and `dora.py`).
    """

    of: Recipe
    dtype: str
    shape: tuple[int, ...]
    update: Update
    magnitude: Recipe
    magnitude_dtype: str
    kind: Literal["dora"] = "dora"

    @override
    def reads(self) -> Iterator[Extent]:
        yield from self.update.reads()
        yield from self.magnitude.reads()
        yield from self.of.reads()

    @override
    def make(self, inputs: Feed, kept: Kept) -> Iterator[Chunk]:
        for term in self.terms(inputs, kept):
            yield from rounded(term, self.dtype)

    def terms(self, inputs: Feed, kept: Kept) -> Iterator[Term]:
        """Yield the rows of the weight in order, some at a time, each with its change and its factor."""
        rows, columns, update = self.shape[0], prod(self.shape[1:]), Matrices(self.update, inputs, kept)
        magnitude = loaded(self.magnitude, self.magnitude_dtype, inputs, kept)
        source, row_bytes = made_by(self.of, inputs, kept), columns * BY_NAME[self.dtype].bits // 8
        for start, end in [(0, rows)] if is_whole(self) else tiles(rows, row_bytes):
            weight = widened(source.take((end - start) * row_bytes), self.dtype).reshape(-1, columns)
            term = update.term(weight, start, end)
            with np.errstate(all="ignore"):  # as torch divides by the norm of a row of zeros
                if self.update.transposed:
                    factor = magnitude / self._norms(weight.T, term.change.T)
                else:
                    factor = (magnitude[start:end] / self._norms(weight, term.change)).reshape(-1, 1)
            yield term._replace(factor=factor)

    def _norms(self, weight: Any, change: Any) -> Any:
        """Return the norm of each row of the sum. The layout of both in memory decides its last bits."""
        import torch

        total = torch.from_numpy(weight) + torch.from_numpy(change)
        if len(self.shape) > 2:
            total = total.reshape(-1, *self.shape[1:])
            return total.norm(p=2, dim=tuple(range(1, len(self.shape)))).numpy()
        return torch.linalg.norm(total, dim=1).numpy()

    @override
    def words(self, shape: tuple[int, ...]) -> str:
        sum_ = f"{self.dtype} {list(self.shape)}, {self.of.words(self.shape)}; {self.update.words()}"
        return f"dora({sum_}; lengths {self.magnitude.words(())})"


def is_whole(recipe: Recipe) -> bool:
    """Return whether it is a DoRA that is in memory as a whole while it is made."""
    return isinstance(recipe, Dora) and (recipe.update.transposed or len(recipe.shape) > 2)


def needs_torch(recipe: Recipe) -> bool:
    """Return whether torch is needed to make it."""
    return isinstance(uncast(recipe), Dora)
