"""Whatever was read of a file is compared with what the file holds, each read by itself."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from sharding.core.values import BytesRead, FileEntry
from sharding.recipes.stored import place_of
from sharding.storage.folder_source import FolderSource
from sharding.transfer.noting_source import NotingSource
from sharding.verify.digests import ThisMachine, layers_of
from sharding.verify.stated import prove_reads
from tests.folders import result_of
from tests.fuzz.targets import Memory

DATA = bytes(range(256)) * 40
RANGES = st.lists(st.tuples(st.integers(0, 9000), st.integers(1, 1200)), max_size=30)


def source(folder: Path) -> FolderSource:
    (folder / "w").write_bytes(DATA)
    return FolderSource("in", {"w": folder / "w"})


def read(start: int, end: int, data: bytes = DATA) -> BytesRead:
    return BytesRead("w", start, end, blake3(data[start:end]).hexdigest())


def wrong(folder: Path, reads: list[BytesRead], sha256: str = hashlib.sha256(DATA).hexdigest()) -> int:
    file = FileEntry("w", len(DATA), sha256)
    return len(result_of(prove_reads([source(folder)], [file], reads, ThisMachine())))


def test_reads_are_right_that_hold_what_the_file_holds_and_one_wrong_among_them_is_found(tmp_path: Path) -> None:
    assert wrong(tmp_path, [read(0, 9), read(5, 9000), read(5, 9000), read(10_000, len(DATA)), read(7, 7)]) == 0
    assert wrong(tmp_path, []) == 0
    assert wrong(tmp_path, [], "0" * 64) == 1
    bad = read(100, 200, DATA[:150] + b"!" + DATA[151:])
    for reads in ([bad, read(100, 200)], [read(100, 200), bad], [read(0, 10_000), bad]):
        assert wrong(tmp_path, reads) == 1


@given(RANGES)
def test_many_machines_hash_the_same_ranges_as_one(pairs: list[tuple[int, int]]) -> None:
    ranges = {(start, min(start + size, len(DATA))) for start, size in pairs}
    file = FileEntry("w", len(DATA))
    layers = list(layers_of(file, ranges))
    places = [[place_of(tensor)[2:] for tensor in shard.tensors] for shard in layers]
    assert {place for layer in places for place in layer} >= ranges
    for layer in places:
        assert all(start >= end for (_, end), (start, _) in zip(layer, layer[1:], strict=False)), "none overlap"
    assert b"".join(DATA[start:end] for start, end in places[0]) == DATA, "the first is the whole file"


class Chunks(Memory):
    """A source that gives ten bytes at a time, and counts what came of it."""

    def read(self, file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        self.requests += 1
        for at in range(start_byte, end_byte, 10):
            self.bytes_read += min(10, end_byte - at)
            yield from super().read(file, at, min(at + 10, end_byte))


def test_what_is_read_is_noted_once_and_what_was_given_up_as_far_as_it_came() -> None:
    """What is read to prove that is not counted."""
    below = Chunks(b"", {"w": DATA, "v": DATA})
    noted = NotingSource(below)
    for _ in range(2):
        assert b"".join(noted.read("w", 0, 25)) == DATA[:25]
    given_up = noted.read("v", 100, 200)
    assert next(given_up) + next(given_up) == DATA[100:120]
    given_up.close()  # type: ignore[attr-defined]
    whole = noted.read("w", 5, 15)
    assert next(whole) == DATA[5:15]  # who has it all asks no further
    list(noted.read("w", 7, 7))
    list(below.read("w", 0, 5000))
    assert (noted.requests, noted.bytes_read) == (4, 25 + 25 + 20 + 10)
    assert (below.requests, below.bytes_read) == (6, 25 + 25 + 20 + 10 + 5000)
    of_v = read(100, 120)._replace(file="v")
    assert set(noted.take()) == {read(0, 25), of_v, read(5, 15)}
    list(whole)
    assert noted.take() == () and noted.requests == 4
    list(noted.read("w", 0, 25))  # again, after it was taken
    assert noted.take() == (read(0, 25),)


def test_a_source_that_breaks_is_noted_as_far_as_it_came() -> None:
    below = Chunks(DATA[:40], {"w": DATA[:40]})
    noted = NotingSource(below)
    with pytest.raises(AssertionError):
        list(noted.read("w", 30, 60))
    assert noted.take() == (read(30, 40),)
    assert (noted.requests, noted.bytes_read) == (1, 10)
