"""Every byte of a proof is read once, in whatever pieces it comes, by two threads at a time; what fails ends it.

And a written file is opened once more, with safetensors.
"""

import hashlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Event, Lock
from typing import Any

import pytest
from blake3 import blake3

from sharding import job
from sharding.checkpoint.read import read_checkpoint
from sharding.core.errors import SourceError
from sharding.core.events import Progress
from sharding.core.options import Options
from sharding.core.protocols import Source
from sharding.core.values import BytesRead, Component, FileEntry, Plan, Shard, Tensor
from sharding.core.verification import Mismatch
from sharding.recipes.stored import place_of
from sharding.storage.folder_source import FolderSource, open_folder
from sharding.verify.digests import Reader, check_structure
from tests.conftest import in_two_files, random_tensors, write_checkpoint
from tests.folders import reshard, result_of
from tests.tensors import stored_tensor

DATA = {f"{name}.bin": bytes((7 * n + salt) % 251 for n in range(5000)) for salt, name in enumerate("abcd")}
ENDS = (3, 10, 10, 4000, 5000)
"""Where tensors end in each file: one is empty, some are smaller than a piece, one is larger than many."""
PIECES = (1, 7, 1000, 10_000)


class Pieces(FolderSource):
    """A folder whose bytes come in pieces of a size; it counts them, and fails where it is told to."""

    def __init__(self, folder: Path, size: int = 1000, broken: str = "") -> None:
        for name, data in DATA.items():
            (folder / name).write_bytes(data)
        super().__init__("in", {name: folder / name for name in DATA})
        self.size, self.broken, self.given = size, broken, 0
        self._counting = Lock()

    def read(self, file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        data = b"".join(super().read(file, start_byte, end_byte))
        for start in range(0, len(data), self.size):
            if file == self.broken and start:
                raise SourceError("The line is dead.", "Mend it.")
            piece = data[start : start + self.size]
            with self._counting:  # two threads read at a time
                self.given += len(piece)
            yield piece


def entries(file: str) -> list[Tensor]:
    spans = zip((0, *ENDS), ENDS, strict=False)
    return [stored_tensor(f"{file}/{n}", "U8", (b - a,), file, a, b) for n, (a, b) in enumerate(spans)]


TENSORS = [tensor for file in DATA for tensor in entries(file)]
FILES = [FileEntry(file, len(data)) for file, data in DATA.items()]
RANGES = [(0, 5000), (0, 1), (5, 2500), (999, 1001), (1000, 2000), (2499, 2500), (4000, 5000), (9, 9)]
SOME_RANGES = {file: [(0, 1), (5, 2500), (4000, 5000)] for file in DATA}
SHARDS = [Shard(file, tuple(entries(file)), 5000) for file in DATA]

Reading = Callable[[Source], Generator[Progress, None, Any]]
READINGS: dict[str, Reading] = {
    "whole files": lambda source: Reader().digest_files([source], FILES),
    "tensors": lambda source: Reader().digest_tensors([source], TENSORS),
    "shards": lambda source: Reader().digest_shards(SHARDS, lambda shard: (b"head", *shard.tensors), [source]),
    "ranges": lambda source: Reader().digest_files([source], FILES, SOME_RANGES),
}


def b3(data: bytes) -> str:
    return blake3(data).hexdigest()


@pytest.mark.parametrize("size", PIECES)
def test_tensors_have_their_digests_wherever_pieces_end(tmp_path: Path, size: int) -> None:
    source = Pieces(tmp_path, size)
    found, _ = result_of(READINGS["tensors"](source))
    assert list(found) == [tensor.name for tensor in TENSORS]
    for tensor in TENSORS:
        digest = found[tensor.name]
        assert (digest.dtype, digest.shape) == (tensor.dtype, tensor.shape)
        assert digest.blake3 == b3(DATA[tensor.file][place_of(tensor).start_byte : place_of(tensor).end_byte])
    assert source.given == 4 * 5000, "each byte is read once"


@pytest.mark.parametrize("reading", READINGS)
def test_progress_ends_at_every_byte_of_what_is_read(tmp_path: Path, reading: str) -> None:
    *_, last = READINGS[reading](Pieces(tmp_path))
    assert (last.bytes_done, last.bytes_total) == (4 * 5000, 4 * 5000)


@pytest.mark.parametrize("size", PIECES)
def test_whole_files_and_ranges_of_them_have_their_digests_wherever_pieces_end(tmp_path: Path, size: int) -> None:
    hashes = {file: hashlib.sha256(data).hexdigest() for file, data in DATA.items()}
    source = Pieces(tmp_path, size)
    assert {file: one.sha256 for file, one in result_of(READINGS["whole files"](source)).items()} == hashes
    assert source.given == 4 * 5000, "each file is read once"
    ranges = {"a.bin": RANGES[:-1], "b.bin": [(1, 2)], "c.bin": [], "d.bin": RANGES[:1]}
    found = result_of(Reader().digest_files([source], FILES, ranges))
    assert {file: whole.sha256 for file, whole in found.items()} == hashes
    for file, whole in found.items():
        assert {*whole.samples} == {BytesRead(file, *range_, b3(DATA[file][slice(*range_)])) for range_ in ranges[file]}
    assert source.given == 8 * 5000, "each file is read once, also for ranges that overlap"


@pytest.mark.parametrize("broken", DATA)
@pytest.mark.parametrize("reading", READINGS)
def test_bytes_that_cannot_be_had_end_the_reading(tmp_path: Path, reading: str, broken: str) -> None:
    with pytest.raises(SourceError, match="The line is dead"):
        result_of(READINGS[reading](Pieces(tmp_path, broken=broken)))


@pytest.mark.parametrize("harm", ["gone", "short", "other"])
def test_a_checkpoint_that_changes_while_two_are_compared_ends_the_comparison(tmp_path: Path, harm: str) -> None:
    one, other = in_two_files(tmp_path / "one"), in_two_files(tmp_path / "other")
    path = other / "model-00002-of-00002.safetensors"
    data = path.read_bytes()
    events = job.verify(str(one), str(other))
    next(events)
    path.unlink()
    if harm != "gone":
        path.write_bytes(data[:-1] if harm == "short" else data[:-1] + b"!")
    with pytest.raises(SourceError, match="model-00002-of-00002"):
        list(events)


class Crowd(Pieces):
    """A source that knows how many have read it at a time; every reader waits for a second one, and looks for more."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.most = self.reading = 0
        self.pairs, self.third, self.lock = Barrier(2, timeout=60), Event(), Lock()

    def read(self, file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        with self.lock:
            self.reading += 1
            self.most = max(self.most, self.reading)
        if self.reading > 2:
            self.third.set()
        self.pairs.wait()
        self.third.wait(0.02)
        try:
            yield from super().read(file, start_byte, end_byte)
        finally:
            with self.lock:
                self.reading -= 1


@pytest.mark.parametrize("reading", sorted({*READINGS} - {"tensors"}))  # so few bytes of tensors are one group
def test_two_files_are_read_at_a_time_and_no_more(tmp_path: Path, reading: str) -> None:
    source = Crowd(tmp_path)
    result_of(READINGS[reading](source))
    assert source.most == 2


# --- A written file is opened once more, with safetensors ---------------------------------------------------


def as_planned(path: Path, shard: Shard, kind: str = "pt") -> tuple[Mismatch, ...]:
    component = Component(metadata={"format": kind})
    return check_structure(path, Plan((shard,), (component,), shard.bytes, 1, Options(), ()), shard)


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, Shard]:
    folder = write_checkpoint(tmp_path / "unet", {"model.safetensors": random_tensors(3)}, index=False)
    tensors = read_checkpoint(open_folder(str(folder))).tensors
    return folder / "model.safetensors", Shard("model.safetensors", tensors, sum(tensor.bytes for tensor in tensors))


@pytest.mark.parametrize(
    "damage",
    [
        *(lambda data: data[:-1], lambda data: data + b"\0", lambda data: data[:7]),
        *(lambda data: b"\xff" * 8 + data[8:], lambda data: b""),
    ],
    ids=["short", "long", "no header", "false length", "gone"],
)
def test_a_damaged_file_cannot_be_opened(written: tuple[Path, Shard], damage: Callable[[bytes], bytes]) -> None:
    path, shard = written
    damaged = damage(path.read_bytes())
    path.write_bytes(damaged)
    if not damaged:
        path.unlink()
    (found,) = as_planned(path, shard)
    assert found.tensor == "model.safetensors"
    assert found.problem.startswith("safetensors cannot open model.safetensors: ")


def test_a_file_must_hold_what_was_planned_and_what_is_another_is_named(written: tuple[Path, Shard]) -> None:
    path, shard = written
    assert as_planned(path, shard) == ()
    first, second, *others = shard.tensors
    tensors = (first._replace(name="other"), second._replace(dtype="BOOL"), *others)
    found = as_planned(path, replace(shard, tensors=tensors), "np")
    assert [mismatch.tensor for mismatch in found] == ["other", second.name, first.name, "model.safetensors"]


def test_the_report_says_with_what_the_structure_was_checked(checkpoint: Path, tmp_path: Path) -> None:
    report = reshard(checkpoint, tmp_path / "out", "60kB")
    assert "structure checked by safetensors;" in report.verification.method
    assert "the Hub states" not in report.verification.method, "a folder states nothing"
