"""Compare merged tensors whose bits differ with what another order of summation may change."""

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from functools import partial

from sharding.core.dtypes import BY_NAME
from sharding.core.events import Progress
from sharding.core.limits import COMPARED_BYTES
from sharding.core.values import Mismatch, Shard, Tensor
from sharding.recipes.feed import Feed
from sharding.recipes.numbers import numbers
from sharding.recipes.tolerance import is_merged, tolerance_of
from sharding.transfer.lanes import Lanes, collected
from sharding.transfer.making import Making
from sharding.transfer.room import Room
from sharding.verify.differences import Numbers

_ELEMENTS = 1 << 16
"""Numbers that are compared at a time."""


def compare_within(
    mismatches: Iterable[Mismatch], first: Numbers, second: Numbers
) -> Generator[Progress, None, tuple[tuple[Mismatch, ...], int]]:
    """Return which of `mismatches` stay, and how many tensors are within the tolerance of a merge. Yield progress.

    `first` makes each tensor again, as its plan says, and `second` is the copy. Raises SourceError.
    """
    mismatches = list(mismatches)
    groups = {
        mismatch.tensor: (one, other, one._replace(dtype="F32", recipe=tolerance_of(one.recipe, one.dtype)))
        for mismatch in mismatches
        if (one := first.tensors.get(mismatch.tensor))
        and (other := second.tensors.get(mismatch.tensor))
        and is_merged(one.recipe)
        and (one.dtype, one.shape) == (other.dtype, other.shape)
    }
    lanes = Lanes("numbers", 2 * sum(tensors[0].bytes for tensors in groups.values()), 1)
    room = Room(COMPARED_BYTES)
    sides = [
        Making(lanes, [_alone(tensors[number]) for tensors in groups.values()], side.sources, room, 1)
        for number, side in enumerate((first, second, first))
    ]

    def stop() -> None:
        for side in sides:
            side.stop()

    tasks = [partial(_beyond, lanes, sides, tensors) for tensors in groups.values()]
    beyond = dict(zip(groups, (yield from collected(lanes.run(tasks, stop))), strict=True))
    left = tuple(
        Mismatch(mismatch.tensor, _problem(number)) if (number := beyond.get(mismatch.tensor)) else mismatch
        for mismatch in mismatches
        if beyond.get(mismatch.tensor) != 0
    )
    return left, sum(not number for number in beyond.values())


def _problem(number: int) -> str:
    return f"{number:,} of its numbers {'is' if number == 1 else 'are'} beyond the tolerance of a merge"


def _alone(tensor: Tensor) -> Shard:
    return Shard(tensor.name, (tensor,), tensor.bytes)


def _beyond(lanes: Lanes, sides: Sequence[Making], tensors: Sequence[Tensor]) -> int:
    """Return how many numbers of a tensor differ by more than its tolerance."""
    import numpy as np

    streams = [next(iter(side.made(_alone(tensor))))[1] for side, tensor in zip(sides, tensors, strict=True)]
    feeds = [Feed(chunk.data for chunk in chunks) for chunks in streams]
    left, beyond = tensors[0].parameters, 0
    while left:
        number = min(left, _ELEMENTS)
        left -= number
        arrays = []
        for tensor, feed in zip(tensors, feeds, strict=True):
            data = feed.take(number * BY_NAME[tensor.dtype].bits // 8)
            arrays.append(numbers(data, tensor.dtype).astype(np.float64))
        made, copied, allowed = arrays
        lanes.count(2 * number * BY_NAME[tensors[0].dtype].bits // 8, tensors[1].file)
        with np.errstate(all="ignore"):
            same = (made == copied) | (np.isnan(made) & np.isnan(copied)) | (np.abs(made - copied) <= allowed)
        beyond += number - int(np.count_nonzero(same))
    for chunks in streams:
        deque(chunks, maxlen=0)  # a recipe ends before the next one reads
    return beyond
