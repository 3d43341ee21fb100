"""Some rows of a tensor are replaced, and all others stay as they are."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sharding.recipes import laid as room
from sharding.recipes.cast import Cast
from sharding.recipes.laid import Rows
from tests.folders import bits
from tests.promises import promise
from tests.recipes.executor import bytes_of
from tests.recipes.updates import Tensors


@promise("docs/formats.md#what-becomes-of-each-tensor")
@given(count=st.integers(1, 40), width=st.integers(1, 9), batch=st.sampled_from([1, 8, 37, 1 << 20]), data=st.data())
def test_any_rows_are_replaced_in_their_order_whatever_comes_at_a_time(
    count: int, width: int, batch: int, data: st.DataObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "BATCH_BYTES", batch)
    places = data.draw(st.lists(st.integers(0, count - 1), min_size=1, unique=True))
    old = torch.arange(count * width, dtype=torch.int16).reshape(count, width)
    new = -1 - torch.arange(len(places) * width, dtype=torch.int16).reshape(len(places), width)
    file = Tensors()
    recipe = Rows(file.add(old), file.add(new), tuple(places), 2 * width)
    expected = old.clone()
    expected[torch.tensor(places)] = new
    chunks = [bytes(chunk.data) for chunk in file.chunks(recipe)]
    assert b"".join(chunks) == bits(expected)[2]
    assert max(map(len, chunks)) <= max(batch, 2 * width)
    assert bytes_of(recipe, file.source(7)) == bits(expected)[2]


def test_new_rows_may_be_cast_first() -> None:
    file, old, new = Tensors(), torch.ones(4, 3, dtype=torch.bfloat16), torch.tensor([[0.1, 1e-9, 3e38]])
    recipe = Rows(file.add(old), Cast(file.add(new), "F32", "BF16"), (2,), 6)
    expected = old.clone()
    expected[2] = new[0]
    assert bytes_of(recipe, file.source()) == bits(expected)[2]


def test_it_says_in_words_how_many_rows_are_new() -> None:
    file = Tensors()
    old, one, two = (file.add(torch.zeros(shape)) for shape in ((4, 3), (1, 3), (2, 3)))
    assert "; 1 row from " in Rows(old, one, (2,), 12).words((4, 3))
    assert "; 2 rows from " in Rows(old, two, (2, 0), 12).words((4, 3))
