"""Every picture of a load is well-formed, and keeps its peak."""

import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from sharding.loading.costs import Moment
from sharding.loading.measure import thin
from sharding.report.comparison import draw_memory


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=1000), st.integers(1, 200))
def test_a_thinned_curve_keeps_its_peak_and_its_order(sizes: list[int], most: int) -> None:
    curve = [Moment(float(number), size, 0, size) for number, size in enumerate(sizes)]
    kept = thin(curve, most)
    assert len(kept) <= max(most, 1)
    assert max(moment.anon_bytes for moment in kept) == max(sizes)
    assert list(kept) == sorted(kept, key=lambda moment: moment.seconds)


_WIDTH, _HEIGHT = 430, 320
"""The size of a picture. A phone shows it whole, with letters of nine pixels or more."""


@given(st.lists(st.tuples(st.floats(0, 1e5), st.integers(0, 10**13)), max_size=50))
def test_every_picture_is_well_formed_and_stays_inside_its_frame(points: list[tuple[float, int]]) -> None:
    curve = [Moment(seconds, size, 0, size) for seconds, size in sorted(points)]
    root = ET.fromstring(draw_memory(curve, curve))
    drawn = list(root.iter("{http://www.w3.org/2000/svg}path"))
    words = [text for text in root.iter("{http://www.w3.org/2000/svg}text") if "text-anchor" not in text.attrib]
    # The title, what each line is, since when time counts, and what each colour is that there is.
    assert len(words) == (5 if points else 3)
    for text in words:
        size = float(text.attrib.get("font-size", "13"))
        assert float(text.attrib["x"]) + 0.55 * size * len(text.text or "") <= _WIDTH
    assert len(drawn) == (6 if points else 0)
    for path in drawn:
        numbers = [float(number) for number in path.attrib["d"].translate(str.maketrans("MLZ,", "    ")).split()]
        assert all(0 <= x <= _WIDTH for x in numbers[::2]) and all(0 <= y <= _HEIGHT for y in numbers[1::2])
