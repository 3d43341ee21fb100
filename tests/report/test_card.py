"""The card of a result keeps what the source's card said, and says truly what was done."""

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding import job
from sharding.core.origin import Place
from sharding.desk.jobs import History
from sharding.formats.model_card import parse_card
from sharding.localhub.cards import find_errors, read_metadata
from sharding.page.result_panels import Places, details_panel
from sharding.report.card import TAGS, write_card
from sharding.report.report import event_json
from sharding.report.schema import Report, parse_report
from sharding.verify.trust import Trust
from tests import models
from tests.localhub.conftest import Server
from tests.report.results import FOLDER, checkpoint, made, of

SOURCE_CARD = """---
license: other
license_name: our-license
license_link: LICENSE.md
language:
- en
- no
base_model: somebody/older
tags: finetuned
inference: false
date: 2024-05-01
model-index:
- name: mine
  results:
  - task: {type: text-generation}
    dataset: {type: d, name: D}
    metrics: [{type: acc, value: 0.5}]
---

# Mine

A [relative link](docs/more.md) and a table.
"""
REPORT, HUB = made().report, "https://hub"


def card(report: Report = REPORT, before: str = "") -> str:
    return write_card(report, parse_card(before), HUB, None, is_private=False)


def metadata(card: str) -> dict[str, Any]:
    assert find_errors(card) == []
    found = read_metadata(card)
    assert isinstance(found, dict)
    assert ModelCard(card).data.to_dict().keys() >= found.keys() - {"model-index"}
    return found


def test_every_metadata_key_of_the_source_is_kept_and_the_copy_is_marked() -> None:
    before = yaml.safe_load(SOURCE_CARD.split("---")[1].replace("- no", "- 'no'").replace("2024-05-01", "'2024-05-01'"))
    after = metadata(card(before=SOURCE_CARD))
    assert before.keys() <= after.keys()
    changed = {key for key, given in before.items() if after[key] != given}
    assert changed == {"license_link", "base_model", "tags"}
    assert (after["base_model"], after["tags"], after["language"]) == ("acme/model", ["finetuned", *TAGS], ["en", "no"])
    local = metadata(card(made(source=checkpoint(FOLDER)).report, SOURCE_CARD))
    assert (local["base_model"], local["license_link"]) == ("somebody/older", "LICENSE.md")


def test_a_relative_link_to_the_licence_leads_to_the_commit_of_the_repo_that_it_is_from() -> None:
    bases = Place("hub", "me/base", "b" * 40, role="base"), Place("folder", "base", "1", role="base")
    trained, of_folder = (of(REPORT, beside=(base,)) for base in bases)
    for link in ("LICENSE.md", "./LICENSE.md", "/LICENSE.md", "https://example.org/license"):
        before = (
            f"---\nlicense: other\nlicense_link: {link}\nbase_model: some/body\nbase_model_relation: quantized\n---\n"
        )
        kept = link if ":" in link else ""
        told = metadata(card(before=before))
        assert told["license_link"] == (kept or f"{HUB}/acme/model/blob/{'a' * 40}/LICENSE.md")
        assert (told["base_model"], told["base_model_relation"]) == ("acme/model", "quantized")
        told = metadata(card(trained, before))
        assert told["license_link"] == (kept or f"{HUB}/me/base/blob/{'b' * 40}/LICENSE.md")
        assert (told["base_model"], told.get("base_model_relation")) == ("me/base", None)
        told = metadata(card(of_folder, before))
        assert (told["license_link"], told["base_model"]) == (link, "some/body")


def test_the_text_of_the_source_stands_below_once_however_often_it_is_sharded() -> None:
    once = card(before=SOURCE_CARD)
    twice = card(before=once)
    for part in ("A [relative link](docs/more.md)", "## How to load it"):
        assert once.count(part) == twice.count(part) == 1
    assert metadata(twice)["tags"] == ["finetuned", *TAGS]


@settings(max_examples=25)
@given(st.text(max_size=300), st.booleans())
def test_any_text_as_a_source_card_gives_a_card_that_the_hub_takes(text: str, fenced: bool) -> None:
    source = f"---\n{text}\n---\nbody" if fenced else text
    before = None
    try:
        if not find_errors(source):
            before = read_metadata(source)
    except ValueError:
        pass
    if before is None or isinstance(before, dict) and not find_errors(source):
        assert find_errors(card(before=source)) == []


@pytest.mark.usefixtures("warm_processes")
@pytest.mark.parametrize("rounds", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_a_result_on_the_hub_links_to_the_commit_it_was_made_from_and_shows_its_comparison(
    rounds: int, served: Callable[..., Server], tmp_path: Path
) -> None:
    server = served()
    folder = models.save("llama", tmp_path / "source", "10GB", layers=2)
    (folder / "README.md").write_text(SOURCE_CARD.replace("- no\n", ""))
    (folder / "LICENSE.md").write_text("Do what you like.\n")
    api = server.api()
    api.create_repo("alice/mine", private=True)
    commit = api.upload_folder(folder_path=folder, repo_id="alice/mine")
    place = {"endpoint": server.address, "token": "hf_alice"}
    events = list(job.shard("alice/mine", "alice/copy", "30kB", compare_rounds=rounds, **place))
    assert [type(event).__name__ for event in events[-2:]] == ["Published", "Report"]
    down = Path(api.snapshot_download("alice/copy", local_dir=tmp_path / "down"))
    card = (down / "README.md").read_text()
    assert f"{server.address}/alice/mine/tree/{commit.oid}" in card
    assert metadata(card)["license_link"] == f"{server.address}/alice/mine/blob/{commit.oid}/LICENSE.md"
    assert metadata(card)["base_model"] == "alice/mine"
    assert api.model_info("alice/copy").card_data.license == "other"  # type: ignore[union-attr]
    assert ".from_pretrained('alice/copy'" in card

    found = json.loads((down / "sharding_report.json").read_text())
    assert set(found["files"]) <= set(api.list_repo_files("alice/copy"))
    if not rounds:
        assert found["comparison"] is None and "sharding_comparison" not in card
        return
    assert found["comparison"]["measured"] is True
    assert found["comparison"]["verdict"]["sentence"].split(":")[0] in card
    assert found["comparison"]["original"]["logits_sha256"] == found["comparison"]["sharded"]["logits_sha256"]
    assert "(sharding_comparison.svg)" in card
    ET.fromstring((down / "sharding_comparison.svg").read_text())
    classic = found["comparison"]["classic"]
    assert classic["peak_anon_bytes"] > 0
    assert "| classic: load, save, load again |" in card
    assert classic["disk_bytes"] >= found["source"]["total_bytes"]
    assert classic["seconds"] > 0

    # What the job tells on its way, and what lies in the repo, is what the page shows.
    history = History()
    for event in events:
        history.take(json.loads(json.dumps(event_json(event))), 0.0)
    assert history.told.loads == (4, 4)
    assert found["comparison"]["verdict"]["sentence"] in history.told.log[-3]
    panel = details_panel(parse_report(json.dumps(found)), Places("me/copy", "", ""), Trust("claims", ()))
    assert found["comparison"]["verdict"]["sentence"] in unescape(panel)
    folded = re.findall(r"<summary>The numbers</summary>(.*?)</details>", panel, re.DOTALL)
    assert len(folded) == 1 and "Sharded copy" in folded[0] and panel.index("<svg") < panel.index(folded[0])
