"""What was done to numbers is said in the planner's words, and a report that says anything else is found out."""

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharding.core.made import Change, agreed, explained, phrase, without_effect
from sharding.core.origin import Place

PLACES = [Place("hub", "bob/lora", "b" * 40, "sub/", "adapter"), Place("folder", "in", role="adapter")]
words = st.text("ab ", min_size=1, max_size=5)
flags, counts = st.booleans(), st.integers(0, 9)
computed = st.builds(Change, *[words] * 5, counts, st.just(9), st.none(), flags, flags)
merges = st.builds(Change, *[words] * 5, counts, st.just(9), st.sampled_from(PLACES), flags, flags, relation=words)
CAST = Change("dtype", "cast to bf16", "The cast", "", "", 9, 9)


@pytest.mark.parametrize("name", [*["with", "the", "adapter", "in", "merged"], "a", "in merged", "the adapter in it"])
def test_an_input_is_shown_where_it_is_named_and_not_in_a_word_that_is_like_it(name: str) -> None:
    done = f"with the adapter in {name} merged"
    merge = Change("adapter", done, "It", "", "", 1, 1, Place("folder", name, role="adapter"))
    cast = Change("dtype", f"cast to {name}", "It", "", "", 1, 1)
    assert phrase([cast, merge, cast]) == f", cast to {name}, {done}, cast to {name}"
    shown = phrase([cast, merge], lambda place: f"<{place.name}>")
    assert shown == f", cast to {name}, with the adapter in <{name}> merged"


def other(value: Any) -> Any:
    """What a report may say instead of a value."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            return f"{value}!"
    return PLACES[0] if value != PLACES[0] else PLACES[1]


WORDS = {"done", "called", "how", "then", "caveat", "peer", "details"}


@given(st.lists(computed | merges, max_size=3), st.data())
def test_a_report_agrees_unless_a_fact_or_a_step_is_other(known: list[Change], data: st.DataObject) -> None:
    """Headers do not show where the numbers of another input are zero, so a merge may have changed fewer."""
    assert agreed(known, known) == (*known,) and phrase([]) == "" and agreed([*known, CAST], known) is None
    if not known:
        return
    number, field = data.draw(st.integers(0, len(known) - 1)), data.draw(st.sampled_from(fields(Change))).name
    one = known[number]

    def among(change: Change) -> list[Change]:
        return [*known[:number], change, *known[number + 1 :]]

    lie = agreed(among(replace(one, **{field: other(getattr(one, field))})), known)
    assert lie == ((*known,) if field in WORDS else None) and agreed(known[:-1], known) is None
    fewer = replace(one, changed=data.draw(st.integers(0, one.changed)))
    is_true = fewer == one or one.by
    said = fewer if fewer.changed or fewer == one else without_effect(one)
    assert agreed(among(replace(fewer, how="other")), known) == ((*among(said),) if is_true else None)


@given(computed | merges)
def test_a_step_that_changes_nothing_says_so(change: Change) -> None:
    (said,), (nothing,) = explained([change]), explained([without_effect(change)])
    assert ("changes none of 9 tensors" in said) == (not change.changed) and said.endswith(change.how)
    assert f"{change.called} changes none of 9 tensors. What it adds is zero" in nothing
