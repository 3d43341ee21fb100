"""Where the weights of a copy fit: the words, and the bytes that each device holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharding.planning.devices import PRESETS, Fit, parse_budgets, where_it_fits

GB = 10**9
SIZES = st.integers(1, 10**13)


def words(total: int, *stages: int) -> dict[str, str]:
    return {fit.place: fit.words for fit in where_it_fits(total, stages)}


def test_a_model_of_seven_billion_parameters_fits_a_t4_but_not_the_memory_beside_it() -> None:
    assert words(14_500_000_000) == {
        "CPU memory of free Colab": "too small: holds 12.0 GB of 14.5 GB",
        "T4": "fits, 500.0 MB to spare",
        "24 GB card": "fits, 8.5 GB to spare",
        "Two T4s": "fits, 7.8 GB to spare on the fullest",
    }
    assert words(141 * GB)["T4"] == "too small: holds 15.0 GB of 141.0 GB"
    assert words(141 * GB)["Two T4s"] == "too small: holds 30.0 GB of 141.0 GB"


def test_the_machines_of_a_pipeline_hold_its_stages_and_the_fullest_decides() -> None:
    *_, last = where_it_fits(40 * GB, (16 * GB, 12 * GB, 12 * GB))
    assert (last.place, last.words) == ("3 machines with a T4", "too small: holds 39.0 GB of 40.0 GB")
    assert list(last.spans) == [(0, 15 * GB), (16 * GB, 28 * GB), (28 * GB, 40 * GB)]
    assert words(28 * GB, 13 * GB, 15 * GB)["Two T4s"] == "fits, 0 B to spare on the fullest"


@pytest.mark.parametrize(("place", "preset"), [("T4", "colab-t4"), ("24 GB card", "24gb")])
def test_a_copy_fits_up_to_the_last_byte_of_the_presets_of_devices(place: str, preset: str) -> None:
    room = parse_budgets(PRESETS[preset])["cuda:0"]
    assert words(room)[place] == "fits, 0 B to spare"
    assert words(room + 1)[place].startswith("too small: holds ")


@given(total=SIZES, stages=st.lists(SIZES, max_size=5))
def test_places_come_by_their_room_and_hold_no_more_than_there_is(total: int, stages: list[int]) -> None:
    fits = where_it_fits(sum(stages) or total, stages)
    assert [fit.room_bytes for fit in fits[:3]] == sorted(fit.room_bytes for fit in fits[:3])
    for fit in fits:
        assert sum(fit.part_bytes) == (sum(stages) or total)
        spans = list(fit.spans)
        assert all(0 <= end - start <= fit.room_bytes for start, end in spans)
        assert all(before[1] <= after[0] for before, after in zip(spans, spans[1:], strict=False))
        assert fit.words.startswith("fits") == all(part <= fit.room_bytes for part in fit.part_bytes)


def test_what_is_held_ends_where_the_room_does() -> None:
    assert list(Fit("A card", 10, (25,)).spans) == [(0, 10)]
    assert list(Fit("Two cards", 10, (4, 12)).spans) == [(0, 4), (4, 14)]
