"""Pieces of a tensor fill it exactly, or it is said which does not."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sharding.core.errors import SourceError
from sharding.formats.rank_boxes import SavedBoxes, assemble
from sharding.recipes.laid import Box, Laid, strides_of
from sharding.recipes.stored import Stored
from tests.promises import promise


@st.composite
def cuts(draw: st.DrawFn) -> SavedBoxes:
    """A tensor cut along any of its dimensions, unevenly, its pieces in any order and in files of any number."""
    shape = tuple(draw(st.lists(st.integers(1, 9), max_size=3)))
    boxes = [Box("f0", 0, (), (), ())]
    for length in shape:
        inner = draw(st.sets(st.integers(1, length - 1), max_size=3)) if length > 1 else set()
        marks = [0, *sorted(inner), length]
        boxes = [
            replace(box, offsets=(*box.offsets, start), shape=(*box.shape, end - start))
            for box in boxes
            for start, end in zip(marks, marks[1:], strict=False)
        ]
    boxes = [replace(box, file=f"f{n}", strides=strides_of(box.shape)) for n, box in enumerate(boxes)]
    return SavedBoxes("w", "F32", draw(st.sampled_from([shape, None])), tuple(draw(st.permutations(boxes))))


def put_together(saved: SavedBoxes) -> tuple[int, ...]:
    (tensor,) = assemble([saved])
    return tensor.shape


@given(saved=cuts())
def test_pieces_cut_along_any_dimension_are_a_tensor(saved: SavedBoxes) -> None:
    (tensor,) = assemble([saved])
    assert saved.shape in (None, tensor.shape)
    assert tensor.bytes == 4 * tensor.parameters
    if isinstance(tensor.recipe, Laid):
        assert sorted(tensor.recipe.boxes, key=str) == sorted(saved.boxes, key=str)
    else:
        (piece,) = saved.boxes
        assert tensor.recipe == Stored(0, piece.file, piece.origin, piece.origin + tensor.bytes)


@given(saved=cuts(), at=st.integers(0, 100))
def test_a_missing_piece_is_refused_wherever_its_shape_is_known(saved: SavedBoxes, at: int) -> None:
    assume(len(saved.boxes) > 1)
    whole = SavedBoxes("w", "F32", put_together(saved), saved.boxes)
    lost = saved.boxes[at % len(saved.boxes)]
    with pytest.raises(SourceError, match="Pieces of w are missing"):
        put_together(replace(whole, boxes=tuple(box for box in saved.boxes if box is not lost)))


@given(saved=cuts(), at=st.integers(0, 100))
def test_a_piece_that_is_there_twice_is_refused(saved: SavedBoxes, at: int) -> None:
    again = replace(saved.boxes[at % len(saved.boxes)], file="f99")
    with pytest.raises(SourceError, match="The same elements of w are saved twice.*f99"):
        put_together(replace(saved, boxes=(*saved.boxes, again)))


def box(offsets: tuple[int, ...], shape: tuple[int, ...], file: str = "f0") -> Box:
    return Box(file, 0, offsets, shape, strides_of(shape))


@pytest.mark.parametrize(
    ("saved", "problem"),
    [
        (SavedBoxes("w", "F32", (4,), (box((0,), (3,)), box((2,), (2,), "f1"))), "saved twice, in f0, f1"),
        (SavedBoxes("w", "F32", (4,), (box((0,), (3,)), box((3,), (2,)))), "reaches beyond its shape"),
        (SavedBoxes("w", "F32", None, (box((0,), (3,)), box((4,), (2,)))), "are missing. Only 5 of its 6 elements"),
        (SavedBoxes("w", "F32", None, (box((0,), (3,)), box((3, 0), (1, 1)))), "different numbers of dimensions"),
        (SavedBoxes("w", "F32", (1 << 62, 4), (box((0, 0), (1, 4)),)), "are missing"),
        (SavedBoxes("w", "F4", None, (box((0,), (2,)), box((2,), (2,), "f1"))), "not in whole bytes"),
    ],
)
def test_what_is_no_tensor_is_refused(saved: SavedBoxes, problem: str) -> None:
    with pytest.raises(SourceError, match=problem):
        put_together(saved)


def test_a_tensor_of_nothing_is_one() -> None:
    assert put_together(SavedBoxes("w", "F32", (0, 4), (box((0, 0), (0, 4)),))) == (0, 4)
    assert put_together(SavedBoxes("w", "F32", (3,), (box((0,), (3,)), box((3,), (0,), "f1")))) == (3,)


@given(boxes=st.lists(st.tuples(*[st.integers(0, 4)] * 2, *[st.integers(1, 4)] * 2), min_size=1, max_size=12))
def test_pieces_are_refused_where_two_of_them_overlap_and_only_there(boxes: list[tuple[int, int, int, int]]) -> None:
    cells = [(top + y, left + x) for top, left, high, wide in boxes for y in range(high) for x in range(wide)]
    pieces = [box((top, left), (high, wide)) for top, left, high, wide in boxes]
    pieces += [box(cell, (1, 1)) for cell in itertools.product(range(8), repeat=2) if cell not in cells]
    if len(set(cells)) == len(cells):
        assert put_together(SavedBoxes("w", "U8", (8, 8), tuple(pieces))) == (8, 8)
        return
    with pytest.raises(SourceError, match="saved twice"):
        put_together(SavedBoxes("w", "U8", (8, 8), tuple(pieces)))


@promise("docs/formats.md#what-a-training-run-has-saved")
@pytest.mark.parametrize("turned", [1, -1])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_a_piece_inside_a_long_one_is_found_though_a_short_one_ends_between(
    turned: int, order: tuple[int, ...]
) -> None:
    pieces = [((0, 0), (9, 1)), ((1, 1), (1, 1)), ((5, 0), (1, 1)), *(((n, 1), (1, 1)) for n in (0, *range(2, 9)))]
    boxes = [box(at[::turned], size[::turned], f"f{min(n, 3)}") for n, (at, size) in enumerate(pieces)]
    with pytest.raises(SourceError, match="The same elements of w are saved twice, in f0, f2"):
        put_together(SavedBoxes("w", "U8", None, (*(boxes[n] for n in order), *boxes[3:])))


def test_pieces_that_no_cut_parts_are_a_tensor_too() -> None:
    around = (box((0, 0), (1, 2)), box((0, 2), (2, 1)), box((2, 1), (1, 2)), box((1, 0), (2, 1)))
    assert put_together(SavedBoxes("w", "U8", None, (*around, box((1, 1), (1, 1))))) == (3, 3)
    with pytest.raises(SourceError, match="saved twice"):
        put_together(SavedBoxes("w", "U8", None, (*around, box((1, 1), (1, 2)))))


def test_more_pieces_than_can_be_compared_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sharding.formats.rank_boxes.MAX_BOX_LOOKS", 100)
    rows = tuple(box((0, n), (2, 1)) for n in range(30))
    assert put_together(SavedBoxes("w", "U8", None, rows)) == (2, 30)  # next to one another: hardly any pairs
    piled = tuple(box((n, 0), (30, 1)) for n in range(30))
    with pytest.raises(SourceError, match="too many to check for overlaps|saved twice"):
        put_together(SavedBoxes("w", "U8", None, piled))
