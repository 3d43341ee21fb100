"""Multiply quantized weights by their scales: FP8, and the MXFP4 experts of gpt-oss as its class saves them."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, Literal

from typing_extensions import override

from sharding.core.dtypes import BY_NAME, CASTABLE, tensor_bytes
from sharding.core.recipe import Chunk, Extent, Feed, Kept, Recipe
from sharding.recipes.cast import PIECE_ELEMENTS, np, numbers, numpy_dtype, settle
from sharding.recipes.stored import made_by


@dataclass(frozen=True, slots=True)
class Fp8(Recipe):
    """The numbers that `of` makes (E4M3, of `shape`), times their `scales`. Each product is rounded to `dtype`.

    There is a single scale, or one for each `block` of the last two dimensions; blocks at the edges may be smaller. The
    scale of row i and column j is number (i // block rows, j // block columns). The formula is float32(weight) *
    float32(scale), as in `weight_dequant` of DeepSeek-V3 (inference/kernel.py). Dtypes are named as in safetensors.
    """

    of: Recipe
    scales: Recipe
    scales_dtype: str
    shape: tuple[int, ...]
    block: tuple[int, int]
    dtype: str
    kind: Literal["fp8"] = "fp8"

    @property
    @override
    def size_bytes(self) -> int:
        return tensor_bytes(self.dtype, self.shape)

    @override
    def keeps(self) -> Iterator[Extent]:
        return self.scales.reads()

    @override
    def make(self, inputs: Feed, kept: Kept) -> Iterator[Chunk]:
        source = made_by(self.of, inputs, kept)
        rows, columns = (1, 1, *self.shape)[-2:]
        height, table, grid = self.block[0], _table(), _Scales(self, kept)
        at, end = 0, prod(self.shape)
        while at < end:
            row, column = divmod(at, columns)
            if column or columns > PIECE_ELEMENTS:
                count, length = 1, min(columns - column, PIECE_ELEMENTS)
            else:
                below = rows - row % rows
                if height > 1:  # the rows of a row of blocks have the same scales
                    below = min(below, height - row % rows % height)
                count, length = min(below, PIECE_ELEMENTS // columns), columns
            products = table.take(np.frombuffer(source.take(count * length), np.uint8)).reshape(count, length)
            scales = grid.of(range(row, row + (count if height == 1 else 1)), column, column + length)
            with np.errstate(all="ignore"):  # torch gives the same infinite numbers
                np.multiply(products, scales, out=products)
            rounded = products.astype(numpy_dtype(self.dtype), copy=False)
            settle(products, rounded.view(f"u{rounded.itemsize}"), CASTABLE[self.dtype].infinity)
            yield Chunk(rounded.view(np.uint8).data.cast("B"))
            at += count * length

    @override
    def words(self, shape: tuple[int, ...]) -> str:
        height, width = self.block
        what = f"F8_E4M3 {list(self.shape)}, {self.of.words(self.shape)}"
        return f"dequantize({what}; a {self.scales_dtype} scale for {height}×{width}, {self.scales.words(())})"


class _Scales:
    """The scales of a weight: a grid for each matrix in it, or one number for all."""

    def __init__(self, of: Fp8, kept: Kept) -> None:
        self._of = of
        self._kept = kept
        self._rows, columns = (1, 1, *of.shape)[-2:]
        self._height, self._width = (
            -(-length // size) for length, size in zip((self._rows, columns), of.block, strict=True)
        )
        self._bytes = BY_NAME[of.scales_dtype].bits // 8
        self._is_single = of.scales.size_bytes == self._bytes
        self._last: tuple[Any, Any] = (None, None)

    def of(self, rows: range, start: int, end: int) -> Any:
        """Return the factors for the columns `[start, end)` of `rows`. Rows are counted through all matrices.

        Several rows must be of one matrix, and then you must ask for all columns. The array has shape (rows, columns),
        or (rows, 1) if all columns have the same factor. A weight with a single scale gives one number.
        """
        if self._is_single:
            return self._read(0, 1)
        block_rows, block_columns = self._of.block
        matrix, inside = divmod(rows.start, self._rows)
        first, last = start // block_columns, -(-end // block_columns)
        at = (matrix * self._height + inside // block_rows) * self._width
        key = at, len(rows), first, last
        if self._last[0] != key:
            scales = self._read(at + first, at + (len(rows) - 1) * self._width + last).reshape(len(rows), last - first)
            self._last = key, np.repeat(scales, block_columns, axis=1) if last - first > 1 else scales
        scales, skip = self._last[1], start - first * block_columns
        return scales if scales.shape[1] == 1 else scales[:, skip : skip + end - start]

    def _read(self, first: int, last: int) -> Any:
        data = self._kept.read(self._of.scales, first * self._bytes, last * self._bytes)
        return numbers(data, self._of.scales_dtype).astype(np.float32)


@cache
def _table() -> Any:
    """Return the float32 of each of the 256 bytes of float8_e4m3fn."""
    return numbers(bytes(range(256)), "F8_E4M3").astype(np.float32)


GROUP, GROUP_BYTES = 32, 16  # How many numbers share a scale in MXFP4, and their bytes.
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
    def make(self, inputs: Feed, kept: Kept) -> Iterator[Chunk]:
        source = made_by(self.of, inputs, kept)
        byte, doubled = np.arange(256), 2 * np.array(_FP4, np.float32)
        # For each byte, its two doubled numbers, the lower half first, as the 64 bits of two float32.
        pairs = np.stack([doubled[byte & 15], doubled[byte >> 4]], 1).reshape(-1).view(np.uint64)
        powers, count = np.ldexp(np.float32(1), byte - 128), self.rows * self.groups
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
