"""A part and what is said of it are the same after a journey as JSON, and show no login and no grant in a log."""

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.core.computed import Computed
from sharding.core.gathered import Gathered
from sharding.core.lent import Grant, LentDestination, LentFile, LentSource
from sharding.core.values import RepoRef, Shard, ShardRecord, TensorEntry
from sharding.fleet.cutting import Cutter
from sharding.fleet.parts import (
    Part,
    PartDone,
    PartEvent,
    PartFailed,
    Spent,
    UnderWay,
    Worker,
    event_line,
    parse_event,
    parse_part,
    part_json,
)
from sharding.transfer.prepare import Making

WORDS = st.text(st.characters(codec="utf-8"), max_size=20)
NUMBERS = st.integers(0, 2**62)
SHAPES = st.lists(st.integers(0, 2**40), max_size=4).map(tuple)
ENTRIES = st.builds(TensorEntry, WORDS, WORDS, SHAPES, WORDS, NUMBERS, NUMBERS)
GRANTS = st.builds(Grant, WORDS, WORDS, NUMBERS)
REFS = st.builds(RepoRef, st.sampled_from(["folder", "hub"]), WORDS, WORDS)
SHARDS = st.builds(Shard, WORDS, st.lists(ENTRIES, max_size=3).map(tuple), NUMBERS)
SOURCES = st.builds(
    LentSource, REFS, st.lists(st.builds(LentFile, WORDS, NUMBERS), max_size=3).map(tuple), WORDS, st.none() | GRANTS
)
MAKINGS = st.builds(
    Making,
    st.lists(st.from_type(Gathered), max_size=2).map(tuple),
    st.lists(st.from_type(Computed), max_size=2).map(tuple),
    st.lists(ENTRIES, max_size=2).map(tuple),
)
PARTS = st.builds(
    Part,
    st.sampled_from(["check", "transfer", "verify"]),
    SHARDS,
    st.binary(max_size=40),
    SOURCES,
    MAKINGS,
    st.none() | st.builds(LentDestination, REFS, WORDS, WORDS, WORDS, st.none() | GRANTS),
)
WORKERS = st.builds(Worker, WORDS, NUMBERS)
SECONDS = st.floats(0, 1e8)
SAID: st.SearchStrategy[PartEvent] = st.one_of(
    st.builds(UnderWay, WORKERS, NUMBERS, SECONDS, NUMBERS),
    st.builds(
        PartDone,
        WORKERS,
        st.builds(ShardRecord, WORDS, NUMBERS, WORDS, st.dictionaries(WORDS, WORDS, max_size=3)),
        st.builds(Spent, SECONDS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS),
        st.dictionaries(WORDS, NUMBERS, max_size=3),
    ),
    st.builds(PartFailed, WORKERS, WORDS, WORDS, WORDS, st.booleans()),
)


@given(PARTS)
@settings(deadline=None)
def test_a_part_is_the_same_after_its_journey(part: Part) -> None:
    assert parse_part(part_json(part)) == part


@given(SAID)
@settings(deadline=None)
def test_what_is_said_of_it_is_the_same_after_its_journey(said: PartEvent) -> None:
    line = event_line(said)
    assert parse_event(line) == said and " " in line and "\n" not in line


def test_every_kind_of_word_is_tried() -> None:
    assert set(get_args(PartEvent)) == {UnderWay, PartDone, PartFailed}


def test_neither_grants_nor_addresses_are_shown_where_a_part_is_printed() -> None:
    ref = RepoRef("hub", "a/b", "0" * 40)
    lent = LentSource(
        ref, (LentFile("f", 1, place="https://store/f?signature=secret"),), "hub", Grant("e", "secret", 9)
    )
    part = Part("transfer", Shard("f", (), 0), b"", lent, Making(), LentDestination(ref, "p", grant=lent.grant))
    assert "secret" not in repr(part) and "secret" in part_json(part)


@pytest.mark.parametrize("cast", [False, True])
def test_a_shard_takes_what_its_tensors_are_made_of_and_no_more(cast: bool) -> None:
    from sharding.core.computed import Numbers
    from sharding.core.gathered import Box, in_one_piece

    shape = (2, 2)
    plain = TensorEntry("plain", "F32", shape, "a", 0, 16)
    view = TensorEntry("view", "F32", shape, "a", 100, 116)
    scaled = TensorEntry("scaled", "BF16", shape, "b", 200, 208)
    other = TensorEntry("other", "F32", shape, "z", 0, 16)
    boxes = (*in_one_piece("c", 0, shape, (1, 2)), Box("d", 0, (0, 0), (0, 0), (1, 1)))
    turned = in_one_piece("e", 0, shape, (1, 2))
    gathered = (
        Gathered("a", 100, 116, 4, shape, boxes),
        Gathered("b", 150, 154, 1, shape, turned),
        Gathered("z", 90, 94, 4, shape, boxes),
    )
    computed = (
        Computed("b", 200, 208, "BF16", shape, "fp8", Numbers("b", 150, "F8_E4M3", shape), Numbers("s", 0, "F32", ())),
        Computed("z", 200, 208, "BF16", shape, "fp8", Numbers("z", 0, "F8_E4M3", shape), Numbers("z", 0, "F32", ())),
    )
    stored = (plain, view, scaled, other)
    after = tuple(one._replace(dtype="F16", start_byte=8 * n, end_byte=8 * n + 8) for n, one in enumerate(stored))
    making = Making(gathered, computed, stored, after, True) if cast else Making(gathered, computed)
    result = after if cast else stored
    taken, files = Cutter(making).making([result[2], result[0], result[1]])
    assert set(taken.gathered) == set(gathered[:2]) and taken.computed == computed[:1]
    assert set(files) == {"a", "b", "c", "d", "e", "s"}
    assert taken.stored == (stored[:3] if cast else ()) and taken.after == (after[:3] if cast else ())
    assert taken.allow_overflow is cast
