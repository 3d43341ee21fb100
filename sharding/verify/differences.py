"""Say by how much the numbers of two checkpoints differ, and whether another order of summation explains that."""

import math
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple, TypeVar

from sharding.core.dtypes import BY_NAME
from sharding.core.events import Progress
from sharding.core.limits import COMPARED_BYTES, THREADS
from sharding.core.protocols import Source
from sharding.core.recipe import Feed
from sharding.core.text import count
from sharding.core.values import Shard, Tensor
from sharding.core.verification import NOT_FINITE, Difference, Mismatch
from sharding.recipes.cast import numbers
from sharding.recipes.tolerance import tolerance_of
from sharding.transfer.lanes import Lanes, collected
from sharding.transfer.making import Making, Room
from sharding.verify.digests import first_read, in_groups, shard_of

_ELEMENTS = 1 << 13
"""Numbers at a time: 64 KiB of float64 a side fit into a cache. For larger arrays the system maps fresh memory."""

_MERGED_ELEMENTS = 1 << 16  # Numbers of merged tensors that are compared at a time.
_PAIR = "F64"  # A dtype of as many bits as the two numbers of a tolerance.
_Streams = Iterable[tuple[Tensor, Feed]]  # The tensors of a shard, each with its bytes as they are made.
_Result = TypeVar("_Result")


class Numbers(NamedTuple):
    """One of two checkpoints whose numbers are compared: its tensors by name, made from `sources`."""

    tensors: Mapping[str, Tensor]
    sources: Sequence[Source]


def compare_numbers(
    names: Iterable[str], first: Numbers, second: Numbers
) -> Generator[Progress, None, tuple[Difference, ...]]:
    """Yield progress; return by how much each of `names` differs. Memory stays small. Raises SourceError."""
    known, ours = dict[str, Difference](), list[Tensor]()
    names = list(names)
    for name in names:
        one, other = first.tensors.get(name), second.tensors.get(name)
        note = _incomparable(one, other) if one and other else f"only in the {'first' if one else 'second'}"
        if note:
            known[name] = Difference(name, note=note)
        elif one:
            ours.append(one)
    shards = in_groups(sorted(ours, key=first_read))
    groups = [(one, shard_of(one.file, [second.tensors[tensor.name] for tensor in one.tensors])) for one in shards]
    is_far = any(source.ranges_at_once > 1 for side in (first, second) for source in side.sources)
    # From a network, one pair at a time and one request of each side: every open request takes memory of its own.
    width = 1 if is_far else THREADS
    lanes = Lanes("numbers", sum(shard.bytes for pair in groups for shard in pair), width)
    found = yield from _side_by_side(lanes, width, groups, (first, second), _compare)
    known |= {difference.tensor: difference for differences in found for difference in differences}
    return tuple(known[name] for name in names)


def _side_by_side(
    lanes: Lanes,
    width: int,
    groups: Sequence[tuple[Shard, ...]],
    sides: Sequence[Numbers],
    compare: Callable[[Lanes, tuple[_Streams, ...]], _Result],
) -> Generator[Progress, None, list[_Result]]:
    """Make the shards of each group at the same time, one of each of `sides`; return what `compare` says of each."""
    room = Room(COMPARED_BYTES)
    of_sides = zip(zip(*groups, strict=True), sides, strict=False)
    making = [Making(lanes, shards, side.sources, room, width) for shards, side in of_sides]

    def compared(group: tuple[Shard, ...]) -> _Result:
        return compare(lanes, tuple(side.made(shard) for side, shard in zip(making, group, strict=True)))

    def stop() -> None:
        for side in making:
            side.stop()

    return (yield from collected(lanes.run([partial(compared, group) for group in groups], stop)))


def _incomparable(first: Tensor, second: Tensor) -> str:
    if first.shape != second.shape:
        return f"{list(first.shape)} in the first and {list(second.shape)} in the second"
    unknown = {
        dtype
        for dtype in (first.dtype, second.dtype)
        if dtype not in BY_NAME or BY_NAME[dtype].bits < 8 or dtype == "C64"
    }
    return f"{' and '.join(sorted(unknown))} cannot be compared as numbers" if unknown else ""


def _pieces(
    tensors: Sequence[tuple[Tensor, Feed]], elements: int, count: Callable[[int, str], None]
) -> Iterator[list[memoryview]]:
    """Yield the bytes of the same numbers of all `tensors`, some at a time; count them."""
    left = tensors[0][0].parameters
    while left:
        number = min(left, elements)
        left -= number
        pieces = []
        for tensor, feed in tensors:
            pieces.append(feed.take(number * BY_NAME[tensor.dtype].bits // 8))
            count(len(pieces[-1]), tensor.file)
        yield pieces


def _compare(lanes: Lanes, sides: tuple[_Streams, ...]) -> list[Difference]:
    found = []
    for pair in zip(*sides, strict=True):
        (first, _), (second, _) = pair
        sums = Sums()
        for one, other in _pieces(pair, _ELEMENTS, lanes.count):
            sums.add(numbers(one, first.dtype), numbers(other, second.dtype))
        found.append(sums.difference(first.name, _note(first.dtype, second.dtype, sums)))
    return found


def _note(first: str, second: str, sums: "Sums") -> str:
    notes = [f"{first} in the first and {second} in the second"] if first != second else []
    notes += ["the numbers are equal, the bytes differ"] if first == second and sums.are_equal else []
    if sums.not_finite:
        verbs = "differs is" if sums.not_finite == 1 else "differ are"
        notes.append(f"{count(sums.not_finite, 'number')} that {verbs} {NOT_FINITE}")
    return "; ".join(notes)


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
        self._count = self._equal = self._finite = 0
        self.not_finite = 0  # pairs that differ and have a NaN or an infinity
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
            scaled = (_scaled(array) if is_wide else (array, 0) for array in (gaps, one, other))
            (gaps, far), (one, high), (other, deep) = scaled
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


def compare_within(
    mismatches: Iterable[Mismatch], first: Numbers, second: Numbers
) -> Generator[Progress, None, tuple[tuple[Mismatch, ...], int, int]]:
    """Return which of `mismatches` stay, how many tensors are within the tolerance of a merge, and how many undecided:
    nothing is wrong for sure. `first` makes each again, as its plan says. Raises SourceError."""
    mismatches = list(mismatches)
    groups = {
        mismatch.tensor: (one, other, one._replace(dtype=_PAIR, recipe=allowed))
        for mismatch in mismatches
        if (one := first.tensors.get(mismatch.tensor))
        and (other := second.tensors.get(mismatch.tensor))
        and (allowed := tolerance_of(one.recipe, one.dtype))
        and (one.dtype, one.shape) == (other.dtype, other.shape)
    }
    lanes = Lanes("numbers", 2 * sum(tensors[0].bytes for tensors in groups.values()), 1)
    shards = [tuple(shard_of(tensor.name, [tensor]) for tensor in tensors) for tensors in groups.values()]
    found = yield from _side_by_side(lanes, 1, shards, (first, second, first), _beyond)
    left = {mismatch.tensor: mismatch for mismatch in mismatches}
    for name, (wrong, _) in zip(groups, found, strict=True):
        if wrong:
            are = "is" if wrong == 1 else "are"
            left[name] = Mismatch(name, f"{wrong:,} of its numbers {are} beyond the tolerance")
        else:
            del left[name]
    unsure = [number for wrong, number in found if not wrong]
    return tuple(left.values()), unsure.count(0), len(unsure) - unsure.count(0)


def _beyond(lanes: Lanes, sides: tuple[_Streams, ...]) -> tuple[int, int]:
    """Return how many numbers of a tensor differ by more than a merge can explain, and how many nobody can judge."""
    import numpy as np

    tensors = [next(iter(side)) for side in sides]
    dtype, beyond, undecided = tensors[0][0].dtype, 0, 0
    for *both, tolerance in _pieces(tensors, _MERGED_ELEMENTS, lambda *_: None):
        made, copied = (numbers(data, dtype).astype(np.float64) for data in both)
        sure, most = np.frombuffer(tolerance, np.float32).reshape(-1, 2).T
        lanes.count(sum(map(len, both)), tensors[1][0].file)
        with np.errstate(all="ignore"):
            differ = (made != copied) & ~(np.isnan(made) & np.isnan(copied))
            is_wrong = differ & ~(np.abs(made - copied) <= most)
            is_open = differ & ~is_wrong & ~(np.abs(made - copied) <= sure)
        beyond += int(np.count_nonzero(is_wrong))
        undecided += int(np.count_nonzero(is_open))
    return beyond, undecided
