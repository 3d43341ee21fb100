"""What a Hub has is read back while the rest is on its way; what a model saved is compared with the original."""

from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from sharding import job
from sharding.checkpoint.read import read_checkpoint
from sharding.core.errors import SourceError
from sharding.core.events import Progress, ShardFinished
from sharding.core.limits import XET_LEAST_BYTES
from sharding.core.options import Options
from sharding.core.protocols import Destination, Inputs
from sharding.core.values import Plan, ShardRecord
from sharding.core.verification import Evidence, Verification
from sharding.storage.folder_source import FolderSource, open_folder
from sharding.transfer.stream import only_tensors
from sharding.verify.digests import ThisMachine
from sharding.verify.staged import ReadBack, compare_with_original, read_back_meanwhile
from tests.conftest import Tensors, write_checkpoint
from tests.folders import all_of, result_of
from tests.tensors import plan_of

ELEMENTS = XET_LEAST_BYTES // 4

Moving = Generator[Progress | ShardFinished, None, dict[str, ShardRecord]]
Copy = tuple[Plan, Path, list[ShardFinished]]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """A plan, where it was carried out, and what was told of that."""
    folder, size = tmp_path_factory.mktemp("copy"), f"{ELEMENTS * 8 + 1000}B"
    tensors = {f"layers.{n}.weight": np.full(ELEMENTS, n, np.float32) for n in range(6)} | {"a.bias": np.ones(3)}
    source = write_checkpoint(folder / "in", {"model.safetensors": tensors}, index=False)
    events = job.shard(str(source), str(folder / "out"), size)
    told = [event for event in events if isinstance(event, ShardFinished)]
    assert len(told) > 2
    return job.plan(str(source), size)[1], folder / "out", told


class Store(FolderSource):
    """A folder that says when it is read, and fails when it is told to."""

    def __init__(self, out: Path, file: str, *, fails: bool = False) -> None:
        super().__init__("out", {file: out / file})
        self.fails = fails
        self.is_read = Event()

    def read(self, file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        self.is_read.set()
        if self.fails:
            raise SourceError("It is not shown yet.", "Commit it.")
        return super().read(file, start_byte, end_byte)


def moved(told: list[ShardFinished], stores: dict[str, Store]) -> Moving:
    """Tell of shards, and end once the first was read, if any can be."""
    yield from told
    if stores:
        assert stores[told[0].file].is_read.wait(10)
    return {}


def reading_back(moving: Moving, plan: Plan, stores: dict[str, Store]) -> Any:
    """Read back from as much of a destination as is asked for."""
    return read_back_meanwhile(moving, plan, cast(Destination, SimpleNamespace(open_finished=stores.get)))


def outcome(moving: Moving, plan: Plan, stores: dict[str, Store]) -> tuple[list[Any], ReadBack]:
    events, (_, read) = all_of(reading_back(moving, plan, stores))
    return events, read


def test_what_is_read_back_are_the_tensors_where_they_lie(copy: Copy) -> None:
    plan, out, told = copy
    stores = {event.file: Store(out, event.file) for event in told}

    def moving() -> Moving:
        yield from told
        for store in stores.values():
            assert store.is_read.wait(10)
        return {}

    events, read = outcome(moving(), plan, stores)
    assert events == told
    assert {told[0].file} <= {tensor.file for tensor in read}  # when the last is begun, all others are done
    for tensor, digest in read.items():
        again = result_of(ThisMachine().digest_tensors(stores[tensor.file], [tensor]))
        assert again == {tensor.name: digest}


def test_where_nothing_can_be_read_yet_one_try_is_enough(copy: Copy) -> None:
    plan, out, told = copy
    stores = {event.file: Store(out, event.file, fails=True) for event in told}
    events, read = outcome(moved(told, stores), plan, stores)
    assert (events, read) == (told, {})
    assert sum(store.is_read.is_set() for store in stores.values()) == 1


def test_kept_shards_and_those_of_a_folder_are_left_for_the_end(copy: Copy) -> None:
    plan, out, told = copy
    stores = {event.file: Store(out, event.file) for event in told}
    kept = [replace(event, kept=True) for event in told]
    assert outcome(moved(kept, {}), plan, stores) == (kept, {})
    assert outcome(moved(told, {}), plan, {}) == (told, {})


def test_a_job_that_ends_early_ends_what_it_moves(copy: Copy) -> None:
    plan, _, told = copy
    is_closed = Event()

    def moving() -> Moving:
        try:
            yield from told
        finally:
            is_closed.set()
        return {}

    reading = reading_back(moving(), plan, {})
    next(reading)
    reading.close()
    assert is_closed.is_set()


# --- What was loaded and saved: only a name whose bytes are kept may be missing ------------------------------

WEIGHT, OTHER, HEAD = np.arange(60, dtype=np.float32), np.ones(60, np.float32), np.zeros(9, np.float32)
ORIGINAL = {"embed": WEIGHT, "tied": WEIGHT, "block": OTHER, "head": HEAD}
BEFORE = Verification(4, 756, 1.0, Evidence("folder"), ())


def compared(original: Path, saved: Path) -> Verification:
    """Compare what lies in `saved`, as a result, with `original`."""
    source = open_folder(str(saved))
    checkpoint = read_checkpoint(source)
    plan = plan_of(checkpoint, Options("1kB"))
    records = result_of(ThisMachine().digest_shards(plan.shards, only_tensors, [source]))
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
