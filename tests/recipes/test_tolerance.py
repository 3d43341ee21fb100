"""The tolerance of a merged number is a few units in its last place, and what another order of summation may change."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.recipes.cast import Cast
from sharding.recipes.low_rank import LowRank, Update
from sharding.recipes.tolerance import tolerance_of
from tests.promises import promise
from tests.recipes.updates import DTYPES, Tensors

LAST_PLACES = {"F32": 2**-23, "BF16": 2**-7, "F16": 2**-10}


def pairs(recipe: LowRank | Cast, dtype: str, file: Tensors) -> np.ndarray:
    """How far a number may be off without doubt, and beyond what it is wrong, for each number."""
    allowed = tolerance_of(recipe, dtype)
    assert allowed
    data = b"".join(bytes(chunk.data) for chunk in file.chunks(allowed))
    both = np.frombuffer(data, np.float32).astype(np.float64).reshape(-1, 2).T
    assert np.isfinite(both).all() and (both >= 0).all() and (both[0] <= both[1]).all()
    return both


def tolerance(recipe: LowRank | Cast, dtype: str, file: Tensors) -> np.ndarray:
    """How far a number may be off without doubt, where nothing is in doubt."""
    sure, most = pairs(recipe, dtype, file)
    assert (sure == most).all()
    return sure


def merged(file: Tensors, dtype: str, weight: float, change: float, *, twice: bool = False) -> LowRank:
    """A weight of 8 × 4 equal numbers, with an equal change of each."""
    a, b = torch.full((1, 4), change), torch.ones(8, 1)
    update = Update(file.add(a), file.add(b), "F32", "F32", 1, 1.0, 0, 8)
    of = file.add(torch.full((8, 4), weight, dtype=DTYPES[dtype]))
    return LowRank(of, dtype, (8, 4), (update,), rounds_twice=twice)


@promise("docs/formats.md#how-exact-a-merge-is")
@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("dtype", LAST_PLACES)
def test_it_is_one_unit_in_the_last_place_for_each_rounding_and_the_order_of_the_sum(dtype: str, twice: bool) -> None:
    file = Tensors()
    allowed = tolerance(merged(file, dtype, 1.5, 2**-12, twice=twice), dtype, file)
    unit = LAST_PLACES[dtype] * (2 if twice else 1)
    assert allowed.shape == (32,) and (allowed >= unit).all() and (allowed < unit + 2**-32).all()


def test_where_weight_and_change_cancel_the_larger_one_counts() -> None:
    """And where they add up to more, the rounding may be one of the sum."""
    for change, units in ((-1.0, 1), (1.0, 2)):
        file = Tensors()
        allowed = tolerance(merged(file, "BF16", 1.0, change), "BF16", file)
        assert (allowed >= units * 2**-7).all() and (allowed < (units + 0.01) * 2**-7).all()


def test_a_number_whose_terms_cancel_is_in_doubt_and_its_row_widens_no_other() -> None:
    """The first two numbers of each row are the difference of two large terms; the others are small sums."""
    file = Tensors()
    a = torch.tensor([[1e4, 1e6, 1e-3, 1e-3], [-1e4, -1e6, 1e-3, 1e-3]])
    update = Update(file.add(a), file.add(torch.ones(8, 2)), "F32", "F32", 2, 1.0, 0, 8)
    recipe = LowRank(file.add(torch.ones(8, 4).bfloat16()), "BF16", (8, 4), (update,))
    sure, most = pairs(recipe, "BF16", file).reshape(2, 8, 4)
    one = 2**-7
    assert (sure[:, 0] > one).all() and (sure[:, 0] < 2 * one).all()  # 2e4 * 2 * 2**-23 is less than a unit
    assert (sure[:, 1] == 5 * one).all() and (most[:, 1] > 50 * one).all() and (most[:, 1] < 70 * one).all()
    assert (sure[:, 2:] >= one).all() and (sure[:, 2:] < one + 2**-20).all()
    assert (sure == most)[:, [0, 2, 3]].all()


@pytest.mark.parametrize("transposed", [False, True])
def test_a_length_that_depends_on_the_order_puts_its_whole_row_or_column_in_doubt(transposed: bool) -> None:
    file = Tensors()
    a = torch.full((2, 8), 1e-3)
    a[:, 0] = torch.tensor([1e9, -1e9])
    b = torch.zeros(8, 2)
    b[0] = 1.0
    update = Update(file.add(a), file.add(b), "F32", "F32", 2, 1.0, 0, 8, transposed=transposed)
    of, lengths = file.add(torch.ones(8, 8).bfloat16()), file.add(torch.full((8,), 8**0.5))
    recipe = LowRank(of, "BF16", (8, 8), (update,), magnitude=lengths, magnitude_dtype="F32")
    sure, most = (side.T if transposed else side for side in pairs(recipe, "BF16", file).reshape(2, 8, 8))
    assert (sure[0] < most[0]).all() and (sure[1:] == most[1:]).all() and (sure < 2**-4).all()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("has_lengths", [False, True])
@pytest.mark.parametrize(("size", "unsure"), [(1e-3, False), (1e9, True)])
def test_a_merge_says_that_many_numbers_of_a_row_cannot_be_judged(
    has_lengths: bool, size: float, unsure: bool, transposed: bool
) -> None:
    file, generator = Tensors(), torch.Generator().manual_seed(0)
    b = torch.zeros(80, 2)
    b[70] = torch.tensor([1.0, -1.0])
    a, weight = torch.full((2, 96), size), torch.randn((80, 96), generator=generator).bfloat16()
    if transposed:
        weight = weight.T.contiguous()
    update = Update(file.add(a), file.add(b), "F32", "F32", 2, 1.0, 0, len(weight), transposed=transposed)
    recipe = LowRank(file.add(weight), "BF16", tuple(weight.shape), (update,))
    if has_lengths:
        recipe = replace(recipe, magnitude=file.add(torch.ones(80)), magnitude_dtype="F32")
    assert any(chunk.unsure for chunk in file.chunks(recipe)) == unsure
    assert any(chunk.unsure for chunk in file.chunks(Cast(recipe, "BF16", "F16"))) == unsure


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
    update = Update(a, b, "F32", "F32", 1, 1.0, 0, 8)
    recipe = LowRank(weight, "BF16", (8, 4), (update,), magnitude=magnitude, magnitude_dtype="F32")
    allowed = tolerance(recipe, "BF16", file)
    assert (allowed >= 4).all() and (allowed < 16).all()


EDGES = [0.0, -0.0, 1.0, -3.0, 2.0**-126, 6e-8, 65504.0, 1e30, -3e38, 3.4e38, float("inf"), -float("inf"), float("nan")]
ONE = st.one_of(st.sampled_from(EDGES), st.floats(width=32))
PRECISION = {"F64": 2.0**-52, **LAST_PLACES}
LEAST = {"F64": 2.0**-1074, "F32": 2.0**-149, "BF16": 2.0**-133, "F16": 2.0**-24}
"""The smallest number of each dtype, to which it rounds near zero."""


def unit(numbers: np.ndarray, dtype: str) -> np.ndarray:
    """One unit in the last place of `dtype` at these numbers."""
    with np.errstate(all="ignore"):
        return np.maximum(2.0 ** np.floor(np.log2(numbers)) * PRECISION[dtype], LEAST[dtype])


@promise("docs/security.md#make-what-cannot-be-told-look")
@given(
    st.sampled_from(sorted(PRECISION)),
    st.tuples(
        st.lists(ONE, min_size=6, max_size=6),
        st.lists(ONE, min_size=4, max_size=4),
        st.lists(st.integers(-30, 30), min_size=8, max_size=8),
    ),
    st.tuples(st.sampled_from([1.0, -0.5, 1e-6, 300.0]), st.sampled_from([-1.0, -0.25, -1 - 2**-20])),
    st.booleans(),
    st.floats(-1e6, 1e6),
)
@settings(max_examples=100)
def test_no_attacker_finds_an_adapter_that_lets_wrong_numbers_pass(
    dtype: str, numbers: tuple[list[float], list[float], list[int]], by: tuple[float, float], twice: bool, forged: float
) -> None:
    """Numbers that pass are the sum up to a few units of the larger of weight and change, in a row of whatever size."""
    (weights, small, sizes), (scale, second) = numbers, by
    file, grow = Tensors(), torch.tensor(sizes, dtype=torch.float64).exp2().reshape(8, 1)
    weight = (grow * torch.tensor(weights, dtype=torch.float64)[None, :]).to(DTYPES[dtype])
    a = torch.tensor([small, small[::-1]], dtype=torch.float32).repeat(1, 2)[:, :6].contiguous()
    b = (grow.float() * torch.tensor([[1.0, second]])).contiguous()
    update = Update(file.add(a), file.add(b), "F32", "F32", 2, scale, 0, 8)
    recipe = LowRank(file.add(weight), dtype, (8, 6), (update,), rounds_twice=twice)
    sure, most = pairs(recipe, dtype, file).reshape(2, 8, 6)
    with np.errstate(all="ignore"):
        before, parts = weight.double().numpy(), (b.double().numpy(), a.double().numpy())
        change = parts[0] @ parts[1] * scale
        largest = np.maximum(np.abs(before), np.abs(change))
        summed = np.abs(parts[0]) @ np.abs(parts[1])
        spread = summed * abs(scale) * 2 * 2**-23
        known = np.isfinite(spread) & (summed < 1e38) & (spread < 1e38) & (largest < 1e38)
        # Of terms that cancel in float32, the change is not known better than its spread.
        units = unit(largest + spread, dtype)
        off = np.abs(units * forged)
        assert (off <= 9 * units)[known & (off <= sure)].all()
        # And nothing is in doubt, or allowed, but for its own terms.
        assert (most <= 1.01 * spread + 4 * units + 8 * max(LEAST[dtype], LEAST["F32"]))[known].all()


def test_only_a_weight_with_updates_has_a_tolerance() -> None:
    file = Tensors()
    recipe = merged(file, "F32", 1.0, 1.0)
    assert tolerance_of(recipe, "F32") and tolerance_of(Cast(recipe, "F32", "BF16"), "BF16")
    assert not tolerance_of(recipe.of, "F32") and not tolerance_of(Cast(recipe.of, "F32", "BF16"), "BF16")
