"""Say by how much the numbers of two checkpoints differ, tensor by tensor."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sharding.core.dtypes import BY_NAME
from sharding.core.events import Progress
from sharding.core.protocols import Source
from sharding.core.values import Difference, Shard, Tensor
from sharding.recipes.feed import Feed
from sharding.recipes.numbers import numbers
from sharding.transfer.lanes import Lanes, collected
from sharding.transfer.making import Making

_ELEMENTS = 1 << 18
"""Numbers that are compared at a time: 2 MiB of float64 for each side."""


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
    names = list(names)
    pairs = [(first.tensors.get(name), second.tensors.get(name)) for name in names]
    notes = [_incomparable(*pair) for pair in pairs]
    both = [pair for pair, note in zip(pairs, notes, strict=True) if not note]
    shards = [
        [Shard(tensor.name, (tensor,), tensor.bytes) for tensor in side if tensor] for side in zip(*both, strict=True)
    ]
    lanes = Lanes("numbers", sum(shard.bytes for side in shards for shard in side))
    making = [Making(lanes, side, one.sources) for side, one in zip(shards, (first, second), strict=False)]

    def stop() -> None:
        for one in making:
            one.stop()

    tasks = [partial(_compare, lanes, making, pair) for pair in zip(*shards, strict=True)]
    found = yield from collected(lanes.run(tasks, stop))
    known = {difference.tensor: difference for difference in found}
    return tuple(known.get(name) or Difference(name, note=note) for name, note in zip(names, notes, strict=True))


def _incomparable(first: Tensor | None, second: Tensor | None) -> str:
    """Return why two tensors have no numbers to compare, "" if they have."""
    if first is None or second is None:
        return "only in the second" if first is None else "only in the first"
    if first.shape != second.shape:
        return f"{list(first.shape)} in the first and {list(second.shape)} in the second"
    unknown = {dtype for dtype in (first.dtype, second.dtype) if BY_NAME[dtype].bits < 8 or dtype == "C64"}
    return f"{', '.join(sorted(unknown))} is not compared by its numbers" if unknown else ""


def _compare(lanes: Lanes, making: Sequence[Making], pair: Sequence[Shard]) -> Difference:
    sides = [next(made.made(shard)) for made, shard in zip(making, pair, strict=True)]
    feeds = [Feed(chunk.data for chunk in chunks) for _, chunks in sides]
    (first, _), (second, _) = sides
    sums, left = Sums(), first.parameters
    while left:
        count = min(left, _ELEMENTS)
        left -= count
        arrays = []
        for (tensor, _), feed in zip(sides, feeds, strict=True):
            data = feed.take(count * BY_NAME[tensor.dtype].bits // 8)
            lanes.count(len(data), tensor.name)
            arrays.append(numbers(data, tensor.dtype))
        sums.add(*arrays)
    note = "" if first.dtype == second.dtype else f"{first.dtype} in the first and {second.dtype} in the second"
    return sums.difference(first.name, note)


class Sums:
    """What is known of two tensors after some of their numbers. Each number counts as a float64.

    A pair with a NaN or an infinity counts in the share of equal elements only. Two NaNs are equal.

    >>> import numpy as np
    >>> sums = Sums()
    >>> sums.add(np.array([3.0, 0.0, np.nan]), np.array([3.0, 4.0, np.nan]))
    >>> sums.difference("w")
    Difference(tensor='w', largest_abs=4.0, mean_abs=2.0, cosine=0.6, equal=0.6666666666666666, note='')
    """

    def __init__(self) -> None:
        """Know of no number."""
        self._count = self._equal = self._finite = 0
        self._largest = 0.0
        self._distance: Any = 0.0
        self._product: Any = 0.0
        self._squares: list[Any] = [0.0, 0.0]

    def add(self, first: Any, second: Any) -> None:
        """Add numbers of both tensors, in arrays of one length and any dtypes."""
        import numpy as np

        alike = first.dtype == second.dtype and first.dtype.kind in "biu"
        same = int((first == second).sum()) if alike else None
        # The squares of a float64 may exceed its range.
        wide = np.longdouble if max(first.itemsize, second.itemsize) == 8 else np.float64
        first, second = first.astype(np.float64), second.astype(np.float64)
        self._count += len(first)
        if same is None:
            same = int(((first == second) | (np.isnan(first) & np.isnan(second))).sum())
        self._equal += same
        finite = np.isfinite(first) & np.isfinite(second)
        if not finite.all():
            first, second = first[finite], second[finite]
        if not len(first):
            return
        self._finite += len(first)
        with np.errstate(over="ignore", under="ignore"):
            gaps = np.abs(first - second)
            self._largest = max(self._largest, float(gaps.max()))
            self._distance += gaps.sum(dtype=wide)
            first, second = first.astype(wide, copy=False), second.astype(wide, copy=False)
            self._product += first @ second
            self._squares = [self._squares[0] + first @ first, self._squares[1] + second @ second]

    def difference(self, name: str, note: str = "") -> Difference:
        """Return by how much the tensor `name` differs in what was added."""
        import numpy as np

        equal = self._equal / self._count if self._count else 1.0
        if not self._finite:
            return Difference(name, equal=equal, note=note)
        lengths = np.sqrt(self._squares[0]) * np.sqrt(self._squares[1])
        cosine = float(np.clip(self._product / lengths, -1, 1)) if lengths > 0 else None
        return Difference(name, self._largest, float(self._distance / self._finite), cosine, equal, note)
