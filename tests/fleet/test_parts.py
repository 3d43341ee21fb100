"""A part and what is said of it are the same after a journey as JSON, and show no login and no grant in a log."""

from pathlib import Path
from typing import get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.core.events import AtWork
from sharding.core.origin import Place, Role
from sharding.core.protocols import Grant, LentDestination, LentFile, LentSource
from sharding.core.recipe import Recipe
from sharding.core.values import BytesRead, Shard, ShardRecord, Tensor
from sharding.fleet.parts import (
    Part,
    PartDone,
    PartEvent,
    PartFailed,
    event_json,
    parse_event,
    parse_part,
    part_json,
    part_of,
    pieces_of,
)
from sharding.recipes.cast import Cast
from sharding.recipes.laid import Box, Laid, Rows
from sharding.recipes.low_rank import LowRank, Update
from sharding.recipes.quantized import Codes, Grid, Scaled
from sharding.recipes.stored import Stored
from sharding.recipes.tolerance import Tolerance
from sharding.report.schema import Resources
from sharding.storage.folder_source import open_folder
from sharding.transfer.stream import NOWHERE
from tests.recipes.checkpoints import fp8

WORDS = st.text(st.characters(codec="utf-8"), max_size=20)
NUMBERS = st.integers(0, 2**62)
SHAPES = st.lists(st.integers(0, 2**40), max_size=4).map(tuple)
STORED = st.builds(Stored, st.integers(0, 5), WORDS, NUMBERS, NUMBERS)
BOXES = st.builds(Box, WORDS, NUMBERS, SHAPES, SHAPES, SHAPES, st.integers(0, 5))
LYING = STORED | st.builds(Laid, st.lists(BOXES, max_size=2).map(tuple), SHAPES, st.integers(1, 8))
CODES = st.builds(Codes, WORDS, SHAPES, NUMBERS)
GRIDS = st.builds(Grid, LYING, CODES, st.tuples(NUMBERS, NUMBERS), st.booleans(), st.none() | LYING, st.booleans())
FLOATS = st.floats(-1e6, 1e6)
UNCAST = st.one_of(
    LYING,
    st.builds(
        Scaled, LYING, CODES, SHAPES, GRIDS, WORDS, st.none() | GRIDS, NUMBERS, *[FLOATS] * 2, *[st.none() | LYING] * 2
    ),
)
UPDATES = st.builds(Update, st.none() | LYING, LYING, *[WORDS] * 2, NUMBERS, FLOATS, *[NUMBERS] * 3, st.booleans())
UPDATED = st.builds(
    LowRank,
    UNCAST,
    WORDS,
    SHAPES,
    st.lists(UPDATES, min_size=1, max_size=2).map(tuple),
    *[st.booleans()] * 2,
    st.none() | LYING,
)
MERGED = UPDATED | st.builds(Rows, UNCAST, LYING, st.lists(NUMBERS, max_size=3).map(tuple), NUMBERS)
RECIPES = st.one_of(
    UNCAST, MERGED, st.builds(Cast, UNCAST | MERGED, WORDS, WORDS), st.builds(Tolerance, UPDATED, WORDS)
)
ENTRIES = st.builds(Tensor, WORDS, WORDS, SHAPES, RECIPES, WORDS)
GRANTS = st.builds(Grant, WORDS, WORDS, NUMBERS)
ROLES = st.sampled_from(get_args(Role))
REFS = st.builds(Place, st.sampled_from(["folder", "hub"]), WORDS, WORDS, st.sampled_from(["", "a/b/"]), ROLES)
SHARDS = st.builds(Shard, WORDS, st.lists(ENTRIES, max_size=3).map(tuple), NUMBERS)
SOURCES = st.builds(
    LentSource, REFS, st.lists(st.builds(LentFile, WORDS, NUMBERS), max_size=3).map(tuple), WORDS, st.none() | GRANTS
)
PARTS = st.builds(
    Part,
    st.sampled_from(["check", "transfer", "verify"]),
    SHARDS,
    st.lists(st.none() | st.binary(max_size=40), max_size=3).map(tuple),
    st.lists(SOURCES, max_size=2).map(tuple),
    st.none() | st.builds(LentDestination, REFS, WORDS, WORDS, WORDS, st.none() | GRANTS),
    *[st.booleans()] * 2,
)
SECONDS = st.floats(0, 1e8)
READS = st.lists(st.builds(BytesRead, WORDS, NUMBERS, NUMBERS, WORDS), max_size=2).map(tuple)
COUNTS = st.dictionaries(WORDS, NUMBERS, max_size=3)
RECORDS = st.builds(ShardRecord, WORDS, NUMBERS, WORDS, st.dictionaries(WORDS, WORDS, max_size=3), READS, COUNTS)
SAID: st.SearchStrategy[PartEvent] = st.one_of(
    st.builds(AtWork, WORDS, NUMBERS, WORDS, NUMBERS, SECONDS, NUMBERS),
    st.builds(PartDone, WORDS, RECORDS, st.builds(Resources, NUMBERS, SECONDS, *[NUMBERS] * 5)),
    st.builds(PartFailed, WORDS, WORDS, WORDS, WORDS, st.booleans()),
)


@given(PARTS)
@settings(max_examples=50)
def test_a_part_is_the_same_after_its_journey(part: Part) -> None:
    after = parse_part(part_json(part))
    assert after == part
    for before, tensor in zip(part.shard.tensors, after.shard.tensors, strict=True):
        assert type(tensor.recipe) is type(before.recipe) and tensor.recipe.key() == before.recipe.key()


@given(SAID)
@settings(max_examples=50)
def test_what_is_said_of_it_is_the_same_after_its_journey(said: PartEvent) -> None:
    line = event_json(said)
    assert parse_event(line) == said and line.startswith("{") and "\n" not in line


def test_every_kind_of_word_and_of_recipe_is_tried() -> None:
    assert set(get_args(PartEvent)) == {AtWork, PartDone, PartFailed}
    assert set(Recipe.kinds.values()) == {Stored, Laid, Scaled, Cast, LowRank, Rows, Tolerance}


def test_neither_grants_nor_addresses_are_shown_where_a_part_is_printed() -> None:
    ref = Place("hub", "a/b", "0" * 40)
    lent = LentSource(
        ref, (LentFile("f", 1, place="https://store/f?signature=secret"),), "hub", Grant("e", "secret", 9)
    )
    part = Part("transfer", Shard("f", (), 0), (), (lent,), LentDestination(ref, "p", grant=lent.grant))
    assert "secret" not in repr(part) and "secret" in part_json(part)


def test_a_worker_is_lent_the_files_that_its_shard_is_made_of_and_no_more(tmp_path: Path) -> None:
    shape = (2, 2)
    turned = Laid((Box("c", 0, (0, 0), shape, (1, 2)),), shape, 4)
    halves = tuple(Box(file, 0, (row, 0), (1, 2), (2, 1)) for row, file in enumerate("de"))
    packed, scale = Stored(0, "a", 100, 104), Stored(0, "s", 0, 4)
    recipes: dict[str, Recipe] = {
        "plain": Stored(0, "a", 0, 16),
        "view": turned,
        "pieces": Cast(Laid(halves, shape, 2), "F16", "F32"),
        "scaled": Cast(fp8(packed, scale, "F32", shape, shape, "F32"), "F32", "BF16"),
        "other": Stored(0, "z", 0, 16),
    }
    for file in "acdesz":
        (tmp_path / file).write_bytes(bytes(120))
    source = open_folder(str(tmp_path))
    tensors = [Tensor(name, "F32", shape, recipe) for name, recipe in recipes.items()]
    one, other = Shard("one", tuple(tensors[:-1]), 56), Shard("other", tuple(tensors[-1:]), 16)
    pieces = lambda shard: (shard.file.encode(), *shard.tensors, b"")  # noqa: E731
    made = [part_of(shard, "verify", pieces, [source], NOWHERE, may_overflow=True) for shard in (one, other)]
    parts = {part.shard.file: parse_part(part_json(part)) for part in made}
    for shard in (one, other):
        assert parts[shard.file].shard == shard
        assert [*pieces_of(parts[shard.file])] == [shard.file.encode(), *shard.tensors, b""]
    lent = {file: {one.file for source in part.sources for one in source.files} for file, part in parts.items()}
    assert lent == {"one": set("acdes"), "other": {"z"}}
