"""What stands above and below the strips: components of a pipeline, what fits, and the numbers of files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharding.drawing.map_svg import components, file_numbers, position, stretches
from sharding.drawing.model_map import WIDTH, Column
from tests.drawing.test_model_map import checkpoint, layers, planned


def columns(*names: list[str]) -> list[Column]:
    wide = WIDTH / len(names)
    return [Column(held, 1, 100, number * wide, wide - 10) for number, held in enumerate(names)]


def test_components_are_named_after_their_folders_and_span_their_files() -> None:
    placed = components(columns(["text_encoder/a"], ["unet/a"], ["unet/b", "unet/c"], ["z"]))
    assert [(bracket.name, bracket.x, bracket.width) for bracket in placed] == [
        ("text_encoder", 0, 240),
        ("unet", 250, 490),
        ("top folder", 750, 240),
    ]
    assert components(columns(["a"], ["b"])) == components(columns(["unet/a"])) == ()


def test_files_are_numbered_in_their_own_folder() -> None:
    assert file_numbers(columns(["unet/a", "unet/b"], ["unet/c"], ["vae/d"], ["e"], ["f"])) == [1, 3, 0, 1, 2]
    assert file_numbers(columns(["a"])) == [0]


@given(sizes=st.lists(st.integers(20, 200), min_size=1, max_size=24), share=st.floats(0, 1))
def test_a_stretch_is_as_long_as_its_bytes_and_stays_in_the_strip(sizes: list[int], share: float) -> None:
    _, drawn = planned(checkpoint({f"h.{n}.weight": size for n, size in enumerate(sizes)}), 300)
    total = sum(sizes)
    cut = int(share * total)
    (x, width), (after, rest) = stretches(drawn.after, iter([(0, cut), (cut, total)]))
    assert x == 0 and after + rest == pytest.approx(WIDTH)
    assert x + width <= after + 1e-6
    files = [column for column in drawn.after if column.x + column.width <= x + width + 1e-6]
    assert sum(column.bytes for column in files) <= cut


def test_a_map_of_one_folder_starts_and_ends_at_its_edges() -> None:
    _, drawn = planned(checkpoint(layers(4)), 700)
    assert position(drawn.after, 0) == 0
    assert position(drawn.after, sum(column.bytes for column in drawn.after), ends=True) == pytest.approx(WIDTH)
