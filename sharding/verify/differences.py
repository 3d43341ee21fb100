"""Say by how much the numbers of two checkpoints differ, tensor by tensor."""

import math
import sys
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

from sharding.core.dtypes import BY_NAME
from sharding.core.events import Progress
from sharding.core.limits import COMPARED_BYTES, SPAN_BYTES, THREADS
from sharding.core.protocols import Source
from sharding.core.recipe import Chunk, Extent
from sharding.core.text import count
from sharding.core.values import NOT_FINITE, Difference, Shard, Tensor
from sharding.recipes.cast import numbers
from sharding.recipes.feed import Feed
from sharding.transfer.lanes import Lanes, collected
from sharding.transfer.making import Making
from sharding.transfer.room import Room

_ELEMENTS = 1 << 13
"""Numbers that are compared at a time: 64 KiB of float64 for each side. They fit into a processor's cache, and for
larger arrays the system maps fresh memory each time, which takes longer than the figures."""

_Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Numbers:
    """One of two checkpoints whose numbers are compared: its tensors by name, made from `sources`."""

    tensors: Mapping[str, Tensor]
    sources: Sequence[Source]


def compare_numbers(
    names: Iterable[str], first: Numbers, second: Numbers
) -> Generator[Progress, None, tuple[Difference, ...]]:
    """Return by how much each of `names` differs, in their order. Yield progress. Raises SourceError.

    Both sides of a tensor are read at the same time, a few MiB of each. Memory does not grow with the model.
    """
    known, pairs = dict[str, Difference](), list[_Pair]()
    names = list(names)
    for name in names:
        one, other = first.tensors.get(name), second.tensors.get(name)
        if one and other and not (note := _incomparable(one, other)):
            pairs.append((one, other))
        elif one and other:
            known[name] = Difference(name, note=note)
        else:
            known[name] = Difference(name, note=f"only in the {'first' if one else 'second'}")
    groups = list(_in_groups(sorted(pairs, key=_first_read)))
    is_far = any(source.ranges_at_once > 1 for side in (first, second) for source in side.sources)
    # From a network, one pair at a time and one request of each side: every open request takes memory of its own.
    width = 1 if is_far else THREADS
    lanes = Lanes("numbers", sum(tensor.bytes for pair in pairs for tensor in pair), width)
    room = Room(COMPARED_BYTES)
    making = [
        Making(lanes, shards, side.sources, room, width)
        for shards, side in zip(zip(*groups, strict=True), (first, second), strict=False)
    ]

    def stop() -> None:
        for side in making:
            side.stop()

    found = yield from collected(lanes.run([partial(_compare, lanes, making, group) for group in groups], stop))
    known |= {difference.tensor: difference for differences in found for difference in differences}
    return tuple(known[name] for name in names)


def _incomparable(first: Tensor, second: Tensor) -> str:
    """Return why two tensors have no numbers to compare, "" if they have."""
    if first.shape != second.shape:
        return f"{list(first.shape)} in the first and {list(second.shape)} in the second"
    unknown = {dtype for dtype in (first.dtype, second.dtype) if BY_NAME[dtype].bits < 8 or dtype == "C64"}
    return f"{' and '.join(sorted(unknown))} cannot be compared as numbers" if unknown else ""


def _first_read(pair: _Pair) -> Extent:
    """Return where the first of a pair begins in its source. Sorting by it lets neighbours share a request."""
    first = pair[0]
    return next(first.recipe.reads(), Extent(0, first.file, 0, 0))


def _in_groups(pairs: Iterable[_Pair]) -> Iterator[tuple[Shard, Shard]]:
    """Yield `pairs` in groups, which are compared in parallel: the tensors of the first, and those of the second."""
    group, size, number = list[_Pair](), 0, 0
    for pair in pairs:
        group.append(pair)
        size += sum(tensor.bytes for tensor in pair)
        if size >= SPAN_BYTES:
            yield _shards(number, group)
            group, size, number = [], 0, number + 1
    if group:
        yield _shards(number, group)


def _shards(number: int, group: Sequence[_Pair]) -> tuple[Shard, Shard]:
    first, second = (
        Shard(str(number), side, sum(tensor.bytes for tensor in side)) for side in zip(*group, strict=True)
    )
    return first, second


def _compare(lanes: Lanes, making: Sequence[Making], group: tuple[Shard, Shard]) -> list[Difference]:
    sides = (side.made(shard) for side, shard in zip(making, group, strict=True))
    return [_compared(lanes, pair) for pair in zip(*sides, strict=True)]


def _compared(lanes: Lanes, pair: Sequence[tuple[Tensor, Iterator[Chunk]]]) -> Difference:
    (first, _), (second, _) = pair
    feeds = [Feed(chunk.data for chunk in chunks) for _, chunks in pair]
    files = [tensor.file for tensor, _ in pair]
    sums, left = Sums(), first.parameters
    while left:
        number = min(left, _ELEMENTS)
        left -= number
        arrays = []
        for (tensor, _), file, feed in zip(pair, files, feeds, strict=True):
            data = feed.take(number * BY_NAME[tensor.dtype].bits // 8)
            lanes.count(len(data), file)
            arrays.append(numbers(data, tensor.dtype))
        sums.add(*arrays)
    for _, chunks in pair:
        deque(chunks, maxlen=0)  # a recipe ends before the next one reads
    return sums.difference(first.name, _note(first.dtype, second.dtype, sums))


def _note(first: str, second: str, sums: "Sums") -> str:
    if first != second:
        note = f"{first} in the first and {second} in the second"
    else:
        note = "the numbers are equal, the bytes differ" if sums.are_equal else ""
    if not sums.not_finite:
        return note
    verb = "is" if sums.not_finite == 1 else "are"
    unlike = f"{count(sums.not_finite, 'number')} that {'differs' if verb == 'is' else 'differ'} {verb} {NOT_FINITE}"
    return f"{note}; {unlike}" if note else unlike


class Sums:
    """What is known of two tensors after some of their numbers. Each number counts as a float64.

    A pair with a NaN or an infinity counts in the share of equal elements only. Two NaNs are equal. Whole numbers are
    equal only if all their digits are. An absolute difference beyond float64 counts as the largest float64.

    >>> import numpy as np
    >>> sums = Sums()
    >>> sums.add(np.array([3.0, 0.0, np.nan]), np.array([3.0, 4.0, np.nan]))
    >>> sums.difference("w")
    Difference(tensor='w', largest_abs=4.0, mean_abs=2.0, cosine=0.6, equal=0.6666666666666666, note='')
    """

    def __init__(self) -> None:
        """Know of no number."""
        self._count = self._equal = self._finite = 0
        self.not_finite = 0
        """Pairs that differ and have a NaN or an infinity."""
        self._largest = 0.0
        # Fractions, because the squares of a float64 may exceed its range.
        self._distance = self._product = Fraction()
        self._squares = [Fraction(), Fraction()]

    def add(self, first: Any, second: Any) -> None:
        """Add numbers of both tensors, in arrays of one length and any dtypes."""
        import numpy as np

        with np.errstate(all="ignore"):
            one, other = first.astype(np.float64), second.astype(np.float64)
            are_whole = first.dtype.kind in "biu" and second.dtype.kind in "biu"
            same = first == second if are_whole else (one == other) | (np.isnan(one) & np.isnan(other))
            self._count += len(one)
            self._equal += int(np.count_nonzero(same))
            finite = np.isfinite(one) & np.isfinite(other)
            if not finite.all():
                self.not_finite += int(np.count_nonzero(~finite & ~same))
                one, other = one[finite], other[finite]
            if not len(one):
                return
            self._finite += len(one)
            is_wide = np.float64 in (first.dtype, second.dtype)
            gaps = np.abs(one - other)
            largest = float(gaps.max())
            if math.isinf(largest):
                largest = sys.float_info.max
                gaps = np.minimum(gaps, largest)
            self._largest = max(self._largest, largest)
            (gaps, far), (one, high), (other, deep) = (
                _scaled(array) if is_wide else (array, 0) for array in (gaps, one, other)
            )
            self._distance += _exactly(gaps.sum(), far)
            # A product by BLAS would start a thread for every core, which takes longer than the product.
            self._product += _exactly((one * other).sum(), high + deep)
            for side, (array, exponent) in enumerate(((one, high), (other, deep))):
                self._squares[side] += _exactly((array * array).sum(), 2 * exponent)

    @property
    def are_equal(self) -> bool:
        """Whether all elements so far are equal."""
        return self._equal == self._count

    def difference(self, name: str, note: str = "") -> Difference:
        """Return by how much the tensor `name` differs in what was added."""
        equal = self._equal / self._count if self._count else 1.0
        if not self._finite:
            return Difference(name, equal=equal, note=note)
        # Sums are rounded, and no mean exceeds the largest, nor a cosine 1.
        mean = min(Fraction(self._largest), self._distance / self._finite)
        cosine = None
        if squares := self._squares[0] * self._squares[1]:
            cosine = math.sqrt(min(Fraction(1), self._product**2 / squares)) * (-1 if self._product < 0 else 1)
        return Difference(name, self._largest, float(mean), cosine, equal, note)


def _scaled(numbers: Any) -> tuple[Any, int]:
    """Return `numbers` divided by two to an exponent, and the exponent. The largest is then between 0.5 and 1."""
    import numpy as np

    exponent = int(np.frexp(np.abs(numbers).max())[1])
    return np.ldexp(numbers, -exponent), exponent


def _exactly(number: Any, exponent: int) -> Fraction:
    return Fraction(float(number)) * Fraction(2) ** exponent
