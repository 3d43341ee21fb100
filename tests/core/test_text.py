"""Sizes as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharding.core.errors import UsageError
from sharding.core.text import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("2GB", 2 * 10**9),
        ("2 GB", 2 * 10**9),
        ("2gb", 2 * 10**9),
        ("500MB", 500 * 10**6),
        ("1GiB", 2**30),
        ("1gib", 2**30),
        ("64MiB", 64 * 2**20),
        ("300000000", 300_000_000),
        (" 1.5GB ", 1_500_000_000),
        ("0.1 kB", 100),
        ("7B", 7),
    ],
)
def test_a_size_means_what_it_says(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    "text", ["0", "0GB", "-1GB", "10 apples", "nan", "inf", "", "GB", "1e9", "0.1B", "1,5GB", "٢GB", "2GB2"]
)
def test_what_is_no_size_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse_bytes(text)
    assert refusal.value.hint


def test_a_forgotten_b_is_noticed() -> None:
    with pytest.raises(UsageError) as refusal:
        parse_bytes("200m")
    assert refusal.value.hint == "Did you mean 200MB?"


@given(st.integers(1, 10**15))
def test_a_formatted_size_is_within_a_twentieth_of_the_count(count: int) -> None:
    number, unit = format_bytes(count).split()
    assert float(number) < 1000 or unit == "TB"
    assert abs(float(number) * {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}[unit] - count) <= 0.05 * count
