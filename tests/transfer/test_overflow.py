"""Numbers that a cast makes infinite: each is counted once for every read of it, for its own tensor, or ends the job."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sharding.transfer.cast_source import CastSource

from sharding import job
from sharding.core.errors import OverflowRefused
from sharding.core.events import ShardFinished
from sharding.core.options import Options
from sharding.core.values import Shard, Tensor
from sharding.planning.cast import cast_tensors
from sharding.report.schema import Report, parse_report
from sharding.transfer.stream import digest_shards
from tests.conftest import write_checkpoint
from tests.folders import arrays, result_of
from tests.fuzz.targets import Memory
from tests.tensors import stored_tensor

LARGE, SMALL = 1e6, 1.5
FILE = "model.safetensors"


class Apart(Memory):
    """A source that would have near ranges read as one, and gives chunks of odd lengths."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data, {FILE: data})
        self.join_gap_bytes = 1 << 16

    def read(self, file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        for at in range(start_byte, end_byte, 1001):
            yield from super().read(file, at, min(at + 1001, end_byte))


def casting(tensors: dict[str, np.ndarray], *, allow: bool = True) -> tuple[CastSource, dict[str, Tensor]]:
    """What casts `tensors` to fp16, and where each is then."""
    stored, end = [], 0
    for name, array in tensors.items():
        stored.append(stored_tensor(name, "F32", array.shape, FILE, end, end + array.nbytes))
        end += array.nbytes
    after = cast_tensors(stored, "fp16", {})
    source = Apart(b"".join(array.tobytes() for array in tensors.values()))
    return CastSource(source, stored, after, allow_overflow=allow), {entry.name: entry for entry in after}


def numbers(count: int, *large: int) -> np.ndarray:
    array = np.full(count, SMALL, np.float32)
    array[list(large)] = LARGE
    return array


def read(reading: CastSource, entry: Tensor, first: int, last: int) -> bytes:
    """Read the elements `[first, last)` of a tensor."""
    return b"".join(reading.read(FILE, entry.start_byte + 2 * first, entry.start_byte + 2 * last))


def test_of_a_range_only_what_is_in_it_is_counted_wherever_it_begins() -> None:
    count = 300
    for cuts in ([0, 300], [0, 75, 200, 300], [0, 1, 63, 64, 65, 128, 299, 300], list(range(0, 301, 7)) + [300]):
        reading, places = casting({"a": numbers(count, *range(count)), "b": numbers(9)})
        for first, last in zip(cuts, cuts[1:], strict=False):
            assert read(reading, places["a"], first, last) == np.full(last - first, np.inf, np.float16).tobytes()
        assert reading.overflowed == {"a": count}, cuts
    reading, places = casting({"a": numbers(count, 63, 64, 200)})
    for first, last, found in ((0, 63, 0), (63, 64, 1), (65, 200, 0), (64, 201, 2), (201, 300, 0), (0, 300, 3)):
        before = reading.overflowed.get("a", 0)
        read(reading, places["a"], first, last)
        assert reading.overflowed.get("a", 0) - before == found, (first, last)


def test_a_read_over_several_tensors_counts_each_for_itself() -> None:
    tensors = {"a": numbers(70, 0, 69), "b": numbers(5), "c": numbers(130, 0, 1, 129)}
    reading, places = casting(tensors)
    list(reading.read(FILE, 0, places["c"].end_byte))
    assert reading.overflowed == {"a": 2, "c": 3}
    list(reading.read(FILE, places["a"].end_byte - 2, places["c"].start_byte + 2))
    assert reading.overflowed == {"a": 3, "c": 4}
    for special in (np.inf, -np.inf, np.nan):  # which are what they were
        odd = numbers(9)
        odd[3], odd[4] = special, -LARGE
        reading, places = casting({"a": odd})
        read(reading, places["a"], 0, 9)
        assert reading.overflowed == {"a": 1}


def test_what_lies_between_the_tensors_of_a_shard_is_not_counted_with_it() -> None:
    reading, places = casting({"a": numbers(20), "between": numbers(20, *range(20)), "c": numbers(20, 7)})
    outer = Shard("outer.safetensors", (places["a"], places["c"]), 80)
    inner = Shard("inner.safetensors", (places["between"],), 40)
    result_of(digest_shards([outer], lambda shard: b"", reading))
    assert reading.overflowed == {"c": 1}
    result_of(digest_shards([inner], lambda shard: b"", reading))
    assert reading.overflowed == {"between": 20, "c": 1}
    reading.count_overflow(["c", "a"])
    assert reading.overflowed == {"between": 20, "c": 2}


@pytest.mark.parametrize(("large", "count"), [([5], "1 finite number "), ([5, 200, 299], "3 finite numbers ")])
def test_a_refusal_says_how_many_the_whole_tensor_has(large: list[int], count: str) -> None:
    reading, places = casting({"a": numbers(300, 0), "b": numbers(300, *large)}, allow=False)
    assert len(read(reading, places["b"], 6, 200)) == 2 * 194  # none of it is too large
    for first, last in ((0, 6), (5, 6), (0, 300)):
        with pytest.raises(OverflowRefused, match=f"^b has {count}too large for float16"):
            read(reading, places["b"], first, last)
    thousand = casting({"a": numbers(1234, *range(1234))}, allow=False)
    with pytest.raises(OverflowRefused, match=r"^a has 1,234 finite numbers"):
        read(thousand[0], thousand[1]["a"], 1000, 1001)
    assert reading.overflowed == thousand[0].overflowed == {}


def test_what_an_earlier_run_has_made_infinite_is_counted_once_with_what_this_one_makes(tmp_path: Path) -> None:
    tensors = {f"layers.{n}.weight": numbers(1000, *range(n)) for n in range(1, 6)}
    source, out = write_checkpoint(tmp_path / "in", {FILE: tensors}, index=False), tmp_path / "out"
    (source / "config.json").unlink()
    options = Options("2100B", dtype="fp16", allow_overflow=True)
    wanted = {f"layers.{n}.weight": n for n in range(1, 6)}
    events = job.shard(str(source), str(out), options)
    for event in events:
        if isinstance(event, ShardFinished) and event.number == 2:
            events.close()
    *before, report = job.shard(str(source), str(out), options)
    kept = [event.kept for event in before if isinstance(event, ShardFinished)]
    assert len(kept) == 5 and 2 <= sum(kept) < 5, "some of an earlier run, some of this one"
    assert isinstance(report, Report) and report.overflowed == wanted
    assert parse_report((out / "sharding_report.json").read_text()).overflowed == wanted
    assert re.search(r"15 numbers were too large", (out / "README.md").read_text())
    assert {name: int(np.isinf(array).sum()) for name, array in arrays(out).items()} == wanted
