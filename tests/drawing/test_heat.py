"""The map of how much layers differ: what is drawn where, how strong, and that names stay text."""

import re
import xml.etree.ElementTree as ET

import pytest

from sharding.core.verification import NOT_FINITE, Difference
from sharding.drawing.heat import EQUAL, NO_NUMBERS, STRONGEST, distance_of, draw_heat, level_of, stacks_of

PARTS = ("self_attn.q_proj.weight", "mlp.down_proj.weight", "input_layernorm.weight")
OUTSIDE = ("model.embed_tokens.weight", "lm_head.weight")
NAMES = [*(f"model.layers.{n}.{part}" for n in range(12) for part in PARTS), *OUTSIDE]


def differing(name: str, cosine: float | None = 0.5) -> Difference:
    return Difference(name, 0.5, 0.25, cosine, 0.125)


def test_each_layer_is_a_column_in_natural_order_and_each_part_a_row() -> None:
    layers, outside = stacks_of(NAMES, [differing("model.layers.10.mlp.down_proj.weight")])
    assert (layers.name, layers.columns) == ("model.layers", tuple(map(str, range(12))))
    assert set(layers.rows) == set(PARTS)
    cells = {(part, column): cell.level for part, row in layers.rows.items() for column, cell in row.items()}
    assert cells.pop(("mlp.down_proj.weight", 10)) == STRONGEST
    assert len(cells) == 35 and set(cells.values()) == {EQUAL}
    assert (outside.name, set(outside.rows)) == ("", {*OUTSIDE})


def test_a_cell_says_by_how_much_its_tensor_differs() -> None:
    (layers, _) = stacks_of(NAMES, [differing("model.layers.3.mlp.down_proj.weight")])
    words = layers.rows["mlp.down_proj.weight"][3].words
    assert words == "model.layers.3.mlp.down_proj.weight: 1 − cosine 0.5, largest difference 0.5, 12.5% equal"
    assert layers.rows["mlp.down_proj.weight"][4].words == "model.layers.4.mlp.down_proj.weight: equal"


def test_the_worst_of_many_experts_counts() -> None:
    names = [f"layers.0.experts.{n}.up.weight" for n in range(64)]
    (stack,) = stacks_of(names, [differing(names[7], 0.999999), differing(names[9], 0.2)])
    assert list(stack.rows) == ["experts.*.up.weight"]
    cell = stack.rows["experts.*.up.weight"][0]
    assert cell.level == STRONGEST and cell.words.startswith(f"{names[9]} (2 of 64 differ; the worst)")


@pytest.mark.parametrize(
    ("cosine", "level"), [(1.0, 1), (1 - 1.4e-6, 1), (1 - 3.5e-4, 2), (0.99, 3), (0.5, 4), (-1.0, 4), (None, 4)]
)
def test_a_wider_angle_is_a_stronger_colour(cosine: float | None, level: int) -> None:
    assert level_of(differing("w", cosine)) == level


def test_equal_numbers_have_no_colour_and_numbers_that_are_not_finite_the_strongest() -> None:
    zeros = Difference("w", 0.0, 0.0, None, 1.0, "F32 in the first and F16 in the second")
    assert (level_of(zeros), distance_of(zeros)) == (EQUAL, 0.0)
    broken = Difference("w", 0.0, 0.0, 1.0, 0.5, f"4 numbers that differ are {NOT_FINITE}")
    assert level_of(broken) == STRONGEST


def test_what_has_no_numbers_is_not_coloured_as_if_it_had() -> None:
    gone = Difference("layers.0.w.weight", note="only in the first")
    (stack,) = stacks_of(["layers.1.w.weight"], [gone])
    assert {column: cell.level for column, cell in stack.rows["w.weight"].items()} == {0: NO_NUMBERS, 1: EQUAL}
    assert "only in the first" in stack.rows["w.weight"][0].words


def test_a_drawing_of_any_model_has_a_bounded_number_of_cells() -> None:
    names = [f"stack{s}.{n}.part{p}.weight" for s in range(8) for n in range(130) for p in range(30)]
    worst = "stack7.129.part29.weight"
    stacks = stacks_of(names, [differing(worst)])
    assert sum(len(row) for stack in stacks for row in stack.rows.values()) <= 6 * 28 * 128
    last = stacks[-1]
    assert (last.name, last.columns[-1]) == ("stack7", "128–129")
    assert last.rows["part29.weight"][len(last.columns) - 1].level == STRONGEST
    assert "3 other parts" in last.rows


def test_the_drawing_is_one_svg_that_stands_alone() -> None:
    svg = draw_heat(NAMES, [differing(NAMES[0])])
    root = ET.fromstring(svg)
    assert "http" not in re.sub(r'xmlns="[^"]*"', "", svg)
    title = next(part.text for part in root if part.tag.endswith("title"))
    assert title == f"By how much the layers differ: 1 tensor of {len(NAMES)}"
    rects = [part for part in root.iter() if part.tag.endswith("rect")]
    assert [rect.get("class") for rect in rects].count("h4") == 2  # a tensor, and the legend
    ends = [float(rect.get("x") or 0) + float(rect.get("width") or 0) for rect in rects]
    assert max(ends) <= float(root.get("width") or 0)


def test_nothing_that_differs_is_drawn_too() -> None:
    assert ET.fromstring(draw_heat([], [])).tag.endswith("svg")
