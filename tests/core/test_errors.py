"""What every error says: short, showable, where it was raised, and which model stands where."""

import pytest

from sharding.core.errors import (
    Cancelled,
    DestinationError,
    Fault,
    Remedy,
    ReplaceRefused,
    ShardingError,
    UsageError,
    VariantMissing,
    shortened,
    unforeseen,
)

ODD = "caf\udce9 \ud83d"


@pytest.mark.parametrize("part", ["message", "hint"])
def test_what_an_error_says_is_short_and_can_be_written_as_utf8(part: str) -> None:
    said = {"message": "It is so.", "hint": "Do that."}
    for kind in (ShardingError, UsageError, DestinationError):
        error = kind(**{**said, part: ODD})
        assert getattr(error, part) == r"caf\udce9 \ud83d"
        error = kind(**{**said, part: f"begin {'x' * 10**6} end"})
        text = getattr(error, part)
        assert len(text) < 1010 and text.startswith("begin x") and text.endswith("x end") and "…" in text
        assert f"{error.message}{error.hint}".encode() and str(error) == error.message
    missing = VariantMissing(**{**said, part: ODD}, there=("fp16", ""))
    assert getattr(missing, part) == r"caf\udce9 \ud83d" and missing.there == ("fp16", "")


def test_a_sentence_is_left_as_it_is_up_to_the_bound() -> None:
    assert shortened("a" * 1000) == "a" * 1000
    assert shortened("a" * 800 + "b" * 201) == f"{'a' * 800} … {'b' * 200}"


def test_a_replacement_that_is_refused_names_the_copy_that_is_there_first() -> None:
    error = ReplaceRefused("alice/copy", "alice/old", "alice/new")
    assert error.message == "alice/copy holds a copy of alice/old. A copy of alice/new would replace it."
    assert "--overwrite" in error.hint and error.there == "alice/old" and error.exit_status == 3
    assert error.remedy == Remedy("overwrite")


def inner() -> None:
    raise ZeroDivisionError("by nought")


def outer() -> None:
    inner()


def test_a_fault_names_the_line_where_it_was_raised_and_not_one_on_the_way() -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        outer()
    line = inner.__code__.co_firstlineno + 1
    fault = unforeseen(raised.value)
    assert isinstance(fault, Fault) and fault.exit_status == 3
    assert f"ZeroDivisionError in test_errors.py, line {line}: by nought." in fault.message
    assert "Please report" in fault.hint
    assert "ZeroDivisionError: by nought." in Fault(ZeroDivisionError("by nought")).message, "one that nobody raised"


def test_wrong_usage_is_2_and_what_was_cancelled_130_and_all_else_3() -> None:
    def family(kind: type[ShardingError]) -> set[type[ShardingError]]:
        return {kind}.union(*map(family, kind.__subclasses__()))

    others = family(ShardingError) - family(UsageError) - family(Cancelled)
    assert {kind.exit_status for kind in family(UsageError)} == {2}
    assert {kind.exit_status for kind in family(Cancelled)} == {130}
    assert {kind.exit_status for kind in others} == {3} and len(others) > 10
