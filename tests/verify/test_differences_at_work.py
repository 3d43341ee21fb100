"""How two checkpoints are compared by their numbers: progress, threads, errors, and the limit of what is read."""

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sharding import job
from sharding.core.errors import SourceError
from sharding.core.events import Progress
from sharding.core.verification import Difference
from sharding.storage.folder_source import FolderSource
from sharding.transfer.lanes import LAST_SECONDS
from sharding.transfer.making import Room
from sharding.verify import differences
from sharding.verify.differences import Numbers, compare_numbers
from tests.conftest import write_checkpoint
from tests.folders import result_of
from tests.fuzz.targets import Memory
from tests.tensors import stored_tensor


def ours() -> set[threading.Thread]:
    return {one for one in threading.enumerate() if one.name.startswith(("lane", "fetch", "range", "reader"))}


@contextmanager
def all_threads_end() -> Iterator[None]:
    before = ours()
    yield
    for thread in ours() - before:
        thread.join(LAST_SECONDS)
    assert ours() <= before


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two checkpoints of 8 MB in eight tensors, of which each differs."""
    folder = tmp_path_factory.mktemp("large")
    one = {f"layers.{n}.weight": np.full(250_000, n, np.float32) for n in range(8)}

    two = {name: tensor + 1 for name, tensor in one.items()}
    first = write_checkpoint(folder / "one", {"model.safetensors": one}, False)
    return first, write_checkpoint(folder / "two", {"model.safetensors": two}, False)


def test_progress_counts_each_byte_of_both_once(large: tuple[Path, Path]) -> None:
    steps = [one for one in job.verify(*map(str, large), numeric=True) if isinstance(one, Progress)]
    last = [step for step in steps if step.phase == "numbers"][-1]
    assert (last.bytes_done, last.bytes_total) == (16_000_000, 16_000_000)
    assert last.file == "model.safetensors"


def test_all_threads_have_ended_when_somebody_stops_it(
    large: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    started, usual = threading.Event(), differences.Sums.add

    def slow(*given: Any) -> None:
        started.set()
        threading.Event().wait(0.05)
        usual(*given)

    monkeypatch.setattr(differences.Sums, "add", slow)
    monkeypatch.setattr(differences, "_ELEMENTS", 1000)
    monkeypatch.setattr("sharding.transfer.lanes.PROGRESS_SECONDS", 0.001)
    with all_threads_end():
        events: Generator[Any, None, None] = job.verify(*map(str, large), numeric=True)
        assert any(isinstance(event, Progress) and event.phase == "numbers" for event in events)
        assert started.wait(60)
        events.close()


@pytest.mark.parametrize("side", [0, 1])
def test_a_source_that_fails_in_the_middle_ends_it_with_its_error_and_all_threads(
    side: int, large: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, reads = FolderSource.read, []

    def failing(source: FolderSource, *given: Any) -> Iterator[bytes]:
        if source.folder == large[side].resolve():
            reads.append(given)
            if len(reads) > 2:
                raise SourceError("It is gone.", "Bring it back.")
        return usual(source, *given)

    def begun(*given: Any) -> Any:
        monkeypatch.setattr(FolderSource, "read", failing)
        return compare_numbers(*given)

    monkeypatch.setattr("sharding.verify.verify.compare_numbers", begun)
    with all_threads_end(), pytest.raises(SourceError, match="It is gone"):
        list(job.verify(*map(str, large), numeric=True))
    assert len(reads) > 2


def in_memory(value: int, tensors: int, size: int, batch: int) -> tuple[Numbers, Memory]:
    source = Memory(b"", {"in": bytes([value]) * tensors * size})
    source.batch_bytes, source.ranges_at_once = batch, 4
    entries = [stored_tensor(f"t{n}", "U8", (size,), "in", n * size, (n + 1) * size) for n in range(tensors)]
    return Numbers({entry.name: entry for entry in entries}, [source]), source


def test_both_sides_together_have_one_limit_for_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, rooms = list[int](), list[Room]()

    class Watched(Room):
        def __init__(self, most_bytes: int) -> None:
            super().__init__(most_bytes)
            rooms.append(self)

        def take(self, count: int, *, is_due: bool) -> bool:
            is_taken = super().take(count, is_due=is_due)
            taken.append(self._free)
            return is_taken

    monkeypatch.setattr(differences, "Room", Watched)
    monkeypatch.setattr(differences, "COMPARED_BYTES", 256)
    monkeypatch.setattr("sharding.verify.digests.SPAN_BYTES", 2000)
    (one, _), (two, _) = in_memory(1, 8, 1000, 64), in_memory(3, 8, 1000, 64)
    found = result_of(compare_numbers(one.tensors, one, two))
    assert found == tuple(Difference(f"t{n}", 2.0, 2.0, pytest.approx(1.0), 0.0) for n in range(8))
    assert len(rooms) == 1 and -2 * 64 <= min(taken) < 256 - 64, "each side may have a batch beyond it"
    assert rooms[0]._free == 256


@pytest.mark.parametrize(("ranges", "most"), [(4, 2), (1, 4)])
def test_from_a_network_one_pair_is_compared_at_a_time(ranges: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sharding.verify.digests.SPAN_BYTES", 2000)
    (one, first), (two, second) = in_memory(1, 8, 1000, 64), in_memory(3, 8, 1000, 64)
    lock, under_way, seen = threading.Lock(), [0], [0]
    for source in (first, second):
        source.ranges_at_once = ranges
        usual = source.read

        def read(*given: Any, usual: Callable[..., Iterator[bytes]] = usual) -> Iterator[bytes]:
            with lock:
                under_way[0] += 1
                seen[0] = max(seen[0], under_way[0])
            threading.Event().wait(0.001)
            with lock:
                under_way[0] -= 1
            return usual(*given)

        monkeypatch.setattr(source, "read", read)
    assert len(result_of(compare_numbers(one.tensors, one, two))) == 8
    assert 1 <= seen[0] <= most


def test_small_tensors_share_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    (one, first), (two, second) = in_memory(1, 1000, 100, 1 << 20), in_memory(3, 1000, 100, 1 << 20)
    names = [f"t{n}" for n in reversed(range(1000))]
    reads: list[Any] = []
    for source in (first, second):
        usual = source.read
        monkeypatch.setattr(source, "read", lambda *given, usual=usual: reads.append(given) or usual(*given))
    found = result_of(compare_numbers(names, one, two))
    assert [difference.tensor for difference in found] == names
    assert len(reads) == 2
