"""A weight with its low-rank updates has the bits that torch gives for PEFT's formulas, however it is cut."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from weakref import WeakSet

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sharding.core.limits import BATCH_BYTES
from sharding.core.recipe import Recipe
from sharding.recipes import low_rank
from sharding.recipes.cast import Cast
from sharding.recipes.laid import Box, Laid
from sharding.recipes.low_rank import MERGED_BYTES, LowRank, Update, is_whole, tiles
from tests.folders import bits
from tests.promises import promise
from tests.recipes.executor import FILE, bytes_of, outcome, tensor_of
from tests.recipes.updates import DTYPES, Tensors, random, with_one_nan

DTYPE, ADAPTER = st.sampled_from(list(DTYPES)), st.sampled_from(["F32", "BF16", "F16"])
SEEDS, SCALES = st.integers(0, 2**32 - 1), st.sampled_from([0.5, 2.0, 16 / 3, -1.25, 16 / 17**0.5])
CUTS = st.tuples(st.sampled_from([1, 100, 1000, 9000, MERGED_BYTES]), st.sampled_from([64, 1000, BATCH_BYTES]))
"""How large the tiles are, and what is given at a time."""


Bounds = Callable[[int, int], None]


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch) -> Bounds:
    def small(tile: int, batch: int) -> None:
        monkeypatch.setattr(low_rank, "MERGED_BYTES", tile)
        monkeypatch.setattr(low_rank, "BATCH_BYTES", batch)

    return small


def added(weight: torch.Tensor, change: torch.Tensor, twice: bool = False) -> bytes:
    """A weight with its change, in the dtype of the weight. torch adds in the wider dtype of both."""
    total = weight + (change.to(weight.dtype) if twice else change)
    return bits(with_one_nan(total.to(weight.dtype)))[2]


@promise("docs/formats.md#what-becomes-of-each-tensor")
@given(
    size=st.tuples(
        st.one_of(st.integers(1, 40), st.sampled_from([17, 64, 71, 72, 200])),
        st.one_of(st.integers(2, 40), st.sampled_from([63, 64, 65, 300])),
        st.sampled_from([1, 3, 8, 17, 128]),
    ),
    how=st.tuples(DTYPE, ADAPTER, SCALES, st.booleans(), st.sampled_from(["once", "twice", "with lengths"])),
    seed=SEEDS,
    cut=CUTS,
)
def test_a_weight_has_the_bits_of_torch_wherever_its_tiles_end(
    size: tuple[int, int, int], how: tuple[str, str, float, bool, str], seed: int, cut: tuple[int, int], bounds: Bounds
) -> None:
    bounds(*cut)
    (rows, columns, rank), (dtype, adapter, scale, transposed, way) = size, how
    generator, file = torch.Generator().manual_seed(seed), Tensors()
    outputs, inputs = (columns, rows) if transposed else (rows, columns)
    weight = random((rows, columns), dtype, generator)
    a, b = random((rank, inputs), adapter, generator), random((outputs, rank), adapter, generator)
    of, of_a, of_b = map(file.add, (weight, a, b))
    update = Update(of_a, of_b, adapter, adapter, rank, scale, 0, rows, transposed=transposed)
    recipe = LowRank(of, dtype, (rows, columns), (update,), rounds_twice=way == "twice")
    change = (b.float() @ a.float()) * scale
    expected = added(weight, change.T if transposed else change, way == "twice")
    if way == "with lengths":  # a DoRA
        lengths = random((outputs,), adapter, generator)
        recipe = replace(recipe, magnitude=file.add(lengths), magnitude_dtype=adapter)
        norm = torch.linalg.norm((weight.T if transposed else weight) + change, dim=1)
        factors = (lengths.float() / norm).view(-1, 1)
        total = factors.T * (weight + change.T) if transposed else factors * (weight + change)
        expected = bits(with_one_nan(total.to(weight.dtype)))[2]
    assert is_whole(recipe) == (transposed and way == "with lengths")
    assert b"".join(bytes(chunk.data) for chunk in file.chunks(recipe)) == expected
    assert bytes_of(recipe, file.source(1003, 4096)) == expected


@given(
    shape=st.tuples(st.integers(1, 5), st.sampled_from([1, 5, 8, 17, 40]), st.sampled_from([2, 12, 64, 130])),
    rank=st.sampled_from([1, 4, 9]),
    dtype=DTYPE,
    swapped=st.booleans(),
    seed=SEEDS,
    cut=CUTS,
)
def test_each_expert_gets_its_part_of_both_matrices(
    shape: tuple[int, int, int], rank: int, dtype: str, swapped: bool, seed: int, cut: tuple[int, int], bounds: Bounds
) -> None:
    bounds(*cut)
    experts, rows, columns = shape
    generator, file = torch.Generator().manual_seed(seed), Tensors()
    outputs, inputs = (columns, rows) if swapped else (rows, columns)
    weight = random(shape, dtype, generator)
    a = random((experts * rank, inputs), "F32", generator)
    b = random((outputs, rank * experts), "F32", generator)
    of, of_a, of_b = map(file.add, (weight, a, b))
    update = Update(of_a, of_b, "F32", "F32", rank, 0.5, 0, experts * rows, experts, swapped)
    recipe = LowRank(of, dtype, shape, (update,), is_stacked=True, rounds_twice=True)
    changes = [(b[:, e::experts] @ a[e * rank : (e + 1) * rank]) * 0.5 for e in range(experts)]
    change = torch.stack([one.T if swapped else one for one in changes])
    assert b"".join(bytes(chunk.data) for chunk in file.chunks(recipe)) == added(weight, change, twice=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_bias_gets_a_scaled_vector(dtype: str) -> None:
    generator, file = torch.Generator().manual_seed(2), Tensors()
    bias, change = random((77,), dtype, generator), random((77,), "F16", generator)
    update = Update(None, file.add(change), "", "F16", 1, 0.3, 0, 77)
    recipe = LowRank(file.add(bias), dtype, (77,), (update,))
    assert bytes_of(recipe, file.source()) == added(bias, change.float() * 0.3)


def test_what_another_recipe_makes_is_changed_too() -> None:
    generator, file = torch.Generator().manual_seed(4), Tensors()
    weight, a, b = (random(shape, "F32", generator) for shape in ((30, 20), (3, 20), (3, 30)))
    turned: Recipe = Laid((Box(FILE, len(file.data), (0, 0), (30, 3), (1, 30)),), (30, 3), 4)
    file.add(b)
    update = Update(file.add(a), turned, "F32", "F32", 3, 1.0, 0, 30)
    recipe = LowRank(Cast(file.add(weight), "F32", "BF16"), "BF16", (30, 20), (update,))
    assert bytes_of(recipe, file.source()) == added(weight.bfloat16(), b.T.contiguous() @ a)


@pytest.mark.parametrize("dtype", ["F16", "F32"])
def test_numbers_that_become_infinite_are_counted_and_those_that_were_are_not(dtype: str) -> None:
    file, largest = Tensors(), torch.finfo(DTYPES[dtype]).max
    weight = torch.tensor([[1.0, largest, largest, float("inf"), float("nan"), -largest]], dtype=DTYPES[dtype])
    a = torch.tensor([[1.0, 1.0, largest / 2, 1.0, 1.0, -largest / 2]])
    update = Update(file.add(a), file.add(torch.ones(1, 1)), "F32", "F32", 1, 1.0, 0, 1)
    recipe = LowRank(file.add(weight), dtype, (1, 6), (update,))
    (chunk,) = file.chunks(recipe)
    assert bytes(chunk.data) == added(weight, a)
    assert chunk.overflowed == 2


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_number_of_the_adapter_that_is_not_finite_spreads_as_in_torch(dtype: str, value: str) -> None:
    generator, file = torch.Generator().manual_seed(5), Tensors()
    weight, a, b = (random(shape, "F32", generator) for shape in ((12, 10), (2, 10), (12, 2)))
    weight, a[1, 3], b[7, 0] = weight.to(DTYPES[dtype]), float(value), float(value)
    update = Update(file.add(a), file.add(b), "F32", "F32", 2, 1.0, 0, 12)
    assert bytes_of(LowRank(file.add(weight), dtype, (12, 10), (update,)), file.source()) == added(weight, b @ a)


@given(rows=st.integers(0, 500), row_bytes=st.integers(1, 1 << 20), transposed=st.booleans())
def test_tiles_follow_one_another_and_none_but_an_only_one_is_short(
    rows: int, row_bytes: int, transposed: bool
) -> None:
    cut, least = list(tiles(rows, row_bytes, transposed)), 64 if transposed else 8
    assert [0, *(end for _, end in cut)] == [*(start for start, _ in cut), rows]
    lengths = [end - start for start, end in cut]
    assert len(cut) <= 1 or min(lengths) >= least
    assert all(length % least == 0 for length in lengths[:-1])
    most = max(least, MERGED_BYTES // row_bytes)
    assert all(length < most + least for length in lengths)


def test_a_chunk_is_no_larger_than_a_batch() -> None:
    file = Tensors()
    row = BATCH_BYTES // 4  # numbers of float32: a tile of 8 rows has eight batches
    a, weight = torch.ones(1, row), torch.zeros(8, row)
    update = Update(file.add(a), file.add(torch.ones(8, 1)), "F32", "F32", 1, 1.0, 0, 8)
    sizes = [len(chunk.data) for chunk in file.chunks(LowRank(file.add(weight), "F32", (8, row), (update,)))]
    assert max(sizes) <= BATCH_BYTES and sum(sizes) == weight.nbytes


@promise("docs/security.md#fill-a-job-s-memory-with")
@pytest.mark.parametrize("tile", [1, 100, MERGED_BYTES])
@pytest.mark.parametrize("stored", [True, False], ids=["stored", "computed"])
def test_of_many_updates_of_some_rows_of_some_matrices_one_at_a_time_is_in_memory(
    stored: bool, tile: int, bounds: Bounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the weight is computed first, so that it cannot be read in parts. Other rows stay as they are."""
    bounds(tile, BATCH_BYTES)
    file, generator = Tensors(), torch.Generator().manual_seed(3)
    weight = random((6, 20, 24), "BF16", generator)
    updates, wanted = [], weight.clone()
    for expert, first in ((0, 10), (2, 2), (3, 0), (3, 10), (5, 0), (5, 10)):
        a, b = random((2, 24), "F32", generator), random((10, 2), "F32", generator)
        pair = file.add(a), file.add(b), "F32", "F32"
        updates.append(Update(*pair, 2, 0.5, 20 * expert + first, 20 * expert + first + 10))
        wanted[expert, first : first + 10] += ((b @ a) * 0.5).bfloat16()
    of: Recipe = file.add(weight if stored else weight.float())
    of = of if stored else Cast(of, "F32", "BF16")
    alive: WeakSet[object] = WeakSet()
    most = 0

    class Counted(low_rank.Matrices):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            nonlocal most
            alive.add(self)
            most = max(most, len(alive))

    monkeypatch.setattr(low_rank, "Matrices", Counted)
    recipe = LowRank(of, "BF16", (6, 20, 24), tuple(updates), is_stacked=True, rounds_twice=True)
    assert b"".join(bytes(chunk.data) for chunk in file.chunks(recipe)) == bits(wanted)[2]
    assert most == (1 if stored else len(updates)) and recipe.is_in_turn == stored


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_a_convolution_has_one_length_for_each_output(dtype: str) -> None:
    generator, file = torch.Generator().manual_seed(1), Tensors()
    weight = random((9, 4, 3, 3), dtype, generator)
    a, b = random((5, 4, 3, 3), "F32", generator), random((9, 5, 1, 1), "F32", generator)
    magnitude = random((1, 9, 1, 1), "F32", generator)
    update = Update(file.add(a), file.add(b), "F32", "F32", 5, 1.5, 0, 9)
    of, lengths = file.add(weight), {"magnitude": file.add(magnitude), "magnitude_dtype": "F32"}
    recipe = LowRank(of, dtype, (9, 4, 3, 3), (update,), **lengths)  # type: ignore[arg-type]
    change = ((b.flatten(1) @ a.flatten(1)) * 1.5).reshape(weight.shape)
    norm = (weight + change).norm(p=2, dim=(1, 2, 3))
    total = (magnitude.flatten() / norm).view(-1, 1, 1, 1) * (weight + change)
    assert bytes_of(recipe, file.source()) == bits(total.to(weight.dtype))[2]


def test_infinite_numbers_of_a_dora_are_counted_and_a_row_of_zeros_becomes_no_number_as_in_torch() -> None:
    file, weight = Tensors(), torch.ones(3, 4, dtype=torch.float16)
    weight[2] = 0
    update = Update(file.add(torch.zeros(1, 4)), file.add(torch.zeros(3, 1)), "F32", "F32", 1, 1.0, 0, 3)
    magnitude = file.add(torch.tensor([1.0, 3e5, 1.0]))
    recipe = LowRank(file.add(weight), "F16", (3, 4), (update,), magnitude=magnitude, magnitude_dtype="F32")
    (chunk,) = file.chunks(recipe)
    assert chunk.overflowed == 8
    expected = torch.tensor([[0.5] * 4, [float("inf")] * 4, [float("nan")] * 4], dtype=torch.float16)
    assert bytes(chunk.data) == bits(expected)[2]


def test_for_a_weight_without_numbers_nothing_is_read() -> None:
    file = Tensors()
    update = Update(file.add(torch.ones(2, 4)), file.add(torch.ones(0, 2)), "F32", "F32", 2, 1.0, 0, 0)
    empty = LowRank(file.add(torch.ones(0, 4)), "F32", (0, 4), (update,))
    tensors = [tensor_of(empty, name="empty"), tensor_of(file.add(torch.ones(3)), name="next")]
    made, _ = outcome(tensors, source := file.source())
    assert made == {"empty": b"", "next": bits(torch.ones(3))[2]} and source.noted == [(32, 44)]
