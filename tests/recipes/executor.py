"""Bytes that recipes make, by way of the executor of a job."""

import hashlib
from collections.abc import Iterator, Sequence

from sharding.core.protocols import ShardSink, ShardWriter, Source
from sharding.core.recipe import Recipe
from sharding.core.values import Shard, ShardRecord, Tensor
from sharding.recipes.stored import Stored
from sharding.transfer.lanes import Done
from sharding.transfer.stream import move_shards, only_tensors
from tests.fuzz.targets import Memory

FILE = "pytorch_model.bin"
"""What the memory source calls its only file."""


class CollectingWriter(ShardWriter):
    """A shard in memory."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: bytes | memoryview) -> None:
        self.data += data

    def finish(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


class CollectingSink(ShardSink):
    """A sink in memory."""

    shards_at_once = 2

    def __init__(self) -> None:
        self.writers: dict[str, CollectingWriter] = {}

    def open_shard(self, file: str) -> CollectingWriter:
        return self.writers.setdefault(file, CollectingWriter())


class ShortChunks(Memory):
    """A source that notes what is read of it, and gives it in chunks of `chunk` bytes."""

    def __init__(self, data: bytes, chunk: int = 13, batch_bytes: int = 1 << 20) -> None:
        super().__init__(data)
        self.chunk, self.batch_bytes = chunk, batch_bytes
        self.noted: list[tuple[int, int]] = []

    def read(self, file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        self.noted.append((start_byte, end_byte))
        for at in range(start_byte, end_byte, self.chunk):
            yield from super().read(file, at, min(at + self.chunk, end_byte))


def tensor_of(recipe: Recipe, dtype: str = "U8", name: str = "w") -> Tensor:
    return Tensor(name, dtype, (), recipe)


def shard_of(tensors: Sequence[Tensor], file: str = "out") -> Shard:
    return Shard(file, tuple(tensors), sum(tensor.bytes for tensor in tensors))


def moved(
    shards: Sequence[Shard], *sources: Source, may_overflow: bool = True
) -> tuple[dict[str, bytes], dict[str, ShardRecord]]:
    """The bytes of shards without headers, and their records, by file."""
    sink = CollectingSink()
    events = move_shards("transfer", shards, only_tensors, sources, sink, may_overflow=may_overflow)
    records = {event.result.file: event.result for event in events if isinstance(event, Done)}
    return {file: bytes(writer.data) for file, writer in sink.writers.items()}, records


def outcome(
    tensors: Sequence[Tensor], *sources: Source, may_overflow: bool = True
) -> tuple[dict[str, bytes], ShardRecord]:
    """The bytes of `tensors`, made one after another as one shard, by name; and its record."""
    files, records = moved([shard_of(tensors)], *sources, may_overflow=may_overflow)
    data, at = dict[str, bytes](), 0
    for tensor in tensors:
        data[tensor.name] = files["out"][at : at + tensor.bytes]
        at += tensor.bytes
    assert at == len(files["out"])
    return data, records["out"]


def bytes_of(recipe: Recipe, *sources: Source) -> bytes:
    data, _ = outcome([tensor_of(recipe)], *sources)
    return data["w"]


def whole(data: bytes) -> Stored:
    """All of the only file of a memory source."""
    return Stored(0, FILE, 0, len(data))
