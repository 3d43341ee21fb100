"""Whatever was read of a file is compared with what the file holds, each read by itself."""

import hashlib
from pathlib import Path

from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from sharding.core.values import BytesRead, FileEntry
from sharding.fleet.cutting import layers_of
from sharding.storage.folder_source import FolderSource
from sharding.transfer.noting_source import NotingSource
from sharding.verify.digests import ThisMachine
from sharding.verify.source_reads import prove_reads
from tests.folders import result_of

DATA = bytes(range(256)) * 40
RANGES = st.lists(st.tuples(st.integers(0, 9000), st.integers(1, 1200)), max_size=30)


def source(folder: Path) -> FolderSource:
    (folder / "w").write_bytes(DATA)
    return FolderSource("in", {"w": folder / "w"})


def read(start: int, end: int, data: bytes = DATA) -> BytesRead:
    return BytesRead("w", start, end, blake3(data[start:end]).hexdigest())


def wrong(folder: Path, reads: list[BytesRead], sha256: str = hashlib.sha256(DATA).hexdigest()) -> int:
    file = FileEntry("w", len(DATA), sha256)
    return len(result_of(prove_reads(source(folder), [file], reads, ThisMachine())))


def test_reads_that_hold_what_the_file_holds_are_right(tmp_path: Path) -> None:
    assert wrong(tmp_path, [read(0, 9), read(5, 9000), read(5, 9000), read(10_000, len(DATA)), read(7, 7)]) == 0
    assert wrong(tmp_path, []) == 0


def test_a_file_of_another_hash_is_wrong(tmp_path: Path) -> None:
    assert wrong(tmp_path, [], "0" * 64) == 1


def test_one_wrong_read_among_right_ones_of_the_same_bytes_is_found(tmp_path: Path) -> None:
    bad = read(100, 200, DATA[:150] + b"!" + DATA[151:])
    for reads in ([bad, read(100, 200)], [read(100, 200), bad], [read(0, 10_000), bad]):
        assert wrong(tmp_path, reads) == 1


@given(RANGES)
def test_many_machines_hash_the_same_ranges_as_one(pairs: list[tuple[int, int]]) -> None:
    ranges = {(start, min(start + size, len(DATA))) for start, size in pairs}
    file = FileEntry("w", len(DATA))
    layers = list(layers_of(file, ranges))
    found = {(one.start_byte, one.end_byte) for shard in layers for one in shard.tensors}
    assert found >= ranges
    for shard in layers:
        ends = [one.end_byte for one in shard.tensors]
        assert all(one.start_byte >= end for one, end in zip(shard.tensors[1:], ends, strict=False)), "none overlap"
    first = layers[0].tensors
    assert b"".join(DATA[one.start_byte : one.end_byte] for one in first) == DATA, "the first is the whole file"


def test_what_is_read_is_noted_once_and_counted(tmp_path: Path) -> None:
    noted = NotingSource(source(tmp_path))
    for start, end in ((0, 100), (0, 100), (50, len(DATA))):
        assert b"".join(noted.read("w", start, end)) == DATA[start:end]
    assert (noted.requests, noted.bytes_read) == (3, 200 + len(DATA) - 50)
    assert set(noted.take()) == {read(0, 100), read(50, len(DATA))}
    assert noted.take() == ()
    next(chunks := noted.read("w", 0, 1000))
    chunks.close()  # type: ignore[attr-defined]
    assert noted.take() == (read(0, 1000),)
