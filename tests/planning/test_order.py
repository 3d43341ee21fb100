"""The natural order is that of transformers, and any names have one. No files."""

from hypothesis import given
from hypothesis import strategies as st

from sharding.planning.order import natural_key


@given(st.lists(st.text("ab.0123456789é", max_size=10)))
def test_natural_order_is_that_of_transformers(names: list[str]) -> None:
    from transformers.core_model_loading import dot_natural_key

    assert sorted(names, key=natural_key) == sorted(names, key=dot_natural_key)


@given(st.lists(st.text(max_size=10), unique=True))
def test_any_names_have_one_order_however_they_come(names: list[str]) -> None:
    assert sorted(names, key=natural_key) == sorted(reversed(names), key=natural_key)


def test_a_number_of_five_thousand_digits_is_ordered_as_a_word() -> None:
    assert sorted(["b", "9" * 5000, "8"], key=natural_key) == ["8", "9" * 5000, "b"]
