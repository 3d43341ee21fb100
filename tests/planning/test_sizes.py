"""Sizes are suggested that keep their promise: no file above the limit, and a reason for each."""

from hypothesis import given
from hypothesis import strategies as st

from sharding.core.options import SINGLE_FILE, Options
from sharding.core.text import parse_bytes
from sharding.planning.plan import gathered, plan_shards
from sharding.planning.sizes import colab_size, size_stops, usual_size
from tests.planning.tensors import tensor

TOTALS = st.integers(1, 2_000_000_000_000)


def bytes_of(size: str) -> float:
    return float("inf") if size == SINGLE_FILE else parse_bytes(size)


@given(TOTALS, st.data())
def test_no_size_is_below_the_largest_tensor(total: int, data: st.DataObject) -> None:
    largest = data.draw(st.integers(1, total))
    stops = size_stops(total, largest)
    assert stops
    for size in (usual_size(total, largest), *(stop.size for stop in stops), colab_size(total, largest) or SINGLE_FILE):
        assert bytes_of(size) >= largest


@given(TOTALS)
def test_stops_ascend_and_each_has_a_reason(total: int) -> None:
    stops = size_stops(total)
    sizes = [bytes_of(stop.size) for stop in stops]
    assert sizes == sorted(set(sizes))
    assert all(stop.reason for stop in stops)
    assert stops[-1].size == SINGLE_FILE and stops[-1].stands_out


@given(st.integers(10_000, 2_000_000_000_000))
def test_one_file_is_not_offered_where_there_is_none(total: int) -> None:
    assert SINGLE_FILE not in [stop.size for stop in size_stops(total, single_file=False)]
    assert [stop.size for stop in size_stops(total, total, single_file=False)] == [SINGLE_FILE]


def test_the_tensors_above_the_limit_are_one_sentence() -> None:
    """A list of 242 warnings hides everything else."""
    tensors = [tensor(f"w{n}", size) for n, size in enumerate((100, 50, 1000, 2000, 50))]
    several = plan_shards(tensors, Options(200))
    assert [finding.code for finding in several.findings].count("oversized-tensor") == 2
    (shown,) = [finding for finding in gathered(several) if finding.code == "oversized-tensor"]
    assert "2 tensors are larger than your limit (200 B)" in shown.message and "2.0 kB" in shown.message
    assert "w2" not in shown.message
    one = plan_shards(tensors[:3], Options(200))
    assert gathered(one) == one.findings
