"""What goes for every recipe: what it says of itself is what the executor reads and makes of it."""

import gc
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any
from weakref import ReferenceType, ref

import pytest
import torch
from pydantic import TypeAdapter

from sharding.core.recipe import Feed, Recipe
from sharding.core.values import Tensor
from sharding.recipes.cast import Cast
from sharding.recipes.laid import Box, Laid, Rows, laid_of
from sharding.recipes.low_rank import LowRank, Update
from sharding.recipes.quantized import Codes, Grid, Scaled
from sharding.recipes.stored import Stored
from sharding.recipes.tolerance import Tolerance
from tests.fuzz.targets import Memory
from tests.recipes.checkpoints import fp8
from tests.recipes.executor import FILE, bytes_of, outcome, tensor_of

FILES = {"a": bytes(range(256)), "b": bytes(range(255, -1, -1)), "scales": torch.rand(64).numpy().tobytes()}
FILES["index"] = torch.tensor([1, 0] * 4, dtype=torch.int32).numpy().tobytes()
TURNED = Laid((Box("a", 8, (0, 0), (4, 6), (1, 4)),), (4, 6), 4)
HALVES = Laid((Box("b", 0, (0, 0), (4, 3), (3, 1)), Box("a", 0, (0, 3), (4, 5), (5, 1))), (4, 8), 1)
ROWS = Laid((Box("b", 64, (0, 0), (1, 8), (8, 1)), Box("a", 16, (1, 0), (3, 8), (8, 1))), (4, 8), 1)
PACKED = Stored(0, "a", 0, 32)
SCALES = Stored(0, "scales", 0, 16)
NUMBERS = Stored(0, "scales", 0, 128)
"""A matrix of 4 × 8 numbers in float32."""
UPDATE = Update(Stored(0, "b", 0, 32), Stored(0, "a", 0, 16), "BF16", "BF16", 2, 0.5, 0, 4)
STACKED = Update(Stored(0, "b", 0, 32), Stored(0, "a", 0, 8), "BF16", "BF16", 1, 0.5, 0, 4, 2)
OTHER_UPDATES = {"a": Stored(0, "b", 32, 64), "b": Stored(0, "a", 16, 32), "scale": 0.25, "last_row": 3}
OTHER_UPDATES |= {"a_dtype": "F16", "b_dtype": "F16"}
LENGTHS = Stored(0, "scales", 128, 144)
MXFP4 = Scaled(
    laid_of(Tensor("", "U8", (1, 3, 32), Stored(0, "a", 0, 96))).turned(), Codes("2·E2M1", down=1), (1, 64, 3),
    Grid(Stored(0, "b", 100, 106), Codes("2^/2"), (32, 1), turned=True), "F32",
)  # fmt: skip
INTEGERS = Scaled(Stored(0, "a", 0, 16), Codes("U4"), (4, 8), Grid(SCALES, Codes("F16"), (1, 4)), "F16", zero=8)
DORA = LowRank(NUMBERS, "F32", (4, 8), (UPDATE,), magnitude=LENGTHS, magnitude_dtype="F32")
EVERY: dict[str, Recipe] = {
    "stored": Stored(0, "a", 3, 19),
    "stored elsewhere": Stored(0, "a", 3, 23),
    "turned": TURNED,
    "in halves": HALVES,
    "in rows": ROWS,
    "fp8": fp8(PACKED, SCALES, "F32", (4, 8), (2, 4), "F32"),
    "fp8 in other blocks": fp8(PACKED, SCALES, "F32", (4, 8), (4, 2), "F32"),
    "fp8 of one scale": fp8(PACKED, Stored(0, "scales", 0, 4), "F32", (4, 8), (4, 8), "F32"),
    "fp8 rounded": fp8(PACKED, SCALES, "F32", (4, 8), (2, 4), "BF16"),
    "fp8 in halves": fp8(HALVES, SCALES, "F32", (4, 8), (2, 4), "F32"),
    "mxfp4": MXFP4,
    "mxfp4 of more experts": replace(
        MXFP4, of=laid_of(Tensor("", "U8", (3, 1, 32), Stored(0, "a", 0, 96))).turned(), shape=(3, 64, 1)
    ),
    "integers": INTEGERS,
    "integers with zeros": replace(INTEGERS, zeros=Grid(Stored(0, "b", 0, 8), Codes("U4", down=4), (1, 4))),
    "integers with a second scale": replace(INTEGERS, scales=replace(INTEGERS.scales, times=Stored(0, "scales", 0, 4))),
    "integers in columns": replace(INTEGERS, codes=Codes("U4", (0, 4, 1, 5, 2, 6, 3, 7), 4), shape=(8, 4)),
    "numbers of a list": replace(INTEGERS, codes=Codes("MAP4", (1, 0)), map=Stored(0, "scales", 0, 64)),
    "integers in another order": replace(INTEGERS, index=Stored(0, "index", 0, 32)),
    "cast": Cast(Stored(0, "a", 0, 32), "F32", "BF16"),
    "cast further": Cast(Stored(0, "a", 0, 32), "F32", "F16"),
    "cast of a view": Cast(TURNED, "F32", "BF16"),
    "cast of fp8": Cast(fp8(PACKED, SCALES, "F32", (4, 8), (2, 4), "F32"), "F32", "BF16"),
    "cast of mxfp4": Cast(MXFP4, "F32", "BF16"),
    "updated": LowRank(NUMBERS, "F32", (4, 8), (UPDATE,)),
    "updated and rounded twice": LowRank(NUMBERS, "F32", (4, 8), (UPDATE,), rounds_twice=True),
    "updated in a stack": LowRank(NUMBERS, "F32", (2, 2, 8), (STACKED,), is_stacked=True),
    "updated and transposed": LowRank(NUMBERS, "F32", (8, 4), (replace(UPDATE, last_row=8, transposed=True),)),
    "two rows updated": LowRank(NUMBERS, "F32", (4, 8), (replace(UPDATE, first_row=2, b=Stored(0, "a", 0, 8)),)),
    "updated by a vector": LowRank(
        NUMBERS, "F32", (32,), (Update(None, Stored(0, "b", 0, 64), "", "BF16", 1, 0.5, 0, 32),)
    ),
    "updated fp8": LowRank(fp8(PACKED, SCALES, "F32", (4, 8), (2, 4), "BF16"), "BF16", (4, 8), (UPDATE,)),
    "cast of updated": Cast(LowRank(NUMBERS, "F32", (4, 8), (UPDATE,)), "F32", "BF16"),
    "dora": DORA,
    "dora, transposed": replace(DORA, shape=(8, 4), updates=(replace(UPDATE, last_row=8, transposed=True),)),
    "tolerance": Tolerance(LowRank(NUMBERS, "F32", (4, 8), (UPDATE,)), "F32"),
    "tolerance of a cast": Tolerance(LowRank(NUMBERS, "F32", (4, 8), (UPDATE,)), "BF16"),
    "tolerance of a dora": Tolerance(DORA, "F32"),
    "rows": Rows(Stored(0, "a", 0, 32), Stored(0, "b", 0, 16), (3, 0), 8),
    "rows in another order": Rows(Stored(0, "a", 0, 32), Stored(0, "b", 0, 16), (0, 3), 8),
    "rows of a cast": Rows(Stored(0, "a", 0, 32), Cast(Stored(0, "b", 0, 32), "F32", "BF16"), (3, 0), 8),
}


class Noting(Memory):
    """A source that notes which bytes of which file are read."""

    def __init__(self) -> None:
        super().__init__(b"", FILES)
        self.noted: list[tuple[str, int, int]] = []

    def read(self, file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        self.noted.append((file, start_byte, end_byte))
        return super().read(file, start_byte, end_byte)


def test_every_way_is_among_these() -> None:
    assert {type(recipe) for recipe in EVERY.values()} == set(Recipe.kinds.values())


@pytest.mark.parametrize("name", EVERY)
def test_it_makes_as_many_bytes_as_it_says_of_the_files_that_it_says(name: str) -> None:
    recipe, source = EVERY[name], Noting()
    assert len(bytes_of(recipe, source)) == recipe.size_bytes
    files = {file for file, *_ in source.noted}
    assert {file for _, file in recipe.files()} == files and recipe.file in files
    assert {extent.file for extent in (*recipe.reads(), *recipe.keeps())} == files


def test_what_one_recipe_made_of_another_is_gone_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = list[ReferenceType[Feed]]()

    class Noted(Feed):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            kept.append(ref(self))

    monkeypatch.setattr("sharding.recipes.stored.Feed", Noted)
    gc.disable()  # its search for what nothing uses any more comes late
    try:
        for recipe in EVERY.values():
            assert bytes_of(recipe, Noting())
        assert kept and not any(one() for one in kept)
    finally:
        gc.enable()


@pytest.mark.parametrize("name", EVERY)
def test_it_is_the_same_after_a_journey_as_json(name: str) -> None:
    adapter: TypeAdapter[Recipe] = TypeAdapter(Recipe)
    recipe = EVERY[name]
    after = adapter.validate_json(adapter.dump_json(recipe))
    assert type(after) is type(recipe) and after == recipe and hash(after) == hash(recipe)
    assert after.key() == recipe.key()


def test_it_says_in_words_what_it_does() -> None:
    words = {name: recipe.words((4, 8)) for name, recipe in EVERY.items() if name in ("updated", "dora", "rows")}
    assert words["updated"] == "add(F32 [4, 8], scales bytes 0–128; 0.5 × (a bytes 0–16 @ b bytes 0–32))"
    assert words["dora"].startswith("dora(F32 [4, 8], ") and "; lengths " in words["dora"]
    for count, more in ((2, " and 1 more update)"), (3, " and 2 more updates)")):
        assert LowRank(NUMBERS, "F32", (4, 8), (UPDATE,) * count).words((4, 8)).endswith(more)
    one = Rows(Stored(0, "a", 0, 32), Stored(0, "b", 0, 8), (3,), 8)
    assert "; 2 rows from " in words["rows"] and "; 1 row from " in one.words((4, 8))


def test_the_bytes_of_two_recipes_that_differ_have_two_keys() -> None:
    others = [
        Stored(1, "a", 3, 19),
        Stored(0, "b", 3, 19),
        Stored(0, "a", 4, 19),
        Cast(Stored(0, "a", 0, 32), "I32", "BF16"),
        Laid(TURNED.boxes, (4, 6), 2),
        Laid(TURNED.boxes, (6, 4), 4),
        Laid((Box("a", 8, (0, 0), (4, 6), (1, 4), source=1),), (4, 6), 4),
        Laid((Box("a", 8, (0, 0), (4, 6), (6, 1)),), (4, 6), 4),
        Laid(HALVES.boxes[::-1], (4, 8), 1),
        fp8(PACKED, SCALES, "BF16", (4, 8), (2, 4), "F32"),
        fp8(PACKED, SCALES, "F32", (8, 4), (2, 4), "F32"),
        fp8(PACKED, Stored(0, "scales", 16, 32), "F32", (4, 8), (2, 4), "F32"),
        *(LowRank(NUMBERS, "F32", (4, 8), (replace(UPDATE, **{key: value}),)) for key, value in OTHER_UPDATES.items()),
        LowRank(NUMBERS, "F32", (2, 2, 8), (replace(STACKED, count=1),), is_stacked=True),
        LowRank(Stored(0, "scales", 128, 256), "F32", (4, 8), (UPDATE,)),
        replace(DORA, magnitude=Stored(0, "scales", 0, 16)),
        replace(DORA, magnitude=Stored(0, "a", 0, 8), magnitude_dtype="F16"),
        replace(DORA, updates=(replace(UPDATE, scale=2.0),)),
        Rows(Stored(0, "a", 0, 32), Stored(0, "b", 0, 16), (3, 0, 1, 2), 4),
    ]
    for one, other in combinations([*EVERY.values(), *others], 2):
        assert one != other and one.key() != other.key()


# --- Bytes as they lie, from whichever source ---------------------------------------------------------------


def test_each_stretch_is_read_of_its_own_source() -> None:
    sources = Memory(b"the first one"), Memory(b"a second here")
    places = {"a": (1, 2, 8), "b": (0, 4, 9), "c": (1, 0, 1), "d": (0, 0, 3)}
    tensors = [tensor_of(Stored(number, FILE, start, end), name=name) for name, (number, start, end) in places.items()]
    data, _ = outcome(tensors, *sources)
    assert data == {"a": b"second", "b": b"first", "c": b"a", "d": b"the"}
