"""Bytes as they lie are moved as they are, from whichever source they are of."""

import pytest

from sharding.recipes.stored import Stored
from tests.fuzz.targets import Memory
from tests.recipes.executor import FILE, ShortChunks, bytes_of, outcome, tensor_of

DATA = bytes(range(256)) * 4


@pytest.mark.parametrize("batch", [1, 7, 64, 1 << 20])
@pytest.mark.parametrize("chunk", [1, 13, 1 << 20])
def test_any_stretch_is_moved_whatever_comes_at_a_time(batch: int, chunk: int) -> None:
    for start, end in ((0, len(DATA)), (3, 100), (99, 100), (5, 5)):
        source = ShortChunks(DATA, chunk, batch)
        assert bytes_of(Stored(0, FILE, start, end), source) == DATA[start:end]
        assert sum(last - first for first, last in source.noted) == end - start


def test_each_stretch_is_read_of_its_own_source() -> None:
    sources = Memory(b"the first one"), Memory(b"a second here")
    places = {"a": (1, 2, 8), "b": (0, 4, 9), "c": (1, 0, 1), "d": (0, 0, 3)}
    tensors = [tensor_of(Stored(number, FILE, start, end), name=name) for name, (number, start, end) in places.items()]
    data, _ = outcome(tensors, *sources)
    assert data == {"a": b"second", "b": b"first", "c": b"a", "d": b"the"}
