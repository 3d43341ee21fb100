"""How a comparison ends is the worst that it found, and its method says what was compared and no more."""

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharding.core.verification import Evidence, Kind, Mismatch, Verification

KINDS = get_args(Kind)
WORSE = {"unstated": True, "within": 2, "undecided": 1, "mismatches": (Mismatch("w", "its bytes differ"),)}
counts, flags = st.sampled_from([0, 2]), st.booleans()
evidence = st.builds(
    *(
        Evidence,
        st.sampled_from(["both", "folder", "hub", "stated"]),
        flags,
        *[counts] * 3,
        flags,
        *[counts] * 3,
        flags,
    ),
    *(counts, flags),
)
found = st.builds(
    *(Verification, st.just(9), st.just(9), st.just(1.0), evidence, st.sampled_from([(), WORSE["mismatches"]])),
    unstated=flags, within=counts, undecided=counts,
)  # fmt: skip


@given(found, st.sampled_from([*WORSE]))
def test_a_comparison_ends_as_the_worst_that_it_found(one: Verification, fault: str) -> None:
    worse, least = replace(one, **{fault: WORSE[fault]}), KINDS.index("different" if fault == "mismatches" else fault)
    assert KINDS.index(worse.outcome.kind) >= max(KINDS.index(one.outcome.kind), least)
    assert one.holds == (one.outcome.kind in KINDS[:4]) and one.identical == (one.outcome.kind in KINDS[:2])
    assert one.may_be_published == (one.outcome.kind in KINDS[:3])
    assert one.outcome.tensors == {"different": 1, "undecided": one.undecided, "within": one.within}.get(
        one.outcome.kind, 9
    )
    is_clean = not (one.mismatches or one.undecided or one.within or one.unstated or one.evidence.read == "stated")
    assert (one.outcome.kind == "identical") == is_clean


SAID = {
    **{"structure": "structure checked by", "rebuilt": " have the SHA-256", "weights": "read whole once more"},
    **{"loaded": "downloaded and loaded", "kept": "of an earlier run", "beside": " beside them was compared"},
    **{"measured": "compared in float64", "original": "every tensor compared with the original's"},
}


@given(found)
def test_the_method_says_what_was_compared_and_no_more(one: Verification) -> None:
    seen, said = one.evidence, one.method
    for name, words in SAID.items():
        is_there = bool(getattr(seen, name)) and not (name == "structure" and seen.read in ("both", "stated"))
        assert (words in said) == is_there, name
    assert ("every tensor of both was read" in said) == (seen.read == "both")
    assert ("from the Hub" in said, "from the folder" in said) == (seen.read == "hub", seen.read == "folder")
    is_stated = seen.read == "stated"
    assert ("states the SHA-256" in said, "and Xet hash" in said) == (
        is_stated and not one.mismatches,
        is_stated and seen.xet,
    )
    is_sampled = is_stated and bool(seen.sampled or not one.mismatches)
    assert ("the rest was not" in said) == is_sampled == ("what was read of the source was not compared" in said)
    assert ("within the tolerance" in said) == bool(one.within)
    proved = (" have the SHA-256" in said or " have the hash that" in said) and "should have" not in said
    assert not (proved and one.mismatches)
    silent = replace(one, evidence=replace(seen, read="digests")).method
    assert silent == "stored digests were compared, no weights were read"


@pytest.mark.parametrize(("read", "files"), [("both", "some of the files"), ("hub", "the source's files")])
def test_what_no_hash_proves_is_told(read: str, files: str) -> None:
    one = Verification(9, 9, 1.0, Evidence(read), (), unstated=True)
    assert f"{files} were not compared with hashes of the Hub" in one.method
    assert "not compared" not in replace(one, unstated=False).method
