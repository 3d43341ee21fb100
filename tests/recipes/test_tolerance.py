"""The tolerance of a merged number is a few units in its last place, and what another order of summation may change."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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


def test_numbers_beyond_fp32_have_a_tolerance_that_no_infinity_is_within() -> None:
    file = Tensors()
    allowed = tolerance(merged(file, "F64", 1e300, 1.0), "F64", file)
    assert np.isfinite(allowed).all()


EDGES = [0.0, -0.0, 1.0, -3.0, 2.0**-126, 6e-8, 65504.0, 1e30, -3e38, 3.4e38, float("inf"), -float("inf"), float("nan")]
ONE = st.one_of(st.sampled_from(EDGES), st.floats(width=32))
PRECISION = {"F64": 2.0**-52, **LAST_PLACES}
LEAST = {"F64": 2.0**-1074, "F32": 2.0**-149, "BF16": 2.0**-133, "F16": 2.0**-24}
"""The smallest number of each dtype, to which it rounds near zero."""


@given(
    st.sampled_from(sorted(PRECISION)),
    st.lists(ONE, min_size=6, max_size=6),
    st.lists(ONE, min_size=4, max_size=4),
    st.lists(st.integers(-30, 30), min_size=8, max_size=8),
    st.sampled_from([1.0, -0.5, 1e-6, 300.0]),
    st.booleans(),
)
@settings(deadline=None, max_examples=300)
def test_no_wrong_number_is_within_it_whatever_the_numbers(
    dtype: str, weights: list[float], small: list[float], sizes: list[int], scale: float, twice: bool
) -> None:
    """A copy is off by more than what is allowed unless it is as good as the sum, in a row of whatever size."""
    file, grow = Tensors(), torch.tensor(sizes, dtype=torch.float64).exp2().reshape(8, 1)
    weight = (grow * torch.tensor(weights, dtype=torch.float64)[None, :]).to(DTYPES[dtype])
    a = torch.tensor([small, small[::-1]], dtype=torch.float32).repeat(1, 2)[:, :6].contiguous()
    b = (grow.float() * torch.tensor([[1.0, -0.25]])).contiguous()
    update = Update(file.add(a), file.add(b), "F32", "F32", 2, scale, 0, 8)
    recipe = LowRank(file.add(weight), dtype, (8, 6), (update,), rounds_twice=twice, may_overflow=True)
    allowed = tolerance(recipe, dtype, file).reshape(8, 6)
    assert np.isfinite(allowed).all() and (allowed >= 0).all()
    with np.errstate(all="ignore"):
        before, parts = weight.double().numpy(), (b.double().numpy(), a.double().numpy())
        change = parts[0] @ parts[1] * scale
        largest = np.maximum(np.maximum(np.abs(before), np.abs(change)), np.abs(before + change))
        summed = np.abs(parts[0]) @ np.abs(parts[1]) * abs(scale)
        summed[summed > np.finfo(np.float32).max] = np.inf  # what is computed in float32 is then not known better
        row = np.nan_to_num(largest, nan=0.0, posinf=1e39).max(axis=1, keepdims=True)
        most = 4 * PRECISION[dtype] * largest + np.minimum(2**-20 * summed, 2**-7 * row) + 4 * LEAST[dtype]
    finite = np.isfinite(largest) & np.isfinite(most)
    assert (allowed[finite] <= most[finite]).all()


def test_only_a_weight_with_updates_is_merged() -> None:
    file = Tensors()
    recipe = merged(file, "F32", 1.0, 1.0)
    assert is_merged(recipe) and is_merged(Cast(recipe, "F32", "BF16"))
    assert not is_merged(recipe.of) and not is_merged(Cast(recipe.of, "F32", "BF16"))
