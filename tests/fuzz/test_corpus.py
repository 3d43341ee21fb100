"""The corpus of the fuzzer, replayed: what was found once stays harmless."""

from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS, run

CORPUS = Path(__file__).parent / "corpus"


@pytest.mark.parametrize("target", TARGETS)
def test_every_input_of_the_corpus_is_read_or_refused(target: str) -> None:
    inputs = [path.read_bytes() for path in sorted((CORPUS / target).iterdir())]
    outcomes = {run(TARGETS[target], data) for data in inputs}
    # A target that takes everything, or nothing, would try nothing.
    assert outcomes == {True, False}
