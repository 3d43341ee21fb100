"""Stream the tensors of a source into the shards of a destination: one pass, with digests on the way.

Two shards are moved at a time, each by one thread that reads, hashes and writes one batch after another; from a network
other threads fetch ahead what comes next. A job holds at most `BATCHES_AHEAD + 1` batches of each of the two, whatever
the size of the model.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from functools import partial
from threading import Lock
from typing import Literal

from typing_extensions import override

from sharding.core.events import Phase, Progress, ShardFinished
from sharding.core.hashing import new_tensor_hash
from sharding.core.limits import BATCHES_AHEAD, THREADS
from sharding.core.protocols import Destination, ShardSink, ShardWriter, Source
from sharding.core.threads import Threads
from sharding.core.values import Plan, Shard, ShardRecord
from sharding.planning.plan import shard_header
from sharding.transfer.lanes import Done, Lanes, collected
from sharding.transfer.noting_source import NotingSource
from sharding.transfer.prepare import Prepared
from sharding.transfer.read_batches import Batch, ByteRange, read_batches

Transfer = Generator[Progress | ShardFinished, None, dict[str, ShardRecord]]


def transfer(prepared: Prepared, destination: Destination, kept: Mapping[str, ShardRecord]) -> Transfer:
    """Write every shard that is not in `kept`; yield progress; return the records of all, by file name.

    Finished shards last even if the generator is closed or fails. What was noted of the source stands in the records.
    Raises SourceError and DestinationError as reading and writing do.
    """
    plan, reading, noted = prepared.plan, prepared.reading, prepared.noted
    header = partial(shard_header, plan)
    return told_in_order(plan, kept, lambda todo: move_shards("transfer", todo, header, reading, destination, noted))


def told_in_order(
    plan: Plan, kept: Mapping[str, ShardRecord], moving: Callable[[list[Shard]], Iterator[Progress | Done[ShardRecord]]]
) -> Transfer:
    """Have `moving` write every shard of `plan` that is not in `kept`; tell of each in the order of the plan.

    Returns the records of all, by file name.
    """
    numbers = {shard.file: number for number, shard in enumerate(plan.shards, start=1)}
    for record in kept.values():
        yield ShardFinished(record.file, record.bytes, record.sha256, numbers[record.file], len(numbers), kept=True)
    records = dict(kept)
    todo = [shard for shard in plan.shards if shard.file not in kept]
    reported = 0
    for event in moving(todo):
        if not isinstance(event, Done):
            yield event
            continue
        records[event.result.file] = event.result
        # In their order, whichever came first.
        while reported < len(todo) and (done := records.get(todo[reported].file)):
            reported += 1
            yield ShardFinished(done.file, done.bytes, done.sha256, numbers[done.file], len(numbers))
    return {shard.file: records[shard.file] for shard in plan.shards}


def digest_shards(
    shards: Sequence[Shard],
    header: Callable[[Shard], bytes],
    source: Source,
    phase: Literal["check", "verify"] = "verify",
) -> Generator[Progress, None, dict[str, ShardRecord]]:
    """Read `shards` as if to write them, each behind its `header`, and keep nothing but their records.

    Raises SourceError as reading does.
    """
    records = yield from collected(move_shards(phase, shards, header, source, NOWHERE))
    return {record.file: record for record in records}


def move_shards(
    phase: Phase,
    shards: Sequence[Shard],
    header: Callable[[Shard], bytes],
    source: Source,
    sink: ShardSink,
    noted: NotingSource | None = None,
) -> Iterator[Progress | Done[ShardRecord]]:
    """Read `shards` of `source`, each behind its `header`, into `sink`; yield progress, and the record of each.

    `noted` is what `source` reads from, if that remembers what it reads.

    Raises SourceError and DestinationError.
    """
    lanes = Lanes(phase, sum(shard.bytes for shard in shards), sink.shards_at_once)
    # A disk needs no thread of its own where another shard keeps the second core busy.
    batches_ahead = BATCHES_AHEAD if source.ranges_at_once > 1 or len(shards) < THREADS else 0
    move = _Move(lanes, header, source, sink, batches_ahead, noted)
    return lanes.run([partial(move.shard, shard) for shard in shards], move.stop)


class _Nowhere(ShardSink):
    """A sink that keeps nothing. See `protocols.ShardSink`."""

    shards_at_once = THREADS
    bytes_uploaded = bytes_deduplicated = 0

    @override
    def finished(self, file: str) -> None:
        """Return None."""

    @override
    def open_shard(self, file: str) -> ShardWriter:
        return _Forgotten()

    @override
    def note(self, record: ShardRecord) -> None:
        """Do nothing."""

    @override
    def close(self) -> None:
        """Do nothing."""


NOWHERE = _Nowhere()


class _Forgotten(ShardWriter):
    """A shard of which nothing but its SHA-256 is kept. See `protocols.ShardWriter`."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()

    @override
    def write(self, data: bytes) -> None:
        self._sha256.update(data)

    @override
    def finish(self) -> str:
        return self._sha256.hexdigest()

    @override
    def abort(self) -> None:
        """Do nothing."""


class _Move:
    """What moves one shard, and what all of them share."""

    def __init__(
        self,
        lanes: Lanes,
        header: Callable[[Shard], bytes],
        source: Source,
        sink: ShardSink,
        batches_ahead: int,
        noted: NotingSource | None,
    ) -> None:
        self._lanes = lanes
        self._header = header
        self._source = source
        self._sink = sink
        self._batches_ahead = batches_ahead
        self._noted = noted
        self._asking = Threads(source.ranges_at_once, thread_name_prefix="range")
        self._fetching = Threads(THREADS, thread_name_prefix="fetch")
        self._in_work: set[ShardWriter] = set()
        self._one_note = Lock() if noted else nullcontext()

    def shard(self, shard: Shard) -> ShardRecord:
        """Return the record of a shard once it is finished."""
        writer = self._sink.open_shard(shard.file)
        self._in_work.add(writer)
        header = self._header(shard)
        tensors, size = _TensorDigests(shard), len(header)
        writer.write(header)
        for batch, data in self._fetched(shard):
            tensors.update(batch, data)
            writer.write(data)
            size += len(data)
            self._lanes.count(len(data), shard.file)
        sha256 = writer.finish()
        with self._one_note:  # what was read so far stands in this record, or in one that is noted already
            reads = self._noted.take() if self._noted else ()
            record = ShardRecord(shard.file, size, sha256, tensors.finish(), reads)
            self._sink.note(record)
        self._in_work.discard(writer)
        return record

    def stop(self) -> None:
        """Stop all threads; what is not finished stays unfinished."""
        # Nobody waits for a network that stalls: a read ends with its time-out, a write when it is aborted.
        for pool in (self._fetching, self._asking):
            pool.shutdown(wait=False, cancel_futures=True)
        for writer in list(self._in_work):
            writer.abort()

    def _fetched(self, shard: Shard) -> Iterator[tuple[Batch, bytes]]:
        ahead: deque[tuple[Batch, Future[bytes]]] = deque()
        for batch in read_batches(shard.tensors, self._source.batch_bytes, self._source.join_gap_bytes):
            if not self._batches_ahead:
                yield batch, self._fetch(batch)
                continue
            ahead.append((batch, self._fetching.submit(self._fetch, batch)))
            if len(ahead) > self._batches_ahead:
                first, data = ahead.popleft()
                yield first, self._lanes.result(self._fetching, data)
        while ahead:
            first, data = ahead.popleft()
            yield first, self._lanes.result(self._fetching, data)

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


class _TensorDigests:
    """The digests of a shard's tensors, whose bytes come in order."""

    def __init__(self, shard: Shard) -> None:
        self._hash = new_tensor_hash()
        self._tensor: str | None = None
        empty = self._hash.hexdigest()
        self._digests = {tensor.name: empty for tensor in shard.tensors}

    def update(self, batch: Batch, data: bytes) -> None:
        view, start = memoryview(data), 0
        for piece in batch.pieces:
            if piece.tensor != self._tensor:
                self._next(piece.tensor)
            end = start + piece.end_byte - piece.start_byte
            self._hash.update(view[start:end])
            start = end

    def finish(self) -> dict[str, str]:
        self._next(None)
        return self._digests

    def _next(self, name: str | None) -> None:
        if self._tensor is not None:
            self._digests[self._tensor] = self._hash.hexdigest()
        self._tensor, self._hash = name, new_tensor_hash()


def _read(source: Source, span: ByteRange) -> bytes:
    chunks = list(source.read(span.file, span.start_byte, span.end_byte))
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _in_place(batch: Batch, size: int) -> bool:
    position = 0
    for piece in batch.pieces:
        if piece.start_byte != position:
            return False
        position = piece.end_byte
    return position == size
