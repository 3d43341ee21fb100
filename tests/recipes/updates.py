"""Tensors in the only file of a source, from which recipes of adapters are made."""

from collections.abc import Iterator

import torch

from sharding.core.recipe import Chunk, Feed, Recipe
from sharding.recipes.stored import Stored
from tests.folders import bits
from tests.recipes.executor import FILE, ShortChunks

DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


class Tensors:
    """Tensors that lie one after another in a file."""

    def __init__(self) -> None:
        self.data = b""

    def add(self, tensor: torch.Tensor) -> Stored:
        """Put one more tensor at the end, and return where it is."""
        start = len(self.data)
        self.data += bits(tensor)[2]
        return Stored(0, FILE, start, len(self.data))

    def source(self, chunk: int = 1 << 16, batch_bytes: int = 1 << 20) -> ShortChunks:
        return ShortChunks(self.data, chunk, batch_bytes)

    def chunks(self, recipe: Recipe) -> Iterator[Chunk]:
        """What a recipe makes, chunk by chunk. All that it reads must be taken."""
        inputs = Feed(self.data[extent.start_byte : extent.end_byte] for extent in recipe.reads())
        yield from recipe.make(inputs, kept=None)  # type: ignore[arg-type]
        assert not list(inputs._rest) and next(inputs._chunks, None) is None


def random(shape: tuple[int, ...], dtype: str, generator: torch.Generator, spread: float = 1.0) -> torch.Tensor:
    return (torch.randn(shape, generator=generator) * spread).to(DTYPES[dtype])


def with_one_nan(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers; which NaN a NaN is depends on processor and library, and ours is always the same one."""
    return tensor.masked_fill(tensor.isnan(), float("nan"))
