"""The card of a source is a stranger's: what cannot be read of it costs little, and the copy is made all the same."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from sharding.core.limits import MAX_CARD_BYTES, MAX_METADATA_BYTES, MAX_METADATA_DEPTH
from sharding.formats.model_card import parse_card
from tests.commands import invoke
from tests.hubs import TOKEN, download
from tests.inhouse import InHouse, hub_in_house
from tests.promises import promise

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


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InHouse]:
    with hub_in_house(tmp_path / "hub") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield hub


def with_card(checkpoint: Path, card: str) -> str:
    (checkpoint / "README.md").write_bytes(card.encode())
    return str(checkpoint)


def front_matter(folder: Path) -> dict[str, object]:
    found = yaml.safe_load((folder / "README.md").read_text().split("---\n")[1])
    assert isinstance(found, dict)
    return found


@promise("docs/security.md#delay-a-job-with-the-metadata")
@pytest.mark.parametrize(("metadata", "problem"), UNREAD.values(), ids=UNREAD)
def test_metadata_that_cannot_be_read_is_named_and_the_copy_is_made_without(
    metadata: str, problem: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.formats.model_card.MAX_METADATA_VALUES", MANY)
    source = with_card(checkpoint, f"---\n{metadata}\n---\nWords about a model.\n")
    done = invoke("shard", source, str(tmp_path / "out"), "-s", "60kB")
    assert done.exit_code == 0, done.stderr
    said = " ".join(done.stderr.split())
    assert "The metadata of the source's README.md is left out of the copy" in said and problem in said
    assert list(front_matter(tmp_path / "out")) == ["tags"]
    assert "Words about a model." in (tmp_path / "out/README.md").read_text()
    codes = [one["code"] for one in json.loads((tmp_path / "out/sharding_report.json").read_text())["plan"]["findings"]]
    assert "card-unread" in codes


def test_dates_and_numbers_that_could_not_be_written_again_are_kept_as_they_stand(
    checkpoint: Path, tmp_path: Path
) -> None:
    texts = {"date": "2024-05-01", "never": "2024-99-99", "time": "1:20", "language": "no", "mode": "0777"}
    texts |= {"digits": "9" * 5000, "hexadecimal": "0x" + "f" * 5000, "sixties": "1" + ":1" * 5000}
    numbers = {"whole": 12, "real": 0.5, "small": 1e-05, "true": True, "none": None}
    written = {"whole": "12", "real": ".5", "small": "1e-5", "true": "true", "none": "~"}
    lines = "\n".join(f'"{key}": {text}' for key, text in (texts | written).items())
    source = with_card(checkpoint, f"---\n{lines}\n---\n")
    done = invoke("shard", source, str(tmp_path / "out"), "-s", "60kB")
    assert done.exit_code == 0, done.stderr
    assert front_matter(tmp_path / "out").items() >= (texts | numbers).items()


TRUTHS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
NOTHINGS = {"null": None, "Null": None, "NULL": None, "~": None}
TEXTS = {text: text for text in ("yes", "Off", "tRUE", "nULL", "1e999999", "-1.5e+999999", ".inf", "-.INF", ".nan")}


def test_truths_are_those_of_yaml_1_2_and_a_hub_takes_what_is_no_finite_number(
    hub: InHouse, checkpoint: Path, tmp_path: Path
) -> None:
    values = TRUTHS | NOTHINGS | TEXTS
    lines = "\n".join(f'"key {text}": {text}' for text in values)
    source = with_card(checkpoint, f"---\n{lines}\n---\n")
    done = invoke("shard", source, "alice/made", "-s", "60kB")
    assert done.exit_code == 0, done.stderr
    kept = front_matter(download(hub, "alice/made", tmp_path / "copy"))
    assert kept.items() >= {f"key {text}": value for text, value in values.items()}.items()


def test_a_long_card_is_left_in_the_source(checkpoint: Path, tmp_path: Path) -> None:
    source = with_card(checkpoint, "---\nlicense: mit\n---\n" + "word " * (MAX_CARD_BYTES // 5))
    done = invoke("shard", source, str(tmp_path / "out"), "-s", "60kB")
    assert done.exit_code == 0 and "larger than 1.0 MB" in done.stderr
    assert list(front_matter(tmp_path / "out")) == ["tags"]


def test_it_is_read_before_any_byte_moves(checkpoint: Path, tmp_path: Path) -> None:
    source = with_card(checkpoint, f"---\n{BOMB}---\n")
    done = invoke("shard", source, str(tmp_path / "out"), "-s", "60kB", "--events")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    (told,) = (number for number, event in enumerate(events) if event["event"] == "planned")
    assert "card-unread" in json.dumps(events[told])
    assert not [event for event in events[:told] if event["event"] == "progress"]


@pytest.mark.parametrize(
    "card",
    ["\ufeff---\nlicense: mit\n---\nText", "---\r\nlicense: mit\r\n---\r\nText", "\n---\nlicense: mit\n---\nText"],
    ids=["byte-order-mark", "windows", "empty-line"],
)
def test_a_card_from_any_editor_is_read(card: str, checkpoint: Path, tmp_path: Path) -> None:
    assert invoke("shard", with_card(checkpoint, card), str(tmp_path / "out"), "-s", "60kB").exit_code == 0
    assert front_matter(tmp_path / "out")["license"] == "mit"


def test_a_card_that_never_ends_its_metadata_has_none() -> None:
    card = parse_card("---\nlicense: mit\n")
    assert (card.metadata, card.text, card.problem) == ({}, "---\nlicense: mit\n", "")


def test_as_much_as_is_read_is_read() -> None:
    within = "[" * (MAX_METADATA_DEPTH - 1) + "]" * (MAX_METADATA_DEPTH - 1)
    assert parse_card(f"---\ntags: {within}\n---\n").metadata["tags"]
    assert not parse_card(f"---\ntags: [{within}]\n---\n").metadata


@promise("docs/formats.md#limits")
@pytest.mark.parametrize("more", [0, 1])
def test_a_card_and_its_metadata_are_read_up_to_their_bounds_and_not_a_byte_further(
    checkpoint: Path, tmp_path: Path, more: int
) -> None:
    head = "---\nlicense: mit\n---\nWords."
    source = with_card(checkpoint, head + "x" * (MAX_CARD_BYTES - len(head) + more))
    assert invoke("shard", source, str(tmp_path / "out"), "-s", "60kB").exit_code == 0
    assert (front_matter(tmp_path / "out").get("license") == "mit") == (not more)
    told = json.loads(invoke("inspect", source, "--json").stdout)["findings"]
    planned = json.loads((tmp_path / "out/sharding_report.json").read_text())["plan"]["findings"]
    assert ["card-unread" in {one["code"] for one in found} for found in (planned, told)] == [bool(more), False]
    text = "license: " + "m" * (MAX_METADATA_BYTES - len("license: \n") + more) + "\n"
    assert bool(parse_card(f"---\n{text}---\n").metadata) == (not more)
