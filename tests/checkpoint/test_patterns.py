"""The regular expressions of a stranger's adapter are matched as Python matches them, and never for long."""

from types import SimpleNamespace

import pytest

from sharding.checkpoint import patterns as room
from sharding.checkpoint.patterns import Patterns
from sharding.core.errors import SourceError
from sharding.formats.peft_config import ADAPTER_NAME


def test_a_pattern_matches_a_whole_name() -> None:
    patterns = Patterns(ADAPTER_NAME)
    assert patterns.match(r".*\.(q|v)_proj", "model.layers.0.self_attn.q_proj")
    assert not patterns.match(r".*\.(q|v)_proj", "model.layers.0.self_attn.q_proj.weight")


@pytest.mark.parametrize("pattern", [r"(a|aa)+b", r"(?:a|aa)*[bd]", r"(.|..)*(0|x)"])
def test_a_pattern_that_takes_years_is_refused_in_time(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "PATTERNS_SECONDS", 0.05)
    with pytest.raises(SourceError, match=rf"{ADAPTER_NAME} take over 0.05 s") as refusal:
        Patterns(ADAPTER_NAME).match(pattern, "a" * 200 + "c")
    assert pattern in str(refusal.value)


def test_all_patterns_of_an_adapter_share_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "PATTERNS_SECONDS", 20.0)
    seconds = iter(range(0, 1000, 3))  # each match takes three seconds
    monkeypatch.setattr(room, "time", SimpleNamespace(monotonic=lambda: float(next(seconds))))
    patterns = Patterns(ADAPTER_NAME)
    for _ in range(3):
        patterns.check("target_modules", "a+")
        assert patterns.match("a+", "aaa")
    with pytest.raises(SourceError, match="take over 20 s"):
        patterns.match("(a|aa)+b", "a" * 200)


def test_what_is_no_regular_expression_is_named_with_its_key() -> None:
    patterns = Patterns(ADAPTER_NAME)
    for usual in (
        ".*q_proj",
        r"(?:.*?(?:language|text).*?(?:q_proj|\d+)).*?",
        r"model\.layers\.[\d]{1,}\.mlp",
        r"(?i)Q_PROJ",
    ):
        patterns.check("target_modules", usual)
    with pytest.raises(SourceError, match=rf"rank_pattern in {ADAPTER_NAME} has '\(q', which is not a regular"):
        patterns.check("rank_pattern", "(q")


@pytest.mark.parametrize(
    "pattern", ["(?:x_proj){e<=1}", "[[:alpha:]]_proj", r"\p{L}_proj", "(?<name>q)_proj", "(?r)q_proj"]
)
def test_what_another_library_reads_in_another_way_is_refused(pattern: str) -> None:
    """PEFT matches with `re`."""
    with pytest.raises(SourceError, match="alpha_pattern"):
        Patterns(ADAPTER_NAME).check("alpha_pattern", pattern)
