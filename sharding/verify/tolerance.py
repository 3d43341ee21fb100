"""Compare merged tensors whose bits differ with what another order of summation may change."""

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from functools import partial

from sharding.core.dtypes import BY_NAME
from sharding.core.events import Progress
from sharding.core.limits import COMPARED_BYTES
from sharding.core.values import Mismatch, Shard, Tensor
from sharding.recipes.cast import numbers
from sharding.recipes.feed import Feed
from sharding.recipes.tolerance import is_merged, tolerance_of
from sharding.transfer.lanes import Lanes, collected
from sharding.transfer.making import Making
from sharding.transfer.room import Room
from sharding.verify.differences import Numbers

_PAIR = "F64"
"""A dtype of as many bits as the two numbers of a tolerance."""

_ELEMENTS = 1 << 16
"""Numbers that are compared at a time."""


def compare_within(
    mismatches: Iterable[Mismatch], first: Numbers, second: Numbers
) -> Generator[Progress, None, tuple[tuple[Mismatch, ...], int, int]]:
    """Return which of `mismatches` stay, how many tensors are within the tolerance of a merge, and how many undecided.

    An undecided tensor has no number that is wrong for sure, but some that nobody can judge. Yields progress. `first`
    makes each tensor again, as its plan says, and `second` is the copy. Raises SourceError.
    """
    mismatches = list(mismatches)
    groups = {
        mismatch.tensor: (one, other, one._replace(dtype=_PAIR, recipe=tolerance_of(one.recipe, one.dtype)))
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
        Mismatch(mismatch.tensor, _problem(beyond[mismatch.tensor][0])) if mismatch.tensor in beyond else mismatch
        for mismatch in mismatches
        if mismatch.tensor not in beyond or beyond[mismatch.tensor][0]
    )
    unsure = [number for wrong, number in beyond.values() if not wrong]
    return left, unsure.count(0), len(unsure) - unsure.count(0)


def _problem(number: int) -> str:
    return f"{number:,} of its numbers {'is' if number == 1 else 'are'} beyond the tolerance of a merge"


def _alone(tensor: Tensor) -> Shard:
    return Shard(tensor.name, (tensor,), tensor.bytes)


def _beyond(lanes: Lanes, sides: Sequence[Making], tensors: Sequence[Tensor]) -> tuple[int, int]:
    """Return how many numbers of a tensor differ by more than a merge can explain, and how many nobody can judge."""
    import numpy as np

    streams = [next(iter(side.made(_alone(tensor))))[1] for side, tensor in zip(sides, tensors, strict=True)]
    feeds = [Feed(chunk.data for chunk in chunks) for chunks in streams]
    left, beyond, undecided = tensors[0].parameters, 0, 0
    while left:
        number = min(left, _ELEMENTS)
        left -= number
        data = [
            feed.take(number * BY_NAME[tensor.dtype].bits // 8) for tensor, feed in zip(tensors, feeds, strict=True)
        ]
        made, copied = (numbers(data[side], tensors[side].dtype).astype(np.float64) for side in (0, 1))
        sure, most = np.frombuffer(data[2], np.float32).reshape(-1, 2).T
        lanes.count(2 * number * BY_NAME[tensors[0].dtype].bits // 8, tensors[1].file)
        with np.errstate(all="ignore"):
            differ = (made != copied) & ~(np.isnan(made) & np.isnan(copied))
            is_wrong = differ & ~(np.abs(made - copied) <= most)
            is_open = differ & ~is_wrong & ~(np.abs(made - copied) <= sure)
        beyond += int(np.count_nonzero(is_wrong))
        undecided += int(np.count_nonzero(is_open))
    for chunks in streams:
        deque(chunks, maxlen=0)  # a recipe ends before the next one reads
    return beyond, undecided
