"""Make the tensors of shards as their recipes say. All of them share the threads and the memory for what is read.

The result needs bytes in one order, and the source has them in another. So reads go in batches of a few megabytes.
Inside a batch, the ranges are sorted and joined: a thousand small tensors near one another cost one request, in any
order. From a network, other threads read ahead. What is read and not yet used has a limit, whatever the model.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock

from sharding.core.limits import FETCHES_AT_ONCE, THREADS
from sharding.core.protocols import Source
from sharding.core.recipe import Extent, Feed
from sharding.core.threads import Threads
from sharding.core.values import Shard, Tensor
from sharding.recipes.cast import extra_bytes
from sharding.recipes.stored import made_by
from sharding.transfer.lanes import Lanes
from sharding.transfer.pages import Pages

BATCHES_AHEAD = 2
"""Batches of a shard to fetch early, so that the network does not wait for hashes. `THREADS` shards have as many."""

FETCHED_BYTES = 48 << 20
"""Most bytes that all shards of a job have fetched and not yet written. Each shard may have one batch more."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Ranges to fetch together, one request each, and their `pieces` in the order of use: range, and bytes in it."""

    ranges: tuple[Extent, ...]
    pieces: tuple[tuple[int, slice], ...]

    @property
    def fetched_bytes(self) -> int:
        """How many bytes the ranges have together."""
        return sum(extent.end_byte - extent.start_byte for extent in self.ranges)

    def used(self, buffers: Sequence[bytes]) -> Iterator[memoryview]:
        """Yield the pieces in the order of use. `buffers` are the bytes of the ranges."""
        for index, part in self.pieces:
            yield memoryview(buffers[index])[part]


def read_batches(extents: Iterable[Extent], batch_bytes: int, join_gap_bytes: int) -> Iterator[Batch]:
    """Yield batches that together hold every byte of `extents`, in their order.

    Ranges are joined if the gap between them is at most `join_gap_bytes`. The pieces of a batch add up to at most
    `batch_bytes`, and so do the gaps in it that are read too.

    >>> near = [Extent(0, "f", 4, 8), Extent(0, "f", 0, 4)]
    >>> [batch.ranges for batch in read_batches(near, 1024, 16)]
    [(Extent(source=0, file='f', start_byte=0, end_byte=8),)]
    """
    wanted: list[Extent] = []
    room = batch_bytes
    for source, file, start, last in extents:
        while start < last:
            end = min(last, start + room)
            wanted.append(Extent(source, file, start, end))
            room -= end - start
            start = end
            if not room:
                yield _batch(wanted, batch_bytes, join_gap_bytes)
                wanted, room = [], batch_bytes
    if wanted:
        yield _batch(wanted, batch_bytes, join_gap_bytes)


def _batch(wanted: list[Extent], spare_bytes: int, join_gap_bytes: int) -> Batch:
    ranges: list[Extent] = []
    pieces: dict[int, tuple[int, slice]] = {}
    for index in sorted(range(len(wanted)), key=wanted.__getitem__):
        source, file, start, end = wanted[index]
        last = ranges[-1] if ranges and ranges[-1][:2] == (source, file) else None
        gap = start - last.end_byte if last else 0
        if last and gap <= max(0, min(join_gap_bytes, spare_bytes)):
            ranges[-1] = Extent(source, file, last.start_byte, max(end, last.end_byte))
            spare_bytes -= max(0, gap)
        else:
            ranges.append(Extent(source, file, start, end))
        offset = start - ranges[-1].start_byte
        pieces[index] = len(ranges) - 1, slice(offset, offset + end - start)
    return Batch(tuple(ranges), tuple(pieces[index] for index in range(len(wanted))))


class Room:
    """A number of bytes that all threads of a job share."""

    def __init__(self, most_bytes: int) -> None:
        self._free = most_bytes
        self._lock = Lock()

    def take(self, count: int, *, is_due: bool) -> bool:
        """Take `count` bytes if they are free, or if `is_due`, so that no thread waits; return whether they are."""
        with self._lock:
            if count > self._free and not is_due:
                return False
            self._free -= count
            return True

    def give_back(self, count: int) -> None:
        """Free `count` bytes again."""
        with self._lock:
            self._free += count


class Making:
    """What makes the tensors of `shards` from `sources`. Each shard may be made in its own thread."""

    def __init__(
        self,
        lanes: Lanes,
        shards: Sequence[Shard],
        sources: Sequence[Source],
        room: Room | None = None,
        fetches_at_once: int = FETCHES_AT_ONCE,
    ) -> None:
        """Make tensors in the tasks of `lanes`. All that share a `room` share the limit for what is read."""
        self._lanes = lanes
        self._sources = sources
        self._ranges_at_once = max(source.ranges_at_once for source in sources)
        # A disk needs no extra thread if another shard keeps the second core busy.
        self._batches_ahead = BATCHES_AHEAD if self._ranges_at_once > 1 or len(shards) < THREADS else 0
        self._room = room or Room(FETCHED_BYTES)
        tensors = (tensor for shard in shards for tensor in shard.tensors)
        self._kept = Pages(sources, (kept for tensor in tensors for kept in tensor.recipe.keeps()))
        self._asking = Threads(self._ranges_at_once, thread_name_prefix="range")
        self._fetching = Threads(fetches_at_once, thread_name_prefix="fetch")

    def made(self, shard: Shard) -> Iterator[tuple[Tensor, Feed]]:
        """Yield the tensors of a shard, each with its bytes. Take all bytes of one first. Raises SourceError."""
        inputs = Feed(self._fetched(shard))
        for tensor in shard.tensors:
            yield tensor, made_by(tensor.recipe, inputs, self._kept)

    def stop(self) -> None:
        """Stop all threads. A read that stalls ends with its time-out."""
        for pool in (self._fetching, self._asking):
            pool.shutdown(wait=False, cancel_futures=True)

    def _fetched(self, shard: Shard) -> Iterator[memoryview]:
        extents = (extent for tensor in shard.tensors if tensor.bytes for extent in tensor.recipe.reads())
        # Batches are larger by as much as a shard takes more bytes than it makes.
        narrowing = 1 + sum(extra_bytes(tensor.recipe) for tensor in shard.tensors) // max(1, shard.bytes)
        batch_bytes = max(source.batch_bytes for source in self._sources) * narrowing
        batches = read_batches(extents, batch_bytes, max(source.join_gap_bytes for source in self._sources))
        if not self._batches_ahead:
            for batch in batches:
                yield from batch.used(self._fetch(batch))
            return
        ahead: deque[tuple[Batch, Future[Sequence[bytes]]]] = deque()
        waiting = next(batches, None)
        while waiting or ahead:
            while waiting and len(ahead) <= self._batches_ahead:
                if not self._room.take(waiting.fetched_bytes, is_due=not ahead):
                    break
                ahead.append((waiting, self._fetching.submit(self._fetch, waiting)))
                waiting = next(batches, None)
            batch, future = ahead.popleft()
            try:
                yield from batch.used(self._fetching.result(future, self._lanes.go_on))
            finally:  # because nobody asks for more after the last byte of a shard
                del future
                self._room.give_back(batch.fetched_bytes)

    def _fetch(self, batch: Batch) -> Sequence[bytes]:
        several = len(batch.ranges) > 1 and self._ranges_at_once > 1
        return list((self._asking.map if several else map)(self._read, batch.ranges))

    def _read(self, extent: Extent) -> bytes:
        chunks = list(self._sources[extent.source].read(extent.file, extent.start_byte, extent.end_byte))
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)
