"""Tensors as headers describe them, for tests."""

from sharding.core.values import Tensor, folder_of
from sharding.recipes.stored import Stored


def stored_tensor(name: str, dtype: str, shape: tuple[int, ...], file: str, start_byte: int, end_byte: int) -> Tensor:
    """A tensor that lies at bytes `[start_byte, end_byte)` of a file."""
    return Tensor(name, dtype, shape, Stored(0, file, start_byte, end_byte), folder_of(file))
