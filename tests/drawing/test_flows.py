"""Ribbons between the strips: the bytes that go from each file of today to each file of the copy, and their edges."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharding.core.options import Options
from sharding.drawing.map_svg import flows_of
from sharding.drawing.model_map import map_of_copy, map_of_plan
from sharding.planning.plan import plan_shards
from tests.drawing.test_model_map import checkpoint, layers, planned
from tests.tensors import stored_tensor


@given(sizes=st.lists(st.integers(20, 200), min_size=1, max_size=24), files=st.integers(1, 4), dealt=st.booleans())
def test_flows_hold_every_byte_once_and_fill_the_files_that_they_join(
    sizes: list[int], files: int, dealt: bool
) -> None:
    source = checkpoint({f"h.{n // 3}.{n}.weight": size for n, size in enumerate(sizes)}, files, dealt)
    plan, drawn = planned(source, 300)
    was, goes = {tensor.name: tensor.file for tensor in source.tensors}, plan.weight_map
    wanted: Counter[tuple[str, str]] = Counter()
    for tensor in source.tensors:
        wanted[was[tensor.name], goes[tensor.name]] += tensor.bytes
    flows = flows_of(drawn)
    names = [(drawn.today[flow.today_column].names[0], drawn.after[flow.column].names[0]) for flow in flows]
    assert dict(zip(names, (flow.bytes for flow in flows), strict=True)) == wanted
    assert [flow.today_bytes for flow in flows] == [flow.bytes for flow in flows]
    for number, column in enumerate(drawn.after):
        edges = [(flow.x, flow.width) for flow in flows if flow.column == number]
        assert edges[0][0] == pytest.approx(column.x)
        assert sum(width for _, width in edges) == pytest.approx(column.width)
        assert all(x + width == pytest.approx(after) for (x, width), (after, _) in pairwise(edges))
    for number, column in enumerate(drawn.today):
        edges = [(flow.today_x, flow.today_width) for flow in flows if flow.today_column == number]
        assert sum(width for _, width in edges) == pytest.approx(column.width)
        assert all(x + width == pytest.approx(after) for (x, width), (after, _) in pairwise(edges))


def test_a_cast_halves_what_arrives_and_not_what_leaves() -> None:
    source = checkpoint({"h.0.weight": 400, "h.1.weight": 400})
    halves = [stored_tensor(f"h.{n}.weight", "U8", (200,), "f", 200 * n, 200 * n + 200) for n in range(2)]
    first, second = flows_of(map_of_plan(source, plan_shards(halves, Options(200))))
    assert (first.today_bytes, first.bytes, second.today_bytes, second.bytes) == (400, 200, 400, 200)
    assert first.today_width == second.today_width == 500


def test_without_a_known_source_nothing_flows() -> None:
    assert flows_of(map_of_copy(checkpoint(layers(3)), None)) == ()
