"""A product of matrices has the bits of `torch.matmul` where torch is installed, and is near them elsewhere."""

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from sharding.recipes import product as room
from sharding.recipes.product import product
from tests.promises import promise

SIZES = st.one_of(st.integers(1, 40), st.sampled_from([63, 64, 65, 127, 129, 300]))


def matrices(rows: int, inner: int, columns: int, seed: int = 0) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    return random.standard_normal((rows, inner), np.float32), random.standard_normal((inner, columns), np.float32)


def by_torch(first: Any, second: Any) -> bytes:
    numbers: bytes = (torch.from_numpy(first) @ torch.from_numpy(second)).contiguous().numpy().tobytes()
    return numbers


@pytest.fixture
def anew() -> Iterator[None]:
    """Lets the multiplier be chosen again, before and after."""
    room._best.cache_clear()
    yield
    room._best.cache_clear()


@promise("docs/formats.md#how-exact-a-merge-is")
@given(rows=SIZES, inner=SIZES, columns=SIZES, seed=st.integers(0, 1000))
def test_a_product_has_the_bits_of_torch(rows: int, inner: int, columns: int, seed: int) -> None:
    assume(rows + columns > 2)  # torch takes another function for a single number
    first, second = matrices(rows, inner, columns, seed)
    made = product(first, second)
    assert room._best() is not room._of_numpy and made.dtype == np.float32 and made.flags.c_contiguous
    assert made.tobytes() == by_torch(first, second)


def test_a_view_is_multiplied_like_its_copy() -> None:
    first, second = matrices(36, 24, 140)
    parts = first[1::3, 2::4], second[:6, ::2]
    assert product(*parts).tobytes() == by_torch(*(np.ascontiguousarray(part) for part in parts))
    turned = np.asfortranarray(first)
    assert product(turned, second).tobytes() == product(first, second).tobytes()


@given(rows=st.integers(2, 25), inner=SIZES, columns=st.integers(2, 6), data=st.data())
def test_parts_in_multiples_of_8_rows_and_64_columns_have_the_bits_of_the_whole(
    rows: int, inner: int, columns: int, data: st.DataObject
) -> None:
    first, second = matrices(8 * rows, inner, 64 * columns)
    whole = product(first, second)
    start = data.draw(st.integers(0, rows - 1))
    end = data.draw(st.integers(start + 1, rows))
    assert product(first[8 * start : 8 * end], second).tobytes() == whole[8 * start : 8 * end].tobytes()
    left = data.draw(st.integers(0, columns - 1))
    right = data.draw(st.integers(left + 1, columns))
    part = slice(64 * left, 64 * right)
    assert product(first, second[:, part]).tobytes() == whole[:, part].tobytes()


def no_package(name: str) -> NoReturn:
    raise PackageNotFoundError(name)


def no_library(name: str) -> SimpleNamespace:
    return SimpleNamespace(locate_file=lambda path: f"/nowhere/{path}")


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("distribution", no_package),
        ("distribution", no_library),
        ("ctypes.CDLL", lambda path: SimpleNamespace()),  # without a BLAS
    ],
)
def test_without_torch_numpy_multiplies_and_its_numbers_are_near(
    name: str, instead: Any, anew: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"sharding.recipes.product.{name}", instead)
    assert room._best() is room._of_numpy
    first, second = matrices(50, 64, 300)
    made = product(first, second)
    assert made.dtype == np.float32 and made.flags.c_contiguous and made.shape == (50, 300)
    np.testing.assert_allclose(made, first.astype(np.float64) @ second.astype(np.float64), rtol=1e-4, atol=1e-4)
