"""What a Hub has is read back while the rest is on its way; what a model saved is compared with the original."""

import hashlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch

from sharding import job
from sharding.checkpoint.read import read_checkpoint
from sharding.core.errors import SourceError
from sharding.core.events import Progress, ShardFinished
from sharding.core.limits import FETCHES_AT_ONCE
from sharding.core.meter import Meter
from sharding.core.options import Options
from sharding.core.protocols import Destination, Inputs
from sharding.core.values import ShardRecord
from sharding.core.verification import Evidence, Verification
from sharding.formats.file_formats import format_of
from sharding.storage.folder_source import FolderSource, open_folder
from sharding.transfer.stream import Prepared, only_tensors
from sharding.verify.digests import Reader
from sharding.verify.staged import compare_with_original, reading_back, verify_staged
from tests.conftest import Tensors, in_two_files, write_checkpoint
from tests.folders import result_of
from tests.tensors import plan_of

Moving = Generator[Progress | ShardFinished, None, dict[str, ShardRecord]]


class Arriving(FolderSource):
    """Shards in a folder. A read waits until its shard has come. Every read fails, or all bytes of a file are wrong."""

    def __init__(self, out: Path, files: Iterable[str], *, fails: bool = False, wrong: str = "") -> None:
        super().__init__("out", {file: out / file for file in files})
        hashes = {file.path: hashlib.sha256((out / file.path).read_bytes()).hexdigest() for file in self.files}
        self.files = tuple(replace(file, sha256=hashes[file.path]) for file in self.files)
        self.fails, self.wrong, self.tries = fails, wrong, 0
        self.come, self.is_read = {file: Event() for file in hashes}, {file: Event() for file in hashes}

    def read(self, file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        self.tries += 1
        assert self.come[file].wait(60)
        self.is_read[file].set()
        if self.fails:
            raise SourceError("It is not shown yet.", "Commit it.")
        chunks = super().read(file, start_byte, end_byte)
        return (bytes(byte ^ 1 for byte in chunk) for chunk in chunks) if file == self.wrong else chunks


class Case:
    """A copy that lies in a folder, and a job that is about to make it anew."""

    def __init__(self, folder: Path, is_stated: bool) -> None:
        self.source = open_folder(str(in_two_files(folder / "in")))
        if is_stated:
            hashes = {file.path: hashlib.sha256((folder / "in" / file.path).read_bytes()) for file in self.source.files}
            self.source.files = tuple(replace(file, sha256=hashes[file.path].hexdigest()) for file in self.source.files)
        *_, _ = job.shard(str(folder / "in"), str(folder / "out"), "60kB")
        checkpoint = read_checkpoint(self.source)
        self.plan, self.out = plan_of(checkpoint, Options("60kB")), folder / "out"
        self.prepared = Prepared((self.source,), checkpoint, self.plan)
        pieces = partial(format_of(self.plan).pieces, self.plan)
        self.records = result_of(Reader().digest_shards(self.plan.shards, pieces, [self.source]))
        self.staged = Arriving(self.out, self.records)
        for event in self.staged.come.values():
            event.set()

    def moving(self, arriving: Arriving | None) -> Moving:
        """Tell of the shards as they come. The last comes when the first was read."""
        yield Progress("transfer", 0, 1)
        first, *_, last = self.records
        for number, record in enumerate(self.records.values(), 1):
            if arriving and record.file == last:
                assert arriving.is_read[first].wait(60)
            if arriving:
                arriving.come[record.file].set()
            yield ShardFinished(record.file, record.bytes, record.sha256, number, len(self.records))
        return self.records

    def verified(self, arriving: Arriving | None) -> Verification:
        """Carry the job out, and verify it."""
        places = SimpleNamespace(open_staged=lambda files: self.staged)
        target, origin, reader = cast(Destination, places), Inputs({"model": self.source}), Reader()
        with ExitStack() as stack:
            moved = reading_back(self.moving(arriving), self.prepared, origin, arriving, stack)
            records, back = result_of(moved)
            proof = verify_staged(self.prepared, origin, records, back, target, Meter(), reader, {})
            return result_of(proof)


@pytest.fixture(params=[False, True], ids=["in its own order", "in the order of the source"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    return Case(tmp_path, request.param)


def test_a_result_is_read_once_and_begun_before_its_last_shard_has_come(case: Case) -> None:
    afresh = case.verified(None)
    headers = case.staged.bytes_read - case.plan.total_bytes
    assert afresh.identical and headers > 0
    arriving = Arriving(case.out, case.records)
    assert replace(case.verified(arriving), seconds=0) == replace(afresh, seconds=0)
    assert case.staged.bytes_read == case.plan.total_bytes + 2 * headers
    assert arriving.bytes_read == case.plan.total_bytes


def test_a_byte_that_is_wrong_when_it_is_read_meanwhile_is_found(case: Case) -> None:
    file = list(case.records)[-1]
    arriving = Arriving(case.out, case.records, wrong=file)
    assert {mismatch.problem for mismatch in case.verified(arriving).mismatches} >= {"its bytes differ"}


@pytest.mark.parametrize("why", ["it shows no file before the commit", "the commit has another file"])
def test_a_result_is_read_again_where_it_could_not_be_read_before_or_is_another_now(case: Case, why: str) -> None:
    arriving = Arriving(case.out, case.records, fails=why.startswith("it shows"))
    if not arriving.fails:
        arriving.files = (replace(arriving.files[0], xet_hash="0" * 64), *arriving.files[1:])
    assert case.verified(arriving).identical
    assert case.staged.bytes_read > case.plan.total_bytes
    assert not arriving.fails or arriving.tries <= FETCHES_AT_ONCE, "one failure is enough"


def test_a_job_that_ends_early_ends_what_it_moves_and_what_it_reads(case: Case) -> None:
    is_closed, arriving = Event(), Arriving(case.out, case.records)

    def moving() -> Moving:
        try:
            yield from case.moving(arriving)
        finally:
            is_closed.set()
        return {}

    with ExitStack() as stack:
        events = reading_back(moving(), case.prepared, Inputs({"model": case.source}), arriving, stack)
        next(events)
        events.close()
        assert is_closed.is_set()
    for event in arriving.come.values():
        event.set()
    assert not arriving.is_read[list(case.records)[-1]].wait(0.1)


# --- What was loaded and saved: only a name whose bytes are kept may be missing ------------------------------

WEIGHT, OTHER, HEAD = np.arange(60, dtype=np.float32), np.ones(60, np.float32), np.zeros(9, np.float32)
ORIGINAL = {"embed": WEIGHT, "tied": WEIGHT, "block": OTHER, "head": HEAD}
BEFORE = Verification(4, 756, 1.0, Evidence("folder"), ())


def compared(original: Path, saved: Path) -> Verification:
    """Compare what lies in `saved`, as a result, with `original`."""
    source = open_folder(str(saved))
    checkpoint = read_checkpoint(source)
    plan = plan_of(checkpoint, Options("1kB"))
    records = result_of(Reader().digest_shards(plan.shards, only_tensors, [source]))
    return result_of(compare_with_original(BEFORE, plan, records, Inputs({"model": open_folder(str(original))})))


def without(*names: str) -> Tensors:
    return {name: array for name, array in ORIGINAL.items() if name not in names}


CASES: dict[str, tuple[Tensors, dict[str, str]]] = {
    "nothing": (ORIGINAL, {}),
    "a tied name": (without("tied"), {}),
    "the other tied name": (without("embed"), {}),
    "a name whose bytes are nowhere else": (without("head"), {"head": "it is missing"}),
    "both names of the same bytes": (without("embed", "tied"), {"embed": "it is missing", "tied": "it is missing"}),
    "a tied name and another": (without("tied", "block"), {"block": "it is missing"}),
    "one under another name": (
        {**without("block"), "new": OTHER + 1},
        {"block": "it is missing", "new": "it is not in the original"},
    ),
    "the bytes of one": ({**ORIGINAL, "head": HEAD + 1}, {"head": "its bytes differ"}),
    "the shape of one": ({**ORIGINAL, "head": HEAD.reshape(3, 3)}, {"head": "it is F32 [3, 3] and should be F32 [9]"}),
}


@pytest.mark.parametrize("case", CASES)
def test_what_loading_and_saving_has_changed_is_named(tmp_path: Path, case: str) -> None:
    saved, wrong = CASES[case]
    original = write_checkpoint(tmp_path / "in", {"model.safetensors": ORIGINAL}, index=False)
    found = compared(original, write_checkpoint(tmp_path / "out", {"model.safetensors": saved}, index=False))
    assert {one.tensor: one.problem for one in found.mismatches} == wrong
    assert len(found.mismatches) == len(wrong) and found.identical is (not wrong)
    assert found.method == f"{BEFORE.method}; every tensor compared with the original's"


def test_an_original_that_is_no_safetensors_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    torch.save({"w": torch.ones(9)}, tmp_path / "in/pytorch_model.bin")
    (tmp_path / "in/config.json").write_text("{}")
    assert compared(tmp_path / "in", write_checkpoint(tmp_path / "out", {"model.safetensors": ORIGINAL})) == BEFORE
