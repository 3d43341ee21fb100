"""Write the shards of a plan in one pass, two at a time: read the sources, follow the recipes, hash and write."""

import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from threading import Event, Lock
from typing import Any

from blake3 import blake3
from typing_extensions import override

from sharding.core.errors import OverflowRefused, Remedy
from sharding.core.events import Phase, Progress, ShardFinished
from sharding.core.limits import BATCH_BYTES, THREADS
from sharding.core.protocols import Destination, ShardSink, ShardWriter, Source
from sharding.core.values import BytesRead, Content, Piece, Plan, Shard, ShardRecord, TensorDigest
from sharding.formats.file_formats import format_of
from sharding.transfer.lanes import Done, Lanes
from sharding.transfer.making import Making
from sharding.transfer.noting_source import NotingSource


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a job transfers: the tensors of `plan`, made of `sources`.

    The last four fields are of the process that the classic engine runs first: whether all that it read from a Hub was
    compared with a hash, what it cost, and what it loaded, None if the headers of that cannot be read.
    """

    sources: tuple[Source, ...]
    checkpoint: Content
    plan: Plan
    is_stated: bool = False
    peak_anon_bytes: int = 0
    disk_bytes_written: int = 0
    original: Content | None = None

    @property
    def noted(self) -> tuple[NotingSource, ...]:
        """The sources that record their reads, because nothing else will show that these match the Hub's hashes."""
        return tuple(source for source in self.sources if isinstance(source, NotingSource))


PiecesOf = Callable[[Any], Iterable[Piece]]
"""What each shard consists of, in order: bytes as they are, and all of its tensors."""
Transfer = Generator[Progress | ShardFinished, None, dict[str, ShardRecord]]
Moving = Iterator[Progress | Done[ShardRecord]]


class _Forgotten(ShardWriter):
    """A shard that keeps only its SHA-256, or not even that."""

    def __init__(self, is_hashed: bool) -> None:
        self._sha256, self._is_hashed = hashlib.sha256(), is_hashed

    @override
    def write(self, data: bytes | memoryview) -> None:
        if self._is_hashed:
            self._sha256.update(data)

    @override
    def finish(self) -> str:
        return self._sha256.hexdigest()


class _Nowhere(ShardSink):
    """A sink that keeps nothing, for shards that are only read."""

    shards_at_once = THREADS
    bytes_uploaded = bytes_deduplicated = 0

    def __init__(self, is_hashed: bool) -> None:
        self._is_hashed = is_hashed

    @override
    def open_shard(self, file: str) -> ShardWriter:
        return _Forgotten(self._is_hashed)

    def lend(self) -> None:
        """Return None: another machine keeps nothing either."""


NOWHERE, UNHASHED = _Nowhere(True), _Nowhere(False)
"""The second gives no SHA-256 of shards, which takes most of the time of a reading."""
Target = Destination | _Nowhere
Move = Callable[[Phase, Sequence[Shard], PiecesOf, Sequence[Source], Target, bool], Moving]
"""What makes shards, and writes them to a target: `move_shards` on this machine, or a fleet."""


def transfer(prepared: Prepared, destination: Destination, kept: Mapping[str, ShardRecord], move: Move) -> Transfer:
    """Let `move` write every shard that is not in `kept`; yield an event for each, in order, and return all records."""
    plan = prepared.plan
    numbers = {shard.file: number for number, shard in enumerate(plan.shards, start=1)}
    for record in kept.values():
        yield ShardFinished(record.file, record.bytes, record.sha256, numbers[record.file], len(numbers), kept=True)
    records, reported = dict(kept), 0
    todo, pieces = [shard for shard in plan.shards if shard.file not in kept], partial(format_of(plan).pieces, plan)
    for event in move("transfer", todo, pieces, prepared.sources, destination, plan.options.allow_overflow):
        if not isinstance(event, Done):
            yield event
            continue
        records[event.result.file] = event.result
        # Events come in the order of the plan, whichever shard is finished first.
        while reported < len(todo) and (done := records.get(todo[reported].file)):
            reported += 1
            yield ShardFinished(done.file, done.bytes, done.sha256, numbers[done.file], len(numbers))
    return {shard.file: records[shard.file] for shard in plan.shards}


def only_tensors(shard: Shard) -> Iterable[Piece]:
    """Return the tensors of a shard alone, as the pieces of what is only read."""
    return shard.tensors


def move_shards(
    phase: Phase,
    shards: Sequence[Shard],
    pieces: PiecesOf,
    sources: Sequence[Source],
    sink: ShardSink,
    may_overflow: bool = True,
    ahead: bool = False,
) -> Moving:
    """Write the `pieces` of `shards` to `sink`; yield progress and records. `ahead` goes on while nobody asks.

    Raises SourceError, DestinationError, and OverflowRefused for a new infinity unless they `may_overflow`.
    """
    tensors = (tensor for shard in shards for tensor in shard.tensors)
    sink.expect(sources, (place for tensor in tensors if (place := tensor.recipe.place)))
    lanes = Lanes(phase, sum(shard.bytes for shard in shards), 1 if ahead else sink.shards_at_once, ahead=ahead)
    making = Making(lanes, shards, sources)
    noting = [source for source in sources if isinstance(source, NotingSource)]
    one_note = Lock() if noting else nullcontext()
    written, noted = ([Event() for _ in shards] for _ in range(2))
    in_work: set[ShardWriter] = set()

    def move(number: int, shard: Shard) -> ShardRecord:
        try:
            return write(number, shard)
        finally:  # if it failed, the next one must not wait for it
            written[number].set()
            noted[number].set()

    def write(number: int, shard: Shard) -> ShardRecord:
        writer = sink.open_shard(shard.file)
        in_work.add(writer)
        output = _Output(writer, shard)
        digests, overflowed = dict[str, str](), dict[str, int]()
        unchanged, unsure = list[str](), list[str]()
        made = making.made(shard)
        if (before := number - sink.writes_at_once) >= 0:
            written[before].wait()
        for piece in pieces(shard):
            if isinstance(piece, bytes):
                output.write(piece)
                continue
            tensor, feed = next(made)
            digest = blake3()
            # A shard that is only read may be a file of the source, put together from several files of the copy.
            file = shard.file if phase == "transfer" else tensor.file
            for data in feed.pieces(tensor.bytes):
                if feed.overflowed and not may_overflow:
                    continue  # the rest is counted for the refusal
                digest.update(data)
                output.write(data)
                lanes.count(len(data), file)
            if feed.overflowed and not may_overflow:
                message, hint = tensor.recipe.refusal(tensor.name, tensor.dtype, feed.overflowed)
                hint += " Or add --allow-overflow, and the report counts them."
                raise OverflowRefused(message, hint, Remedy("allow_overflow"))
            digests[tensor.name] = digest.hexdigest()
            if feed.overflowed:
                overflowed[tensor.name] = feed.overflowed
            unchanged += [tensor.name] * bool(feed.unchanged and tensor.bytes)
            unsure += [tensor.name] * feed.unsure
        output.flush()
        written[number].set()
        sha256 = writer.finish()
        if before >= 0:  # of two that are sent at once, the second may end first
            noted[before].wait()
        with one_note:  # every read so far is in this record, or in one that is noted already
            reads = tuple(read for source in noting for read in source.take())
            told = reads, overflowed, tuple(unchanged), tuple(unsure), writer.xet_hash, tuple(output.samples)
            record = ShardRecord(shard.file, output.bytes, sha256, digests, *told)
            sink.note(record)
        in_work.discard(writer)
        return record

    def stop() -> None:
        # Do not wait for a network that stalls: a read ends with its time-out, a write when it is aborted.
        making.stop()
        for writer in list(in_work):
            writer.abort()

    return lanes.run([partial(move, *numbered) for numbered in enumerate(shards)], stop)


def expected_digests(shards: Iterable[Shard], records: Mapping[str, ShardRecord]) -> dict[str, TensorDigest]:
    """Return the digests that `shards` must have, by name of the tensor, as taken while the source's bytes passed."""
    return {
        tensor.name: TensorDigest(tensor.dtype, tensor.shape, records[shard.file].tensor_blake3[tensor.name])
        for shard in shards
        for tensor in shard.tensors
    }


class _Output:
    """The output of one shard. It joins small pieces, because each write takes time, and hashes what is sampled."""

    def __init__(self, writer: ShardWriter, shard: Shard) -> None:
        self._writer, self._file = writer, shard.file
        self._held = bytearray()
        self.samples = list[BytesRead]()
        self._later, self._now = sorted(shard.sampled, reverse=True), list[tuple[int, int, Any]]()
        self.bytes = 0

    def write(self, data: bytes | memoryview) -> None:
        before, self.bytes = self.bytes, self.bytes + len(data)
        while self._later and self._later[-1][0] < self.bytes:
            self._now.append((*self._later.pop(), blake3()))
        for start, end, hash_ in self._now:
            hash_.update(memoryview(data)[max(start - before, 0) : end - before])
            if end <= self.bytes:
                self.samples.append(BytesRead(self._file, start, end, hash_.hexdigest()))
        self._now = [one for one in self._now if one[1] > self.bytes]
        if len(data) >= BATCH_BYTES // 8:
            self.flush()
            self._writer.write(data)
            return
        self._held += data
        if len(self._held) >= BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._held:
            self._writer.write(bytes(self._held))
            self._held.clear()
