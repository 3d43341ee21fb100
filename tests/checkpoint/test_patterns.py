"""The regular expressions of a stranger's adapter are matched as Python matches them, and never for long."""

import re
from collections.abc import Iterator

import psutil
import pytest

from sharding.checkpoint import patterns as room
from sharding.checkpoint.patterns import Patterns
from sharding.core.errors import SourceError
from sharding.formats.peft_config import ADAPTER_NAME, parse_config
from tests.promises import promise

LAYERS = [f"model.layers.{number}.self_attn.{name}_proj" for number in range(12) for name in "qkvo"]
SWIFT = r"^(model.language_model(?=\.).*\.(?:q_proj|v_proj))$"
"""As ms-swift writes it into the adapter of every model with a vision tower."""


@pytest.fixture
def patterns() -> Iterator[Patterns]:
    with Patterns(ADAPTER_NAME) as patterns:
        patterns.expect(LAYERS)
        yield patterns


PATTERNS = [
    *(r".*\.(q|v)_proj", r"^(?!.*layers\.1\.).*q_proj", r"(?i)MODEL.*Q_proj", r"model\.layers\.(?P<idx>\d+)\..*"),
    *(r"(?<=x)a|.*[[:o]_proj", r"(?:x_proj){e<=1}", SWIFT, ""),
]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_pattern_matches_a_whole_name_as_in_python(patterns: Patterns, pattern: str) -> None:
    patterns.check("target_modules", pattern)
    for name in [*LAYERS, "model.language_model.layers.0.q_proj", "", "line\nbreak", "ümlaut"]:
        own = re.fullmatch(pattern, name)
        assert patterns.match(pattern, name) == (None if own is None else (own.groupdict().get("idx"),))


@promise("docs/security.md#stop-the-page-or-fill-its", "docs/formats.md#limits", "docs/security.md#what-is-trusted")
@pytest.mark.parametrize("pattern", [r"(a|aa)+b", r"(?:a|aa)*[bd]", r"(.|..)*(0|x)"])
def test_a_pattern_that_takes_years_is_refused_in_time(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "PATTERNS_SECONDS", 0.3)
    with Patterns(ADAPTER_NAME) as patterns:
        with pytest.raises(SourceError, match=rf"{ADAPTER_NAME} take over 0.3 s") as refusal:
            patterns.match(pattern, "a" * 200 + "c")
        assert pattern in str(refusal.value)
        assert patterns._child and patterns._child.poll() is not None


def test_all_patterns_of_an_adapter_share_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MAX_MATCHES", 100)
    with Patterns(ADAPTER_NAME) as patterns, pytest.raises(SourceError, match="too many patterns"):
        for number in range(3):
            for name in LAYERS:
                patterns.match(f".*{number}.*", name)


@promise("docs/security.md#stop-the-page-or-fill-its")
@pytest.mark.parametrize("pattern", ["a{5000000}", "(?:a{65535}){65535}", "(x{2,1001})+", "a{1001,}"])
def test_huge_repeats_are_refused_before_anything_is_compiled(pattern: str) -> None:
    for key, value in (("target_modules", pattern), ("rank_pattern", {pattern: 1}), ("modules_to_save", [pattern])):
        with pytest.raises(SourceError, match=rf"{key}.* repeats more than 1,000 times"):
            parse_config({"peft_type": "LORA", key: value})


@pytest.mark.parametrize(
    "pattern", ["(" * 4000 + ")" * 4000, "(?:(?:a{1000}){1000}){1000}", "(?:[^a]|b{900}){900}" * 200]
)
def test_no_pattern_takes_memory_or_time_beyond_the_limits(pattern: str) -> None:
    """Whether it is refused or not, the process that matches it stays small."""
    with Patterns(ADAPTER_NAME) as patterns:
        try:
            patterns.check("target_modules", pattern)
            patterns.match(pattern, "a" * 2000)
        except SourceError as error:
            assert "is not a regular expression" in error.message or "take over" in error.message
        child = patterns._child
        if child and child.poll() is None:
            assert psutil.Process(child.pid).memory_info().rss < 300e6
    assert child and child.poll() is not None


def test_what_is_no_regular_expression_is_named_with_its_key(patterns: Patterns) -> None:
    for usual in (".*q_proj", r"(?:.*?(?:language|text).*?(?:q_proj|\d+)).*?", r"layers\.[\d]{1,}\.mlp", r"(?i)Q_PROJ"):
        patterns.check("target_modules", usual)
    with pytest.raises(SourceError, match=rf"rank_pattern in {ADAPTER_NAME} has '\(q', which is not a regular"):
        patterns.check("rank_pattern", "(q")
