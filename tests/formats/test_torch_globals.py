"""A pickle may name what torch allows it to name, and nothing else."""

import torch

from sharding.formats import torch_globals as stand_ins


def test_every_name_that_is_allowed_is_allowed_by_torch() -> None:
    assert set(torch._weights_only_unpickler._get_allowed_globals()) >= stand_ins.ALLOWED


def test_every_storage_has_the_dtype_that_torch_gives_it() -> None:
    allowed = torch._weights_only_unpickler._get_allowed_globals()
    assert {name: str(allowed[name].dtype) for name in stand_ins.STORAGE_DTYPES} == {
        name: f"torch.{dtype}" for name, dtype in stand_ins.STORAGE_DTYPES.items()
    }
