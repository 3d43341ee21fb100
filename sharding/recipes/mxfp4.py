"""Dequantize the MXFP4 weights of experts, transposed as the class of gpt-oss saves them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from typing_extensions import override

from sharding.core.recipe import Chunk, Extent, Inputs, Kept, Recipe
from sharding.recipes.feed import made_by

GROUP = 32
"""Numbers that share a scale."""

GROUP_BYTES = GROUP // 2

_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The number for each four bits of E2M1 (OCP Microscaling Formats 1.0, table 5)."""


@dataclass(frozen=True, slots=True)
class Mxfp4(Recipe):
    """A float32 tensor of shape (experts, 32 * groups, rows).

    `of` has shape (experts, rows, groups, 16) and two numbers in a byte, the lower half first. `scales` has shape
    (experts, rows, groups). Each of its bytes is an exponent of two, plus 127.

    The formula is `ldexp(number, byte - 127)`, as in `convert_moe_packed_tensors` of transformers 5.23. Here the number
    is doubled and the power is halved: the product is the same, and every power fits into float32.
    """

    of: Recipe
    scales: Recipe
    experts: int
    rows: int
    groups: int
    kind: Literal["mxfp4"] = "mxfp4"

    @property
    @override
    def size_bytes(self) -> int:
        return self.experts * self.rows * self.groups * GROUP * 4

    @override
    def keeps(self) -> Iterator[Extent]:
        return self.scales.reads()

    @override
    def make(self, inputs: Inputs, kept: Kept) -> Iterator[Chunk]:
        import numpy as np

        source = made_by(self.of, inputs, kept)
        pairs, powers, count = _pairs(), np.ldexp(np.float32(1), np.arange(256) - 128), self.rows * self.groups
        for expert in range(self.experts):
            packed = np.frombuffer(source.take(count * GROUP_BYTES), np.uint8).reshape(self.rows, self.groups, -1)
            data = kept.read(self.scales, expert * count, (expert + 1) * count)
            scales = powers.take(np.frombuffer(data, np.uint8)).reshape(self.rows, self.groups, 1)
            for group in range(self.groups):
                numbers = pairs.take(packed[:, group]).view(np.float32).reshape(self.rows, GROUP)
                with np.errstate(all="ignore"):  # torch gives the same infinite numbers
                    np.multiply(numbers, scales[:, group], out=numbers)
                yield Chunk(np.ascontiguousarray(numbers.T).data.cast("B"))

    @override
    def words(self, shape: tuple[int, ...]) -> str:
        packed, scales = self.of.words(()), self.scales.words(())
        return f"dequantize(MXFP4 of {self.experts} experts, {packed}; a scale for 32, {scales})"


def _pairs() -> Any:
    """Return for each byte its two numbers, doubled, the lower half first, as the 64 bits of two float32."""
    import numpy as np

    numbers = 2 * np.array(_FP4, np.float32)
    byte = np.arange(256)
    return np.stack([numbers[byte & 15], numbers[byte >> 4]], 1).reshape(-1).view(np.uint64)
