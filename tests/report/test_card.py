"""The card of a result keeps what the source's card said, and says truly what was done."""

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard
from hypothesis import given
from hypothesis import strategies as st

from sharding import job
from sharding.core.values import RepoRef
from sharding.desk.history import History
from sharding.formats.model_card import parse_card
from sharding.loading.costs import ClassicCost, Comparison, Prediction, Verdict
from sharding.localhub.cards import find_errors, find_warnings, read_metadata
from sharding.page.result_panels import Places, details_panel
from sharding.report.card import TAGS, Links, write_card
from sharding.report.comparison import summarize_comparison
from sharding.report.events import event_json
from sharding.report.schema import Report, parse_report
from sharding.verify.trust import Trust
from tests import models
from tests.localhub.conftest import Server

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


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("card")
    models.save("llama", folder / "source", "10GB")
    *_, last = job.shard(str(folder / "source"), str(folder / "out"), "50kB")
    assert isinstance(last, Report)
    return last


def metadata(card: str) -> dict[str, Any]:
    assert find_errors(card) == [] and find_warnings(card) == []
    found = read_metadata(card)
    assert isinstance(found, dict)
    assert ModelCard(card).data.to_dict().keys() >= found.keys() - {"model-index"}
    return found


def test_a_folder_with_the_name_of_a_repo_is_called_a_folder(report: Report) -> None:
    source = replace(report.source, kind="folder", repo_id="meta-llama/Llama-3.1-8B")
    card = write_card(replace(report, source=source), parse_card(""), Links(), is_private=False)
    assert "\nThis is a copy of the folder `meta-llama/Llama-3.1-8B` in " in card and "base_model" not in card
    based = replace(source, base=RepoRef("folder", "mistralai/Mistral-7B", "1"))
    card = write_card(replace(report, source=based), parse_card(""), Links(), is_private=False)
    assert "come from the folder `mistralai/Mistral-7B`, the model that was trained" in card


def test_every_metadata_key_of_the_source_is_kept_and_the_copy_is_marked(report: Report) -> None:
    before = yaml.safe_load(SOURCE_CARD.split("---")[1].replace("- no", "- 'no'").replace("2024-05-01", "'2024-05-01'"))
    after = metadata(write_card(report, parse_card(SOURCE_CARD), Links("https://hub/a/b"), is_private=False))
    assert before.keys() <= after.keys()
    changed = {key for key, given in before.items() if after[key] != given}
    assert changed == {"license_link", "base_model", "tags"}
    assert after["base_model"] == report.source.repo_id
    assert after["license_link"] == f"https://hub/a/b/blob/{report.source.revision}/LICENSE.md"
    assert after["tags"] == ["finetuned", *TAGS]
    assert after["language"] == ["en", "no"]


def test_an_absolute_license_link_stays_and_a_folder_has_no_base_model(report: Report) -> None:
    card = "---\nlicense: other\nlicense_link: https://example.org/license\n---\n"
    after = metadata(write_card(report, parse_card(card), Links("https://hub/a/b"), is_private=False))
    assert after["license_link"] == "https://example.org/license"
    local = metadata(write_card(report, parse_card(SOURCE_CARD), Links(), is_private=False))
    assert (local["base_model"], local["license_link"]) == ("somebody/older", "LICENSE.md")


def test_the_text_of_the_source_stands_below_once_however_often_it_is_sharded(report: Report) -> None:
    once = write_card(report, parse_card(SOURCE_CARD), Links(), is_private=False)
    twice = write_card(report, parse_card(once), Links(), is_private=False)
    assert once.count("A [relative link](docs/more.md)") == twice.count("A [relative link](docs/more.md)") == 1
    assert once.count("## How to load it") == twice.count("## How to load it") == 1
    assert metadata(twice)["tags"] == ["finetuned", *TAGS]


def test_a_gated_or_private_source_is_explained(report: Report) -> None:
    card = write_card(report, parse_card(""), Links("https://hub/a/b"), is_private=True)
    assert "gated or private" in card
    assert "gated or private" not in write_card(report, parse_card(""), Links("https://hub/a/b"), is_private=False)


@given(st.text(max_size=300), st.booleans())
def test_any_text_as_a_source_card_gives_a_card_that_the_hub_takes(report: Report, text: str, fenced: bool) -> None:
    source = f"---\n{text}\n---\nbody" if fenced else text
    card = write_card(report, parse_card(source), Links("https://hub/a/b"), is_private=False)
    before = None
    try:
        if not find_errors(source):
            before = read_metadata(source)
    except ValueError:
        pass
    if before is None or isinstance(before, dict) and not find_errors(source):
        assert find_errors(card) == []


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
    assert "gated or private" in card
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
    assert classic["peak_anon_bytes"] > 100_000_000  # it imports torch, if nothing else
    assert "| classic: load, save, load again |" in card
    assert classic["disk_bytes"] >= found["source"]["total_bytes"]
    assert classic["seconds"] > 0

    # What the job tells on its way, and what lies in the repo, is what the page shows.
    history = History()
    for event in events:
        history.take(json.loads(json.dumps(event_json(event))), 0.0)
    assert history.loads == (4, 4)
    assert found["comparison"]["verdict"]["sentence"] in history.log[-3]
    panel = details_panel(parse_report(json.dumps(found)), Places("me/copy", "", "", None), Trust("claims", ()))
    assert found["comparison"]["verdict"]["sentence"] in unescape(panel)
    assert "<svg" in panel
    assert "This job compared with load-and-save" in panel
    folded = re.findall(r"<summary>The numbers</summary>(.*?)</details>", panel, re.DOTALL)
    assert len(folded) == 1 and "Sharded copy" in folded[0] and panel.index("<svg") < panel.index(folded[0])


def test_a_comparison_that_could_not_be_made_is_told_as_a_prediction(report: Report) -> None:
    verdict = Verdict("no-difference", None, "Predicted, not measured: about the same.")
    half = Prediction(10**9, 10**9)
    nothing_loaded = Comparison(
        "from_pretrained", None, True, None, (), (), verdict, (half, half), "a machine", "The disk is full.",
        ClassicCost(None, 2 * 10**9, 3 * 10**9, "The disk is full."),
    )  # fmt: skip
    told = replace(report, comparison=summarize_comparison(nothing_loaded))
    panel = details_panel(told, Places("me/copy", "", "", None), Trust("claims", ()))
    assert "Predicted, not measured" in panel
    assert "Its memory and disk are predictions: The disk is full." in " ".join(panel.split())
    assert "<svg" not in panel


def test_metadata_that_a_hub_does_not_take_stands_in_the_text_and_the_job_ends_well(
    served: Callable[..., Server],
    tmp_path: Path,
) -> None:
    server = served()
    folder = models.save("llama", tmp_path / "source", "10GB")
    (folder / "README.md").write_text("---\nlicense: made-up-by-me\n---\nMine.\n")
    for _ in job.shard(str(folder), "alice/copy", "50kB", endpoint=server.address, token="hf_alice"):
        pass
    card = Path(server.api().hf_hub_download("alice/copy", "README.md", local_dir=tmp_path / "down")).read_text()
    assert "license" not in metadata(card)
    assert "license: made-up-by-me" in card and "Mine." in card
