"""Sizes, counts, names and times as people write them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharding.core.errors import UsageError
from sharding.core.limits import MAX_NAME_CHARACTERS
from sharding.core.options import OPTIONS, Options
from sharding.core.text import (
    duration,
    format_bytes,
    name_problem,
    name_some,
    objects_in,
    parameters,
    parse_bytes,
    unchecked_sentence,
    values_in,
)

SIZES = {
    **{"2 GB": 2 * 10**9, "2gb": 2 * 10**9, "500MB": 500 * 10**6, "1GiB": 2**30, "64 mib": 64 * 2**20},
    **{"300000000": 300_000_000, " 1.5GB ": 1_500_000_000, "0.1 kB": 100, "7B": 7, "1.0B": 1, "0.001kB": 1},
    **{"9007199254740993": 2**53 + 1, "9007199254740.993kB": 2**53 + 1, "4.35KB": 4350, f"{2**63 - 1}": 2**63 - 1},
    **{"1000000": 10**6, "200B": 200},
}


def test_a_size_means_what_it_says() -> None:
    assert {text: parse_bytes(text) for text in SIZES} == SIZES


@pytest.mark.parametrize("number", ["1", "200", "999999"])
def test_a_small_number_without_a_unit_is_no_size_but_one_in_python_is_bytes(number: str) -> None:
    for size in (number, f" {number}.0 "):
        with pytest.raises(UsageError) as refusal:
            Options(size)
        assert f"Did you mean {size.strip()}MB" in refusal.value.hint
    assert Options(int(number)).max_shard_bytes == int(number)
    words = OPTIONS["max_shard_size"].words(int(number))
    assert Options(words[1]).max_shard_bytes == int(number)


@pytest.mark.parametrize(
    "text", ["0", "0GB", "-1GB", "10 apples", "nan", "inf", "", "GB", "1e9", "0.1B", "1,5GB", "٢GB", "2GB2", "200m"]
)
def test_what_is_no_size_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse_bytes(text)
    assert refusal.value.hint == "Did you mean 200MB?" if text == "200m" else refusal.value.hint


@given(st.integers(1, 10**15))
def test_a_formatted_size_is_within_a_twentieth_of_the_count(count: int) -> None:
    number, unit = format_bytes(count).split()
    assert float(number) < 1000 or unit == "TB"
    assert abs(float(number) * {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}[unit] - count) <= 0.05 * count


@given(st.integers(0, 9000), st.integers(0, 10**9 - 1))
def test_every_digit_of_a_size_counts(whole: int, billionths: int) -> None:
    if whole or billionths:
        assert parse_bytes(f"{whole}.{billionths:09}GB") == whole * 10**9 + billionths
        assert parse_bytes(f"{whole}.{billionths:09}PB") == whole * 10**15 + billionths * 10**6


@pytest.mark.parametrize("text", ["0.999999B", "0.0009kB", f"{2**63}", "9224PB", "8192PiB"])
def test_a_size_is_from_one_byte_to_what_a_machine_can_have(text: str) -> None:
    with pytest.raises(UsageError, match="cannot hold anything" if text[0] == "0" else "fits on no machine"):
        parse_bytes(text)


def test_bytes_and_parameters_have_one_to_three_digits_before_the_point_and_times_two_units() -> None:
    sizes = {0: "0 B", 999: "999 B", 1000: "1.0 kB", 999_949: "999.9 kB", 999_950: "1.0 MB", 999_999_999: "1.0 GB"}
    sizes |= {999_949_000_000: "999.9 GB", 999_950_000_000: "1.0 TB", 12_345_000_000_000_000: "12345.0 TB"}
    assert {count: format_bytes(count) for count in sizes} == sizes
    counts = {999: "999", 1000: "1 k", 999_499: "999 k", 999_500: "1000 k", 999_999_999: "1000 M", 10**9: "1 B"}
    counts |= {70_553_706_496: "70.6 B", 12_345 * 10**12: "12345 T"}
    assert {number: parameters(number) for number in counts} == counts
    times = {2.99: "3.0 s", 3: "3 s", 59.4: "59 s", 59.6: "1 min 0 s", 3599.4: "59 min 59 s", 3600: "1 h 0 min"}
    assert {seconds: duration(seconds) for seconds in times} == times


def test_a_name_has_at_most_so_many_characters_and_all_of_them_can_be_written() -> None:
    for letter in "nü":
        assert name_problem(letter * MAX_NAME_CHARACTERS) == ""
        assert "at most 4,096 are allowed" in name_problem(letter * (MAX_NAME_CHARACTERS + 1))
    assert name_problem("model.\udce9") == "is not UTF-8"


@pytest.mark.parametrize("text", [b"[]", b"[1]", b"[[],[]]", b'{"a":1,"b":[{},{"c":2}]}', b"[1,2,3]", b"7"])
def test_json_has_inside_at_most_as_many_values_as_are_counted(text: bytes) -> None:
    def values(value: object) -> int:
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return 1 + sum(map(values, inside))

    assert values_in(text) + 1 >= values(json.loads(text))


def test_the_outer_objects_of_json_come_before_the_inner_ones_and_both_in_order() -> None:
    document = {"text": {"rope": [{}]}, "vision": {"layers": 2}}
    assert [list(found) for found in objects_in(document)] == [["text", "vision"], ["rope"], ["layers"], []]


def test_a_phrase_has_the_first_names_and_the_number_of_the_others() -> None:
    said = ["", "a", "a, b", "a, b, c", "a, b, c and 1 more", "a, b, c and 2 more"]
    assert [name_some("abcde"[:number]) for number in range(6)] == said
    assert name_some("abcde", 5) == "a, b, c, d, e" and name_some("abcde", 4) == "a, b, c, d and 1 more"
    assert name_some("abc", total=3) == "a, b, c" and name_some("abc", total=4) == "a, b, c and 1 more"
    assert unchecked_sentence(["code", "tokenizer"]) == "Not checked: code and tokenizer."
    assert unchecked_sentence("abc") == "Not checked: a, b and c."
