"""Compute quantized weights with their scales while they are read, in bounded memory."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from sharding.core.computed import Computed
from sharding.core.extras import require
from sharding.core.protocols import Source
from sharding.formats.dtypes import BY_NAME, item_bytes
from sharding.storage.source_view import LongerSource
from sharding.transfer.feed import Feed
from sharding.transfer.pages import Pages

_PIECE_ELEMENTS = 32768
"""What is computed at a time: it stays in a processor's cache, and torch converts no more in the thread that asks."""

_GROUP = 32
_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""E2M1, by its four bits (OCP Microscaling Formats 1.0, table 5)."""


def dequantizing(source: Source, computed: Sequence[Computed]) -> Source:
    """Return what reads `source` and beyond its files `computed`: itself where there are none. Raises Refused."""
    if not computed:
        return source
    require("Dequantizing", ["torch", "numpy"])
    return DequantizeSource(source, computed)


class DequantizeSource(LongerSource[Computed]):
    """A source whose files go on beyond their end with tensors that are computed. See `protocols.Source`."""

    def __init__(self, source: Source, computed: Sequence[Computed]) -> None:
        """Compute each of `computed` when it is read."""
        super().__init__(source, computed)
        ranges = [(part.scales.file, part.scales.start_byte, _scales_end(part)) for part in computed]
        self._scales = Pages(source, ranges)

    def _part_bytes(self, parts: list[Computed], start_byte: int, end_byte: int) -> Iterator[bytes]:
        stretches = []
        index = bisect_right(parts, start_byte, key=lambda part: part.start_byte) - 1
        while index < len(parts) and parts[index].start_byte < end_byte:
            part = parts[index]
            start, end = max(start_byte, part.start_byte), min(end_byte, part.end_byte)
            if start < end:
                stretches.append(_Stretch(part, start - part.start_byte, end - part.start_byte))
            index += 1
        for run in _runs(stretches):
            chunks = self._source.read(run[0].part.packed.file, run[0].start_byte, run[-1].end_byte)
            feed = Feed(chunks, "packed")
            for stretch in run:
                yield from stretch.trimmed(self._compute(stretch, feed))

    def _compute(self, stretch: "_Stretch", feed: Feed) -> Iterator[Any]:
        """Yield what a stretch is, as float32, one array after another."""
        compute = self._fp8 if stretch.part.encoding == "fp8" else self._fp4
        for values in compute(stretch, feed):
            yield _rounded(values, stretch.part.dtype)

    def _fp8(self, stretch: "_Stretch", feed: Feed) -> Iterator[Any]:
        """Yield the products of numbers and scales: float32(weight) * float32(scale), row after row.

        The scale of row i and column j is number (i // block rows, j // block columns) of the scales, as in
        `weight_dequant` of DeepSeek-V3 (inference/kernel.py).
        """
        import numpy as np

        part = stretch.part
        rows, columns = (1, 1, *part.shape)[-2:]
        height = part.block[0]
        table = _fp8_table()
        grid = _Scales(self._scales, part)
        at = stretch.first
        while at < stretch.last:
            row, column = divmod(at, columns)
            if column or stretch.last - at < columns or columns > _PIECE_ELEMENTS:
                count, length = 1, min(columns - column, stretch.last - at, _PIECE_ELEMENTS)
            else:
                below = rows - row % rows
                if height > 1:  # those of a row of blocks have the same scales
                    below = min(below, height - row % rows % height)
                count, length = min(below, (stretch.last - at) // columns, _PIECE_ELEMENTS // columns), columns
            packed = np.frombuffer(feed.take(count * length), np.uint8)
            scales = grid.of(range(row, row + (count if height == 1 else 1)), column, column + length)
            yield _product(table.take(packed).reshape(count, length), scales)
            at += count * length

    def _fp4(self, stretch: "_Stretch", feed: Feed) -> Iterator[Any]:
        """Yield the products of numbers and powers of two, as `convert_moe_packed_tensors` of transformers 5.23.

        It takes `ldexp(number, byte - 127)`; twice the number and half the power are the same, and no byte's power is
        beyond float32.
        """
        import numpy as np

        part = stretch.part
        rows = part.packed.shape[2]
        pairs = _fp4_table()
        powers = np.ldexp(np.float32(1), np.arange(256) - 128)
        for group in range(stretch.first // (_GROUP * rows), -(-stretch.last // (_GROUP * rows))):
            packed = np.frombuffer(feed.take(rows * _GROUP // 2), np.uint8)
            start = part.scales.start_byte + group * rows
            scales = powers.take(np.frombuffer(self._scales.read(part.scales.file, start, start + rows), np.uint8))
            values = pairs.take(packed).view(np.float32).reshape(rows, _GROUP)
            yield np.ascontiguousarray(_product(values, scales[:, None]).T)


class _Scales:
    """The scales of a weight: a grid for each matrix of it, or one number for all."""

    def __init__(self, pages: Pages, part: Computed) -> None:
        self._pages = pages
        self._part = part
        self._rows, columns = (1, 1, *part.shape)[-2:]
        self._height, self._width = (
            -(-length // size) for length, size in zip((self._rows, columns), part.block, strict=True)
        )
        self._bytes = BY_NAME[part.scales.dtype].bits // 8
        self._last: tuple[Any, Any] = (None, None)

    def of(self, rows: range, start: int, end: int) -> Any:
        """Return what the columns `[start, end)` of `rows`, as counted through all matrices, are multiplied by.

        Of several rows, which are of one matrix, all columns are asked for. The array has a row for each, and a column
        for each or one for all.
        """
        import numpy as np

        if prod(self._part.scales.shape) == 1:
            return self._read(0, 1)
        block_rows, block_columns = self._part.block
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
        import torch

        start = self._part.scales.start_byte
        data = self._pages.read(self._part.scales.file, start + first * self._bytes, start + last * self._bytes)
        dtype = getattr(torch, BY_NAME[self._part.scales.dtype].torch)
        return torch.frombuffer(bytearray(data), dtype=dtype).float().numpy()


class _Stretch:
    """Bytes `[start, end)` of a computed tensor: the elements `[first, last)`, and the packed bytes they are made of.

    Of FP4 they are whole groups of all rows.
    """

    def __init__(self, part: Computed, start: int, end: int) -> None:
        size = BY_NAME[part.dtype].bits // 8
        first, last = start // size, -(-end // size)
        self.start_byte = part.packed.start_byte + first
        self.end_byte = part.packed.start_byte + last
        if part.encoding == "fp4":
            unit = _GROUP * part.packed.shape[2]
            first, last = first // unit * unit, -(-last // unit) * unit
            self.start_byte, self.end_byte = (part.packed.start_byte + element // 2 for element in (first, last))
        self.part = part
        self.first, self.last = first, last
        self._skip = start - first * size
        self._bytes = end - start

    def trimmed(self, arrays: Iterator[Any]) -> Iterator[bytes]:
        """Yield the bytes of `arrays`, which are all of the elements, that are wanted."""
        skip, left = self._skip, self._bytes
        for array in arrays:
            data = memoryview(array).cast("B")
            chunk = data[skip : skip + left]
            skip, left = max(0, skip - len(data)), left - len(chunk)
            if chunk:
                yield bytes(chunk)


def _runs(stretches: Sequence[_Stretch]) -> Iterator[list[_Stretch]]:
    """Yield `stretches` in groups whose packed bytes lie one after another: one read each."""
    run: list[_Stretch] = []
    for stretch in stretches:
        if run and (run[-1].part.packed.file, run[-1].end_byte) != (stretch.part.packed.file, stretch.start_byte):
            yield run
            run = []
        run.append(stretch)
    if run:
        yield run


def _product(values: Any, scales: Any) -> Any:
    import numpy as np

    with np.errstate(all="ignore"):  # what is infinite is so for torch too
        return np.multiply(values, scales, out=values)


def _rounded(values: Any, dtype: str) -> Any:
    if dtype == "F32":
        return values
    import torch

    flat = torch.from_numpy(values.reshape(-1))
    rounded = flat.to(getattr(torch, BY_NAME[dtype].torch))
    # Which NaN it is would depend on where in a run it stands: torch converts what is left at its end another way.
    return rounded.masked_fill_(flat.isnan(), float("nan")).view(torch.int16).numpy()


def _fp8_table() -> Any:
    """Return the float32 of each of the 256 bytes of float8_e4m3fn."""
    import torch

    return torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()


def _fp4_table() -> Any:
    """Return for each byte twice its two numbers, the lower half first, as the 64 bits of two float32."""
    import numpy as np

    numbers = 2 * np.array(_FP4, np.float32)
    byte = np.arange(256)
    return np.stack([numbers[byte & 15], numbers[byte >> 4]], 1).reshape(-1).view(np.uint64)


def _scales_end(part: Computed) -> int:
    return part.scales.start_byte + prod(part.scales.shape) * item_bytes(BY_NAME[part.scales.dtype].torch)
