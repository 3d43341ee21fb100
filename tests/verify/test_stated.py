"""Which files of a source are put together again for a proof, which results are read back, and what was read."""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from sharding.checkpoint.read import read_checkpoint
from sharding.core.protocols import Inputs
from sharding.core.values import BytesRead, Content, FileEntry
from sharding.recipes.stored import place_of
from sharding.storage.folder_source import FolderSource, open_folder
from sharding.transfer.noting_source import NotingSource
from sharding.verify.digests import Reader
from sharding.verify.stated import Proof, prove_reads, stated_files
from tests.conftest import in_two_files
from tests.folders import result_of
from tests.fuzz.targets import Memory

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> FolderSource:
    return open_folder(str(in_two_files(tmp_path_factory.mktemp("stated") / "in")))


@pytest.fixture(scope="module")
def checkpoint(source: FolderSource) -> Content:
    return read_checkpoint(source)


def stated(files: tuple[FileEntry, ...]) -> tuple[FileEntry, ...]:
    return tuple(replace(file, sha256=f"{number:064x}") for number, file in enumerate(files))


def renamed(checkpoint: Content, path: str, new: str) -> Content:
    files = (replace(file, path=new if file.path == path else file.path) for file in checkpoint.weight_files)
    places = ((tensor, place_of(tensor)) for tensor in checkpoint.tensors)
    tensors = (one._replace(recipe=place._replace(file=new) if place.file == path else place) for one, place in places)
    return replace(checkpoint, weight_files=tuple(files), tensors=tuple(tensors))


def test_all_files_are_put_together_again_where_each_is_stated(source: FolderSource, checkpoint: Content) -> None:
    files = stated(source.files)
    found = stated_files(files, checkpoint)
    assert [file.path for file in found] == [ONE, TWO] == [file.path for file in checkpoint.weight_files]
    assert found == [file for file in files if file.path in (ONE, TWO)], "with what is stated of them"
    empty = FileEntry("model-00003-of-00002.safetensors", 16, "0" * 64)  # a header, and no tensor
    more = replace(checkpoint, weight_files=(*checkpoint.weight_files, empty))
    assert stated_files((*files, empty), more) == []


@pytest.mark.parametrize("path", [ONE, TWO])
def test_none_is_put_together_again_where_one_has_no_hash_other_bytes_than_its_tensors_or_another_format(
    source: FolderSource, checkpoint: Content, path: str
) -> None:
    files = stated(source.files)

    def with_one(**change: Any) -> list[FileEntry]:
        return [replace(file, **change) if file.path == path else file for file in files]

    held = next(file for file in files if file.path == path)
    assert stated_files(source.files, checkpoint) == []
    assert stated_files((file for file in files if file != held), checkpoint) == []
    assert stated_files(with_one(sha256=None, git_sha1="0" * 40), checkpoint) == []
    for more in (1, -1):
        assert stated_files(with_one(bytes=held.bytes + more), checkpoint) == []
    middle = [tensor for tensor in checkpoint.tensors if tensor.file == path][2]
    holed = replace(checkpoint, tensors=tuple(tensor for tensor in checkpoint.tensors if tensor != middle))
    assert stated_files(files, holed) == []
    for name in ("pytorch_model.bin", "shard-00000-model-00001-of-00002.safetensors"):
        assert stated_files(with_one(path=name), renamed(checkpoint, path, name)) == []


# --- Whatever was read of a file is compared with what the file holds, each read by itself -------------------

DATA = bytes(range(256)) * 40
Pairs = list[tuple[int, int]]
RANGES = st.lists(st.tuples(st.integers(0, 9000), st.integers(1, 1200)), max_size=30)


def file_in(folder: Path) -> FolderSource:
    (folder / "w").write_bytes(DATA)
    return FolderSource("in", {"w": folder / "w"})


def read(start: int, end: int, data: bytes = DATA) -> BytesRead:
    return BytesRead("w", start, end, blake3(data[start:end]).hexdigest())


def wrong(folder: Path, reads: list[BytesRead], sha256: str = hashlib.sha256(DATA).hexdigest()) -> int:
    file = FileEntry("w", len(DATA), sha256)
    return len(result_of(prove_reads([file_in(folder)], [file], reads, Reader())))


def test_reads_are_right_that_hold_what_the_file_holds_and_one_wrong_among_them_is_found(tmp_path: Path) -> None:
    assert wrong(tmp_path, [read(0, 9), read(5, 9000), read(5, 9000), read(10_000, len(DATA)), read(7, 7)]) == 0
    assert wrong(tmp_path, []) == 0
    assert wrong(tmp_path, [], "0" * 64) == 1
    bad = read(100, 200, DATA[:150] + b"!" + DATA[151:])
    for reads in ([bad, read(100, 200)], [read(100, 200), bad], [read(0, 10_000), bad]):
        assert wrong(tmp_path, reads) == 1


def test_reads_that_no_record_of_a_shard_holds_are_compared_too(
    source: FolderSource, checkpoint: Content, tmp_path: Path
) -> None:
    paths = {name: Path(str(source.path(name))) for name in (ONE, TWO)}
    hashes = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in paths.items()}
    true = FolderSource("in", paths, stated=hashes)
    (tmp_path / ONE).write_bytes(bytes(byte ^ 1 for byte in paths[ONE].read_bytes()))
    for taken, mismatches in ((true, 0), (FolderSource("in", {ONE: tmp_path / ONE}), 1)):
        noted = NotingSource(taken)
        list(noted.read(ONE, 8, 40))
        proof = Proof(Inputs({"model": true}), checkpoint, [noted], [])
        assert len(result_of(proof.prove([], Reader()))) == mismatches


@given(RANGES)
def test_ranges_that_overlap_each_have_their_hash(tmp_path_factory: pytest.TempPathFactory, pairs: Pairs) -> None:
    reads = [read(start, min(start + size, len(DATA))) for start, size in pairs]
    assert wrong(tmp_path_factory.mktemp("overlap"), reads) == 0


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
