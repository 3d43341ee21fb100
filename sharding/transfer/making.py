"""Make the tensors of shards as their recipes say. All of them share the threads and the memory for what is read.

From a network, other threads read ahead. The bytes that are read and not yet used have a limit, whatever the model.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

from sharding.core.limits import THREADS
from sharding.core.protocols import Source
from sharding.core.recipe import Chunk, Extent, Feed
from sharding.core.threads import Threads
from sharding.core.values import Shard, Tensor
from sharding.recipes.cast import Cast
from sharding.recipes.stored import Stored
from sharding.transfer.lanes import Lanes
from sharding.transfer.pages import Pages
from sharding.transfer.read_batches import Batch, read_batches
from sharding.transfer.room import Room

BATCHES_AHEAD = 2
"""Batches of a shard that are fetched early, so that the network does not wait for the hashes. This number and
`THREADS` limit the memory of a job."""

FETCHED_BYTES = 48 << 20
"""Most bytes that all shards of a job have fetched and not yet written. Each shard may have one batch more."""


class Making:
    """What makes the tensors of `shards` from `sources`. Each shard may be made in its own thread."""

    def __init__(
        self,
        lanes: Lanes,
        shards: Sequence[Shard],
        sources: Sequence[Source],
        room: Room | None = None,
        fetches_at_once: int = THREADS,
    ) -> None:
        """Make tensors in the tasks of `lanes`. All that share a `room` share the limit for what is read."""
        self._lanes = lanes
        self._sources = sources
        self._ranges_at_once = max(source.ranges_at_once for source in sources)
        # A disk needs no extra thread if another shard keeps the second core busy.
        self._batches_ahead = BATCHES_AHEAD if self._ranges_at_once > 1 or len(shards) < THREADS else 0
        self._room = room or Room(FETCHED_BYTES)
        self._kept = Pages(
            sources, (kept for shard in shards for tensor in shard.tensors for kept in tensor.recipe.keeps())
        )
        self._asking = Threads(self._ranges_at_once, thread_name_prefix="range")
        self._fetching = Threads(fetches_at_once, thread_name_prefix="fetch")

    def made(self, shard: Shard) -> Iterator[tuple[Tensor, Iterator[Chunk]]]:
        """Yield the tensors of a shard, each with its bytes. Take all bytes of one first. Raises SourceError."""
        inputs = Feed(self._fetched(shard))
        for tensor in shard.tensors:
            yield tensor, tensor.recipe.make(inputs, self._kept)

    def stop(self) -> None:
        """Stop all threads. A read that stalls ends with its time-out."""
        for pool in (self._fetching, self._asking):
            pool.shutdown(wait=False, cancel_futures=True)

    def _fetched(self, shard: Shard) -> Iterator[memoryview]:
        """Yield the bytes that the recipes of a shard read, in the order of use."""
        extents = (extent for tensor in shard.tensors for extent in tensor.recipe.reads())
        batches = read_batches(
            extents,
            max(source.batch_bytes for source in self._sources) * _narrowing(shard),
            max(source.join_gap_bytes for source in self._sources),
        )
        if not self._batches_ahead:
            for batch in batches:
                yield from batch.used(self._fetch(batch))
            return
        ahead: deque[tuple[Batch, Future[Sequence[bytes]]]] = deque()
        waiting = next(batches, None)
        while waiting or ahead:
            while (
                waiting
                and len(ahead) <= self._batches_ahead
                and self._room.take(waiting.fetched_bytes, is_due=not ahead)
            ):
                ahead.append((waiting, self._fetching.submit(self._fetch, waiting)))
                waiting = next(batches, None)
            batch, future = ahead.popleft()
            try:
                yield from batch.used(self._lanes.result(self._fetching, future))
            finally:  # because nobody asks for more after the last byte of a shard
                del future
                self._room.give_back(batch.fetched_bytes)

    def _fetch(self, batch: Batch) -> Sequence[bytes]:
        several = len(batch.ranges) > 1 and self._ranges_at_once > 1
        return list((self._asking.map if several else map)(self._read, batch.ranges))

    def _read(self, extent: Extent) -> bytes:
        chunks = list(self._sources[extent.source].read(extent.file, extent.start_byte, extent.end_byte))
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _narrowing(shard: Shard) -> int:
    """Return how many bytes the casts of a shard take for each byte that they make, at least 1.

    Batches are larger by this factor.
    """
    casts = (tensor.recipe for tensor in shard.tensors if isinstance(tensor.recipe, Cast))
    before = sum(cast.of.size_bytes - cast.size_bytes for cast in casts if isinstance(cast.of, Stored))
    return 1 + max(0, before) // max(1, shard.bytes)
