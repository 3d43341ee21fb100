"""The tolerance of a merged number is a few units in its last place, and what another order of summation may change."""

import numpy as np
import pytest
import torch

from sharding.recipes.cast import Cast
from sharding.recipes.dora import Dora
from sharding.recipes.low_rank import LowRank, Update
from sharding.recipes.tolerance import is_merged, tolerance_of
from tests.recipes.updates import DTYPES, Tensors

LAST_PLACES = {"F32": 2**-23, "BF16": 2**-7, "F16": 2**-10}


def tolerance(recipe: LowRank | Dora | Cast, dtype: str, file: Tensors) -> np.ndarray:
    data = b"".join(bytes(chunk.data) for chunk in file.chunks(tolerance_of(recipe, dtype)))
    return np.frombuffer(data, np.float32).astype(np.float64)


def merged(file: Tensors, dtype: str, weight: float, change: float, *, twice: bool = False) -> LowRank:
    """A weight of 8 × 4 equal numbers, with an equal change of each."""
    a, b = torch.full((1, 4), change), torch.ones(8, 1)
    update = Update(file.add(a), file.add(b), "F32", "F32", 1, 1.0, 0, 8)
    of = file.add(torch.full((8, 4), weight, dtype=DTYPES[dtype]))
    return LowRank(of, dtype, (8, 4), (update,), rounds_twice=twice)


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("dtype", LAST_PLACES)
def test_it_is_one_unit_in_the_last_place_for_each_rounding_and_the_order_of_the_sum(dtype: str, twice: bool) -> None:
    file = Tensors()
    allowed = tolerance(merged(file, dtype, 1.5, 2**-12, twice=twice), dtype, file)
    unit = LAST_PLACES[dtype] * (2 if twice else 1)
    assert allowed.shape == (32,) and (allowed >= unit).all() and (allowed < unit + 2**-32).all()


def test_where_weight_and_change_cancel_the_larger_one_counts() -> None:
    file = Tensors()
    allowed = tolerance(merged(file, "BF16", 1.0, -1.0), "BF16", file)
    assert (allowed >= 2**-7).all() and (allowed < 2**-6).all()


def test_a_cast_adds_a_unit_of_its_dtype() -> None:
    file = Tensors()
    cast = Cast(merged(file, "F32", 1.5, 2**-12), "F32", "BF16")
    allowed = tolerance(cast, "BF16", file)
    assert (allowed >= 2**-7).all() and (allowed < 2**-7 + 2**-20).all()


def test_rows_without_an_update_have_no_tolerance() -> None:
    file = Tensors()
    update = Update(file.add(torch.ones(1, 4)), file.add(torch.ones(8, 1)), "F32", "F32", 1, 1.0, 8, 16)
    recipe = LowRank(file.add(torch.ones(16, 4)), "F32", (16, 4), (update,))
    allowed = tolerance(recipe, "F32", file)
    assert not allowed[:32].any() and allowed[32:].all()


def test_the_factor_of_a_dora_counts() -> None:
    file = Tensors()
    a, b = file.add(torch.full((1, 4), 2**-12)), file.add(torch.ones(8, 1))
    weight, magnitude = file.add(torch.ones(8, 4).bfloat16()), file.add(torch.full((8,), 2000.0))
    recipe = Dora(weight, "BF16", (8, 4), Update(a, b, "F32", "F32", 1, 1.0, 0, 8), magnitude, "F32")
    allowed = tolerance(recipe, "BF16", file)
    assert (allowed >= 4).all() and (allowed < 16).all()


def test_only_a_weight_with_updates_is_merged() -> None:
    file = Tensors()
    recipe = merged(file, "F32", 1.0, 1.0)
    assert is_merged(recipe) and is_merged(Cast(recipe, "F32", "BF16"))
    assert not is_merged(recipe.of) and not is_merged(Cast(recipe.of, "F32", "BF16"))
