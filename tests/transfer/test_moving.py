"""Shards on their way: how many at a time, how much of them in memory, in which order they are told, and their end."""

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from threading import Barrier, Event, Lock

import pytest
from blake3 import blake3

from sharding.core.errors import DestinationError, SourceError
from sharding.core.protocols import ShardSink, ShardWriter, Source
from sharding.core.values import Piece, Shard, ShardRecord
from sharding.transfer.lanes import Done
from sharding.transfer.making import BATCHES_AHEAD
from sharding.transfer.noting_source import NotingSource
from sharding.transfer.stream import move_shards
from sharding.verify.digests import Reader
from tests.folders import result_of
from tests.fuzz.targets import Memory
from tests.promises import promise
from tests.tensors import stored_tensor

LONG = 60.0
"""Seconds for what comes at once, unless something is broken."""
MOMENT = 0.1
"""Seconds that something has to come that must not."""

HEADER = b"header"


class Writer(ShardWriter):
    """A shard that is kept in memory. Each of its deeds can be made to wait."""

    def __init__(self, sink: "Sink", file: str) -> None:
        self.sink, self.file, self.data = sink, file, b""

    def write(self, data: bytes) -> None:
        self.sink.on_write(self)
        self.data += data

    def finish(self) -> str:
        self.sink.on_finish(self)
        self.sink.leave(self)
        return hashlib.sha256(self.data).hexdigest()

    def abort(self) -> None:
        self.sink.aborted.append(self.file)


class Sink(ShardSink):
    """A sink in memory, which counts how many shards are open."""

    shards_at_once = 2

    def __init__(self, at_once: int = 2) -> None:
        self.shards_at_once = self.writes_at_once = at_once
        self.records: list[ShardRecord] = []
        self.written: dict[str, bytes] = {}
        self.aborted: list[str] = []
        self.open_now = self.most_open = 0
        self.lock = Lock()
        self.on_open: Callable[[str], object] = lambda file: None
        self.on_write: Callable[[Writer], object] = lambda writer: None
        self.on_finish: Callable[[Writer], object] = lambda writer: None

    def open_shard(self, file: str) -> Writer:
        with self.lock:
            self.open_now += 1
            self.most_open = max(self.most_open, self.open_now)
        self.on_open(file)
        return Writer(self, file)

    def leave(self, writer: Writer) -> None:
        with self.lock:
            self.open_now -= 1
            self.written[writer.file] = writer.data

    def note(self, record: ShardRecord) -> None:
        self.records.append(record)


@pytest.fixture
def each_piece_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces as small as those of these tests are written as they come."""
    monkeypatch.setattr("sharding.transfer.stream.BATCH_BYTES", 8)


def some_shards(count: int, size: int = 64) -> tuple[Memory, list[Shard]]:
    """A source of so many files, and shards with one of them each; the first tensor of each is empty."""
    files, shards = {f"in{n}": bytes([n]) * size for n in range(count)}, []
    for n, file in enumerate(files):
        empty = stored_tensor(f"e{n}", "U8", (0,), file, 0, 0)
        shards.append(Shard(f"out{n}", (empty, stored_tensor(f"t{n}", "U8", (size,), file, 0, size)), size))
    return Memory(b"", files), shards


def pieces_of(shard: Shard) -> Iterator[Piece]:
    yield HEADER
    yield from shard.tensors


def move(source: Source, shards: list[Shard], sink: Sink) -> dict[str, ShardRecord]:
    events = move_shards("transfer", shards, pieces_of, [source], sink)
    return {event.result.file: event.result for event in events if isinstance(event, Done)}


def test_a_shard_is_its_header_and_its_tensors_and_its_record_says_what_it_is() -> None:
    source, shards = some_shards(3)
    sink = Sink()
    records = move(source, shards, sink)
    for n, shard in enumerate(shards):
        data = bytes([n]) * 64
        assert sink.written[shard.file] == HEADER + data
        digests = {f"e{n}": blake3(b"").hexdigest(), f"t{n}": blake3(data).hexdigest()}
        sha256 = hashlib.sha256(HEADER + data).hexdigest()
        assert records[shard.file] == ShardRecord(shard.file, 64 + len(HEADER), sha256, digests)
    assert {record.file: record for record in sink.records} == records and len(sink.records) == 3
    assert result_of(Reader().digest_shards(shards, pieces_of, [source])) == records
    assert sink.aborted == []


def test_a_file_may_have_bytes_of_its_own_anywhere_between_its_tensors_and_they_count_as_its_own() -> None:
    (source, (shard,)), sink = some_shards(1), Sink()
    (empty, full), data = shard.tensors, bytes(64)
    events = move_shards("transfer", [shard], lambda _: (b"a", empty, b"b", b"c", full, b"d"), [source], sink)
    (record,) = [event.result for event in events if isinstance(event, Done)]
    assert sink.written == {"out0": b"abc" + data + b"d"}
    digests = {"e0": blake3(b"").hexdigest(), "t0": blake3(data).hexdigest()}
    assert record == ShardRecord("out0", 68, hashlib.sha256(b"abc" + data + b"d").hexdigest(), digests)


@pytest.mark.parametrize("at_once", [1, 3])
def test_as_many_shards_are_open_as_the_sink_takes(at_once: int) -> None:
    source, shards = some_shards(2 * at_once + 1)
    sink = Sink(at_once)
    together, too_many = Barrier(at_once), Event()
    begun = 0

    def on_open(file: str) -> None:
        nonlocal begun
        with sink.lock:
            begun += 1
            mine = begun
        if sink.open_now > at_once:
            too_many.set()
        if mine <= at_once:
            together.wait(LONG)
            assert not too_many.wait(MOMENT)

    sink.on_open = on_open
    assert len(move(source, shards, sink)) == len(shards)
    assert sink.most_open == at_once


def test_the_next_shard_is_written_while_the_one_before_is_finished_and_not_earlier(each_piece_alone: None) -> None:
    source, shards = some_shards(4)
    sink = Sink(2)
    sink.writes_at_once = 1
    begun, order = {shard.file: Event() for shard in shards}, list[str]()

    def on_write(writer: Writer) -> None:
        begun[writer.file].set()
        order.append(writer.file)

    def on_finish(writer: Writer) -> None:
        following = f"out{int(writer.file[3:]) + 1}"
        assert following not in begun or begun[following].wait(LONG)

    sink.on_write, sink.on_finish = on_write, on_finish
    assert len(move(source, shards, sink)) == len(shards)
    assert order == sorted(order) and set(order) == begun.keys()


def test_of_two_shards_that_are_sent_at_once_the_first_is_noted_first_also_if_it_ends_last() -> None:
    source, shards = some_shards(2)
    sink, second_ends = Sink(2), Event()
    sink.writes_at_once = 1

    def on_finish(writer: Writer) -> None:
        if writer.file == shards[1].file:
            second_ends.set()
        else:
            assert second_ends.wait(LONG)
            Event().wait(MOMENT)  # the second has time to be noted

    sink.on_finish = on_finish
    move(source, shards, sink)
    assert [record.file for record in sink.records] == [shard.file for shard in shards]


def test_no_shard_waits_for_one_that_could_not_be_opened() -> None:
    source, shards = some_shards(2)
    sink, opened = Sink(2), Event()
    sink.writes_at_once = 1

    def on_open(file: str) -> None:
        if file == shards[0].file:
            assert opened.wait(LONG)
            raise DestinationError("The login has ended.")
        opened.set()

    sink.on_open = on_open
    with pytest.raises(DestinationError, match="login has ended"):
        move(source, shards, sink)
    lanes = [thread for thread in threading.enumerate() if thread.name.startswith("lane")]
    for lane in lanes:
        lane.join(LONG)
    assert not any(lane.is_alive() for lane in lanes)


@pytest.mark.parametrize(
    ("count", "ranges_at_once", "ahead"),
    [(1, 1, BATCHES_AHEAD), (2, 1, 0), (2, 4, BATCHES_AHEAD), (1, 4, BATCHES_AHEAD)],
)
def test_of_each_shard_no_more_batches_are_in_memory_than_are_said(
    count: int, ranges_at_once: int, ahead: int, each_piece_alone: None
) -> None:
    source, shards = some_shards(count, 64 * 10)
    source.batch_bytes, source.ranges_at_once = 64, ranges_at_once
    read, sink = source.read, Sink()
    begun, written = Counter[str](), Counter[str]()
    full, too_many = {f"in{n}": Event() for n in range(count)}, Event()

    def counted(file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        assert end_byte - start_byte <= 64
        begun[file] += 1
        if begun[file] >= 1 + ahead:
            full[file].set()
        if begun[file] > written[file] + 1 + ahead:
            too_many.set()
        return read(file, start_byte, end_byte)

    def on_write(writer: Writer) -> None:
        file = writer.file.replace("out", "in")
        if not writer.data:  # the header, which comes before all batches
            return
        if len(writer.data) == len(HEADER):
            assert full[file].wait(LONG)
            assert not too_many.wait(MOMENT)
        written[file] += 1

    source.read = counted  # type: ignore[method-assign]
    sink.on_write = on_write
    move(source, shards, sink)
    assert not too_many.is_set()
    assert begun == {f"in{n}": 10 for n in range(count)} == written
    assert all(sink.written[f"out{n}"] == HEADER + bytes([n]) * 640 for n in range(count))


def read_ahead(source: Memory, shards: list[Shard], sink: Sink) -> dict[str, list[int]]:
    """How many bytes of each file are asked for and not yet written, whenever more is asked for."""
    read, lock = source.read, Lock()
    begun, written, ahead = Counter[str](), Counter[str](), dict[str, list[int]]()

    def counted(file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        with lock:
            begun[file] += end_byte - start_byte
            ahead.setdefault(file, []).append(begun.total() - written.total())
        return read(file, start_byte, end_byte)

    def on_write(writer: Writer) -> None:
        if writer.data:  # else it is the header
            with lock:
                written[writer.file] += 64

    source.read = counted  # type: ignore[method-assign]
    sink.on_write = on_write
    move(source, shards, sink)
    return ahead


@promise("README.md#what-you-can-rely-on")
@pytest.mark.parametrize("bound", [1, 2 * 64, 3 * 64])
def test_all_shards_together_have_so_much_fetched_and_not_written_and_each_a_batch_beyond_it(
    bound: int, each_piece_alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.transfer.making.FETCHED_BYTES", bound)
    monkeypatch.setattr("sharding.transfer.making.BATCHES_AHEAD", 100)
    width = 3
    source, shards = some_shards(6, 64 * 10)
    source.batch_bytes, source.ranges_at_once = 64, 4
    ahead = read_ahead(source, shards, sink := Sink(width))
    assert max(max(counts) for counts in ahead.values()) <= bound + width * 64
    assert all(sink.written[f"out{n}"] == HEADER + bytes([n]) * 640 for n in range(6))


@pytest.mark.parametrize(("bound", "fetched"), [(1, 64), (127, 64), (128, 128), (191, 128), (192, 192)])
def test_a_batch_is_fetched_ahead_only_where_all_of_it_has_room(
    bound: int, fetched: int, each_piece_alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.transfer.making.FETCHED_BYTES", bound)
    source, shards = some_shards(1, 64 * 10)
    source.batch_bytes = 64
    ahead = read_ahead(source, shards, Sink(1))
    assert max(ahead["in0"]) == fetched


def test_the_last_of_many_shards_is_read_ahead_as_the_first_one_is(
    each_piece_alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.transfer.making.FETCHED_BYTES", 4 * 64)
    source, shards = some_shards(12, 64 * 10)
    source.batch_bytes, source.ranges_at_once = 64, 4
    ahead = read_ahead(source, shards, Sink(1))
    assert {max(counts) for counts in ahead.values()} == {(1 + BATCHES_AHEAD) * 64}


def test_small_pieces_are_written_together_and_large_ones_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = 1 << 16
    monkeypatch.setattr("sharding.transfer.stream.BATCH_BYTES", batch)
    small, large = 100, batch // 8
    count = 2 * batch // small
    tensors, end = [], 0
    for n, size in enumerate([small] * count + [large, small]):
        tensors.append(stored_tensor(f"t{n}", "U8", (size,), "in", end, end + size))
        end += size
    data, sink, lengths = bytes(n % 251 for n in range(end)), Sink(), [0]
    sink.on_write = lambda writer: lengths.append(len(writer.data))
    move(Memory(b"", {"in": data}), [Shard("out", tuple(tensors), end)], sink)
    assert sink.written["out"] == HEADER + data
    writes = [after - before for before, after in zip(lengths, [*lengths[1:], len(HEADER) + end], strict=True)]
    assert len(writes) <= 6 and max(writes) < batch + large


def test_what_was_read_for_a_shard_is_noted_with_it_or_before_it() -> None:
    source, shards = some_shards(2)
    noted, sink = NotingSource(source), Sink()
    second_is_read, first_notes, second_notes = Event(), Event(), Event()
    first: list[str] = []
    known: set[str] = set()

    def on_finish(writer: Writer) -> None:
        with sink.lock:
            first.append(writer.file)
        if first[0] == writer.file:
            assert second_is_read.wait(LONG)
        else:
            second_is_read.set()
            assert first_notes.wait(LONG)

    def note(record: ShardRecord) -> None:
        if first[0] == record.file:
            first_notes.set()
            second_notes.wait(MOMENT)
        else:
            second_notes.set()
        reads = {read.file for read in record.reads}
        assert record.file.replace("out", "in") in known | reads, "a crash now would lose what this is made of"
        known.update(reads)
        Sink.note(sink, record)

    sink.on_finish = on_finish
    sink.note = note  # type: ignore[method-assign]
    records = move(noted, shards, sink)
    reads = [read for record in sink.records for read in record.reads]
    assert sorted((read.file, read.start_byte, read.end_byte) for read in reads) == [("in0", 0, 64), ("in1", 0, 64)]
    assert {record.file: record for record in sink.records} == records
    assert noted.take() == ()


@pytest.mark.parametrize("end", ["closed", "error of the source", "error of the sink"])
def test_who_writes_is_woken_at_the_end_and_what_is_finished_is_left_alone(
    end: str, each_piece_alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.transfer.lanes.LAST_SECONDS", LONG)
    source, shards = some_shards(4)
    sink = Sink(3)
    are_stuck, released, ended = Barrier(3), Event(), list[str]()
    is_told, all_are_stuck = Event(), Event()

    def on_write(writer: Writer) -> None:
        if writer.file == "out0" or not writer.data:
            return
        are_stuck.wait(LONG)
        all_are_stuck.set()
        if end != "closed" and writer.file == "out3":
            assert is_told.wait(LONG)
            raise SourceError("gone") if end == "error of the source" else DestinationError("full")
        assert released.wait(LONG)
        ended.append(writer.file)
        raise DestinationError("given up")

    def abort(writer: Writer) -> None:
        sink.aborted.append(writer.file)
        released.set()

    monkeypatch.setattr(Writer, "abort", abort)
    sink.on_write = on_write
    events = move_shards("transfer", shards, pieces_of, [source], sink)
    first = next(event for event in events if isinstance(event, Done))
    assert first.result.file == "out0"
    if end == "closed":
        next(events)  # by which the last one is begun
        assert all_are_stuck.wait(LONG)
        events.close()  # type: ignore[attr-defined]
    else:
        is_told.set()
        with pytest.raises((SourceError, DestinationError), match="gone|full"):
            list(events)
    assert "out0" not in sink.aborted and {"out1", "out2"} <= set(sink.aborted)
    assert {"out1", "out2"} <= set(ended)
    assert [record.file for record in sink.records] == ["out0"]
