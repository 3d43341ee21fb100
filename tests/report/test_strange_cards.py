"""The card of a source is a stranger's: what cannot be read of it costs little, and the copy is made all the same."""

import json
from pathlib import Path
from typing import Any

import pytest

from sharding.core.limits import MAX_METADATA_BYTES, MAX_METADATA_DEPTH
from sharding.formats.model_card import parse_card
from sharding.localhub.cards import find_errors, read_metadata
from sharding.report.card import TAGS, write_card
from tests.commands import invoke
from tests.promises import promise
from tests.report.results import made

BOMB = "a0: &a0 {k: v}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 6)}], k{n}: v}}\n" for n in range(1, 12)
)
"""Each line has all of the one before six times."""

REPEATS, TYPES, NO_YAML = "anchors, aliases", "uses tags", "is not valid YAML"

MANY = 2000
"""The most values here: as many as are taken otherwise need seconds."""

UNREAD = {
    "merge-keys": (BOMB, REPEATS),
    "merge-key": ("<<: {license: mit}", REPEATS),
    "alias": ("license: &l mit\nname: *l", REPEATS),
    "date": ("license: mit\ndate: !!timestamp abc", TYPES),
    "number": ('license: !!int ""', TYPES),
    "truth": ("inference: !!bool maybe", TYPES),
    "binary": ("license: !!binary x", TYPES),
    "control": ("license: m\x07it", NO_YAML),
    "surrogate": (r'license_link: "\uD800LICENSE"', "not a character"),
    "surrogate-as-key": (r'"\uDFFF": mit', "not a character"),
    "unclosed": ("tags: [a, b", NO_YAML),
    "list-as-key": ("? [a, b]\n: c", NO_YAML),
    "list": ("- license", "is not a list of keys"),
    "deep": ("tags: " + "[" * 100_000, "levels"),
    "values": (f"tags: [{'a, ' * MANY}]", "values"),
    "long": (f"license: {'m' * MAX_METADATA_BYTES}", "larger than 500"),
}


@promise("docs/security.md#delay-a-job-with-the-metadata")
@pytest.mark.parametrize(("metadata", "problem"), UNREAD.values(), ids=UNREAD)
def test_metadata_that_cannot_be_read_is_left_out(metadata: str, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sharding.formats.model_card.MAX_METADATA_VALUES", MANY)
    card = parse_card(f"---\n{metadata}\n---\nWords about a model.\n")
    assert (card.metadata, card.text) == ({}, "Words about a model.\n")
    assert problem in card.problem


def test_the_copy_is_made_without_it_and_that_is_said_before_any_byte_moves(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "README.md").write_text(f"---\n{BOMB}---\nWords about a model.\n")
    done = invoke("shard", checkpoint, tmp_path / "out", "-s", "60kB", "--events")
    assert done.exit_code == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    (told,) = (number for number, event in enumerate(events) if event["event"] == "planned")
    assert "The metadata of the source's README.md is left out of the copy: it uses anchors" in str(events[told])
    assert not [event for event in events[:told] if event["event"] == "progress"]
    card = (tmp_path / "out/README.md").read_text()
    assert read_metadata(card) == {"tags": list(TAGS)} and "Words about a model." in card


def kept(metadata: str) -> dict[str, Any]:
    """What the card of a copy has of `metadata`. A Hub takes it."""
    card = write_card(made().report, parse_card(f"---\n{metadata}\n---\n"), "", None, is_private=False)
    assert find_errors(card) == []
    found = read_metadata(card)
    assert isinstance(found, dict)
    return found


def test_dates_and_numbers_that_could_not_be_written_again_are_kept_as_they_stand() -> None:
    texts = {"date": "2024-05-01", "never": "2024-99-99", "time": "1:20", "language": "no", "mode": "0777"}
    texts |= {"digits": "9" * 5000, "hexadecimal": "0x" + "f" * 5000, "sixties": "1" + ":1" * 5000}
    numbers = {"whole": 12, "real": 0.5, "small": 1e-05, "true": True, "none": None}
    written = {"whole": "12", "real": ".5", "small": "1e-5", "true": "true", "none": "~"}
    found = kept("\n".join(f'"{key}": {text}' for key, text in (texts | written).items()))
    assert found.items() >= (texts | numbers).items()


TRUTHS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
NOTHINGS = {"null": None, "Null": None, "NULL": None, "~": None}
TEXTS = {text: text for text in ("yes", "Off", "tRUE", "nULL", "1e999999", "-1.5e+999999", ".inf", "-.INF", ".nan")}


def test_truths_are_those_of_yaml_1_2_and_a_hub_takes_what_is_no_finite_number() -> None:
    values = TRUTHS | NOTHINGS | TEXTS
    found = kept("\n".join(f'"key {text}": {text}' for text in values))
    assert found.items() >= {f"key {text}": value for text, value in values.items()}.items()


def test_a_card_from_any_editor_is_read_and_one_that_never_ends_its_metadata_has_none() -> None:
    for card in ("---\r\nlicense: mit\r\n---\r\nText", "\n---\nlicense: mit\n---\nText"):
        assert parse_card(card).metadata == {"license": "mit"}
    card = parse_card("---\nlicense: mit\n")
    assert (card.metadata, card.text, card.problem) == ({}, "---\nlicense: mit\n", "")


@promise("docs/formats.md#limits")
@pytest.mark.parametrize("more", [0, 1])
def test_metadata_are_read_up_to_their_bounds_and_not_a_byte_or_a_level_further(more: int) -> None:
    text = "license: " + "m" * (MAX_METADATA_BYTES - len("license: \n") + more) + "\n"
    levels = MAX_METADATA_DEPTH - 1 + more
    for metadata in (text, f"tags: {'[' * levels}{']' * levels}\n"):
        assert bool(parse_card(f"---\n{metadata}---\n").metadata) == (not more)
