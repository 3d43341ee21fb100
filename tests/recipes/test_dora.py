"""A weight with a DoRA has the bits that torch gives for PEFT's formulas, however it is cut."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sharding.recipes import low_rank
from sharding.recipes.low_rank import MERGED_BYTES, LowRank, Update, is_whole
from tests.folders import bits
from tests.promises import promise
from tests.recipes.executor import bytes_of
from tests.recipes.updates import DTYPES, Tensors, random, with_one_nan


@promise("docs/formats.md#what-becomes-of-each-tensor")
@given(
    size=st.tuples(
        st.one_of(st.integers(1, 40), st.sampled_from([17, 64, 72, 200])),
        st.one_of(st.integers(2, 40), st.sampled_from([63, 64, 65, 300])),
        st.sampled_from([1, 3, 8, 17]),
    ),
    how=st.tuples(st.sampled_from(list(DTYPES)), st.sampled_from(["F32", "BF16"]), st.booleans()),
    tile=st.sampled_from([1, 100, 9000, MERGED_BYTES]),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_weight_has_the_bits_of_torch_wherever_its_tiles_end(
    size: tuple[int, int, int], how: tuple[str, str, bool], tile: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(low_rank, "MERGED_BYTES", tile)
    (rows, columns, rank), (dtype, adapter, transposed) = size, how
    generator, file = torch.Generator().manual_seed(seed), Tensors()
    outputs, inputs = (columns, rows) if transposed else (rows, columns)
    weight = random((rows, columns), dtype, generator)
    a, b = random((rank, inputs), adapter, generator), random((outputs, rank), adapter, generator)
    magnitude = random((outputs,), adapter, generator)
    of, of_a, of_b, of_m = map(file.add, (weight, a, b, magnitude))
    update = Update(of_a, of_b, adapter, adapter, rank, 0.75, 0, rows, transposed=transposed)
    change = (b.float() @ a.float()) * 0.75
    norm = torch.linalg.norm((weight.T if transposed else weight) + change, dim=1)
    factors = (magnitude.float() / norm).view(-1, 1)
    total = factors.T * (weight + change.T) if transposed else factors * (weight + change)
    recipe = LowRank(of, dtype, (rows, columns), (update,), magnitude=of_m, magnitude_dtype=adapter)
    expected = bits(with_one_nan(total.to(weight.dtype)))[2]
    assert b"".join(bytes(chunk.data) for chunk in file.chunks(recipe)) == expected
    assert is_whole(recipe) == transposed


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


def test_numbers_that_become_infinite_are_counted_and_a_row_of_zeros_becomes_no_number_as_in_torch() -> None:
    file, weight = Tensors(), torch.ones(3, 4, dtype=torch.float16)
    weight[2] = 0
    update = Update(file.add(torch.zeros(1, 4)), file.add(torch.zeros(3, 1)), "F32", "F32", 1, 1.0, 0, 3)
    magnitude = file.add(torch.tensor([1.0, 3e5, 1.0]))
    recipe = LowRank(file.add(weight), "F16", (3, 4), (update,), magnitude=magnitude, magnitude_dtype="F32")
    (chunk,) = file.chunks(recipe)
    assert chunk.overflowed == 8
    expected = torch.tensor([[0.5] * 4, [float("inf")] * 4, [float("nan")] * 4], dtype=torch.float16)
    assert bytes(chunk.data) == bits(expected)[2]
