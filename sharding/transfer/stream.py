"""Stream the tensors of a source into the shards of a destination: one pass, with digests on the way.

Batches are fetched ahead by a few threads. Each then goes to three workers at once: one for the tensors'
digests, one for the file's, one for writing. Every worker takes batches in order, so that a job holds at
most `BATCHES_AHEAD + BATCHES_BEHIND` batches, whatever the size of the model.
"""

import hashlib
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Literal

from sharding.core.events import Progress, ShardFinished
from sharding.core.limits import BATCHES_AHEAD, BATCHES_BEHIND, THREADS
from sharding.core.protocols import Destination, ShardWriter, Source
from sharding.core.values import Batch, ByteRange, Plan, Shard, ShardRecord
from sharding.planning.plan import shard_header
from sharding.transfer.progress import Pace
from sharding.transfer.read_batches import read_batches

_EMPTY_SHA256 = hashlib.sha256().hexdigest()
_END_OF_SHARD = Batch((), ())

Transfer = Generator[Progress | ShardFinished, None, dict[str, ShardRecord]]


def transfer(plan: Plan, source: Source, destination: Destination, kept: Mapping[str, ShardRecord]) -> Transfer:
    """Write every shard of `plan` that is not in `kept`; yield progress; return the records of all, by file name.

    Finished shards last even if the generator is closed or fails.
    Raises SourceError and DestinationError as reading and writing do.
    """
    numbers = {shard.file: number for number, shard in enumerate(plan.shards, start=1)}
    for record in kept.values():
        yield ShardFinished(record.file, record.bytes, record.sha256, numbers[record.file], len(numbers), kept=True)
    records = dict(kept)
    todo = [shard for shard in plan.shards if shard.file not in kept]
    pipeline = _Pipeline(partial(shard_header, plan), source, destination.open_shard)
    for done in _work_off("transfer", todo, pipeline):
        if isinstance(done, ShardRecord):
            records[done.file] = done
            yield ShardFinished(done.file, done.bytes, done.sha256, numbers[done.file], len(numbers))
        else:
            yield done
    return records


def digest_shards(
    shards: Sequence[Shard], header: Callable[[Shard], bytes], source: Source
) -> Generator[Progress, None, dict[str, ShardRecord]]:
    """Read `shards` as if to write them, each behind its `header`, and keep nothing but their records.

    Raises SourceError as reading does.
    """
    records = {}
    for done in _work_off("verify", shards, _Pipeline(header, source, lambda _: _Nowhere())):
        if isinstance(done, ShardRecord):
            records[done.file] = done
        else:
            yield done
    return records


def _work_off(
    stage: Literal["transfer", "verify"], shards: Sequence[Shard], pipeline: "_Pipeline"
) -> Iterator[Progress | ShardRecord]:
    pace = Pace(stage, sum(shard.bytes for shard in shards), time.monotonic())
    try:
        for done in pipeline.run(shards):
            if isinstance(done, ShardRecord):
                yield done
            elif progress := pace.add(done[1], time.monotonic(), done[0]):
                yield progress
    finally:
        pipeline.close()


class _Nowhere:
    """A shard that is written nowhere. See `protocols.ShardWriter`."""

    def write(self, data: bytes) -> None:
        """Forget bytes."""

    def finish(self, record: ShardRecord) -> None:
        """Do nothing."""

    def abort(self) -> None:
        """Do nothing."""


class _Pipeline:
    """The threads of one transfer, and what is under way in them."""

    def __init__(
        self, header: Callable[[Shard], bytes], source: Source, open_shard: Callable[[str], ShardWriter]
    ) -> None:
        self._header = header
        self._source = source
        self._open_shard = open_shard
        self._asking = ThreadPoolExecutor(source.ranges_at_once, thread_name_prefix="range")
        self._fetching = ThreadPoolExecutor(THREADS, thread_name_prefix="fetch")
        # One thread each: what is submitted to it is done in order.
        self._hashing_tensors = ThreadPoolExecutor(1, thread_name_prefix="tensor-digests")
        self._hashing_file = ThreadPoolExecutor(1, thread_name_prefix="file-digest")
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="write")
        self._finishing = ThreadPoolExecutor(1, thread_name_prefix="finish")
        self._in_work: list[ShardWriter] = []

    def run(self, shards: Iterable[Shard]) -> Iterator[tuple[str, int] | ShardRecord]:
        """Yield file name and bytes for every batch that is written and digested, and a record for every shard."""
        behind: deque[tuple[str, int, list[Future[None]]]] = deque()
        work = None
        for shard, batch, data in self._fetched(shards):
            work = work or self._start(shard)
            if batch is not _END_OF_SHARD:
                behind.append((shard.file, len(data), self._spread(work, batch, data)))
            while behind and (len(behind) > BATCHES_BEHIND or batch is _END_OF_SHARD):
                yield _wait(*behind.popleft())
            if batch is _END_OF_SHARD:
                # Waited for, so that a kill makes a job repeat one shard at most.
                yield self._end(work).result()
                work = None

    def close(self) -> None:
        """Stop all threads; what is not finished stays unfinished."""
        # Nobody waits for a network that stalls: a read ends with its time-out, a write when it is aborted.
        for pool in (self._fetching, self._asking):
            pool.shutdown(wait=False, cancel_futures=True)
        for writer in list(self._in_work):
            writer.abort()
        for pool in (self._hashing_tensors, self._hashing_file, self._writing, self._finishing):
            pool.shutdown(cancel_futures=True)

    def _fetched(self, shards: Iterable[Shard]) -> Iterator[tuple[Shard, Batch, bytes]]:
        ahead: deque[tuple[Shard, Batch, Future[bytes]]] = deque()
        for shard in shards:
            for batch in self._batches(shard):
                ahead.append((shard, batch, self._fetching.submit(self._fetch, batch)))
                if len(ahead) > BATCHES_AHEAD:
                    shard_, batch_, data = ahead.popleft()
                    yield shard_, batch_, data.result()
        for shard, batch, data in ahead:
            yield shard, batch, data.result()

    def _batches(self, shard: Shard) -> Iterator[Batch]:
        yield from read_batches(shard.tensors, self._source.batch_bytes, self._source.join_gap_bytes)
        yield _END_OF_SHARD

    def _fetch(self, batch: Batch) -> bytes:
        """Return the bytes of a batch's pieces, one after another."""
        several = len(batch.ranges) > 1 and self._source.ranges_at_once > 1
        read = partial(_read, self._source)
        buffers = list((self._asking.map if several else map)(read, batch.ranges))
        if len(buffers) == 1 and _in_place(batch, len(buffers[0])):
            return buffers[0]
        return b"".join(
            memoryview(buffers[piece.range_index])[piece.start_byte : piece.end_byte] for piece in batch.pieces
        )

    def _start(self, shard: Shard) -> "_ShardInWork":
        work = _ShardInWork(shard, self._open_shard(shard.file))
        self._in_work.append(work.writer)
        header = self._header(shard)
        self._hashing_file.submit(work.file_sha256.update, header)
        work.header_written = self._writing.submit(work.write, header)
        return work

    def _spread(self, work: "_ShardInWork", batch: Batch, data: bytes) -> list[Future[None]]:
        return [
            self._hashing_tensors.submit(work.hash_tensors, batch, data),
            self._hashing_file.submit(work.file_sha256.update, data),
            self._writing.submit(work.write, data),
        ]

    def _end(self, work: "_ShardInWork") -> Future[ShardRecord]:
        tensors = self._hashing_tensors.submit(work.tensor_digests)
        file = self._hashing_file.submit(work.file_sha256.hexdigest)
        size = self._writing.submit(lambda: work.bytes_written)

        def finish() -> ShardRecord:
            if work.header_written:
                work.header_written.result()  # raises where it could not be
            record = ShardRecord(work.shard.file, size.result(), file.result(), tensors.result())
            work.writer.finish(record)
            self._in_work.remove(work.writer)
            return record

        return self._finishing.submit(finish)


class _ShardInWork:
    """One shard between its first byte and its record. Each method is called from one thread only."""

    def __init__(self, shard: Shard, writer: ShardWriter) -> None:
        self.shard = shard
        self.writer = writer
        self.bytes_written = 0
        self.header_written: Future[None] | None = None
        self.file_sha256 = hashlib.sha256()
        self._tensor = ""
        self._tensor_sha256 = hashlib.sha256()
        self._digests: dict[str, str] = {}

    def write(self, data: bytes) -> None:
        self.writer.write(data)
        self.bytes_written += len(data)

    def hash_tensors(self, batch: Batch, data: bytes) -> None:
        view, start = memoryview(data), 0
        for piece in batch.pieces:
            if piece.tensor != self._tensor:
                self._next_tensor(piece.tensor)
            end = start + piece.end_byte - piece.start_byte
            self._tensor_sha256.update(view[start:end])
            start = end

    def tensor_digests(self) -> dict[str, str]:
        self._next_tensor("")
        return {tensor.name: self._digests.get(tensor.name, _EMPTY_SHA256) for tensor in self.shard.tensors}

    def _next_tensor(self, name: str) -> None:
        self._digests[self._tensor] = self._tensor_sha256.hexdigest()
        self._tensor, self._tensor_sha256 = name, hashlib.sha256()


def _read(source: Source, part: ByteRange) -> bytes:
    chunks = list(source.read(part.file, part.start_byte, part.end_byte))
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _in_place(batch: Batch, size: int) -> bool:
    position = 0
    for piece in batch.pieces:
        if piece.start_byte != position:
            return False
        position = piece.end_byte
    return position == size


def _wait(file: str, size: int, futures: Iterable[Future[None]]) -> tuple[str, int]:
    for future in futures:
        future.result()
    return file, size
