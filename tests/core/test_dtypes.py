"""The table of dtypes says what torch and safetensors say."""

from typing import get_args

import pytest
import safetensors.torch
import torch

from sharding.core import options
from sharding.core.dtypes import BY_NAME, BY_OPTION, BY_TORCH, CASTABLE


def test_every_dtype_is_as_wide_as_torch_has_it() -> None:
    assert {name: dtype.bits for name, dtype in BY_TORCH.items()} == {
        name: 8 * getattr(torch, name).itemsize for name in BY_TORCH
    }


def test_every_dtype_that_safetensors_reads_with_torch_has_the_same_two_names_here() -> None:
    theirs = {name: str(dtype) for name, dtype in safetensors.torch._TYPES.items()}
    assert theirs == {name: f"torch.{BY_NAME[name].torch}" for name in theirs}


@pytest.mark.parametrize("name", CASTABLE)
def test_what_can_be_cast_has_the_largest_number_and_the_infinity_that_torch_gives_it(name: str) -> None:
    row = CASTABLE[name]
    dtype = getattr(torch, row.torch)
    assert row.largest == torch.finfo(dtype).max
    assert row.infinity == torch.tensor(float("inf"), dtype=dtype).view(getattr(torch, f"int{row.bits}")).item()


def test_every_dtype_that_an_option_names_can_be_cast() -> None:
    assert get_args(options.TargetDtype) == ("keep", *BY_OPTION)
    assert {dtype.name for dtype in BY_OPTION.values()} <= CASTABLE.keys()
