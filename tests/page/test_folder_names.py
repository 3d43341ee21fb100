"""A folder with the name of somebody's repo is called a folder, wherever a result or a plan is shown."""

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from sharding import job
from sharding.core.options import Options
from sharding.core.text import source_name
from sharding.core.values import RepoRef
from sharding.drawing.map_svg import draw_plan
from sharding.formats.model_card import parse_card
from sharding.page.result_panels import Places, details_panel, result_panel
from sharding.report.card import Links, write_card
from sharding.report.schema import Report, parse_report
from sharding.verify.trust import Level, Trust
from tests.conftest import random_tensors, write_checkpoint

NAMES = ["gpt2", "meta-llama/Llama-3.1-8B", "a/b/c"]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("in")
    source = write_checkpoint(folder / "in", {"model.safetensors": random_tensors(2)}, False)
    *_, _ = job.shard(str(source), str(folder / "out"), "60kB")
    return parse_report((folder / "out/sharding_report.json").read_bytes())


def text_of(html: str) -> str:
    return " ".join(unescape(re.sub("<[^>]+>", " ", html)).split())


@pytest.mark.parametrize("name", NAMES)
def test_a_result_of_a_folder_never_stands_under_the_name_of_a_repo_alone(report: Report, name: str) -> None:
    told = replace(report, source=replace(report.source, kind="folder", repo_id=name))
    levels: tuple[Level, ...] = ("made-here", "read-now", "fits", "claims")
    for level in levels:
        trust = Trust(level, ())
        panels = text_of(result_panel(told, trust, Places("a/copy", "", "", None))) + text_of(
            details_panel(told, Places("a/copy", "", "", None), trust)
        )
        assert f"the folder {name}" in panels
        assert panels.count(name) == panels.count(f"the folder {name}"), level
    base = replace(told, source=replace(told.source, base=RepoRef("folder", name, "1")))
    card = write_card(base, parse_card(""), Links(), is_private=False)
    assert f"a copy of the folder `{name}`" in card and f"come from the folder `{name}`" in card
    assert "base_model" not in card


@pytest.mark.parametrize("name", NAMES)
def test_a_repo_is_called_by_its_name(report: Report, name: str) -> None:
    assert (source_name("hub", name), source_name("folder", name)) == (name, f"the folder {name}")


def test_the_map_of_a_plan_calls_a_folder_a_folder(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "in", {"model.safetensors": random_tensors(2)}, False)
    checkpoint, plan = job.plan(str(source), Options("60kB"))
    for name in NAMES:
        named = replace(checkpoint, source=replace(checkpoint.source, repo_id=name))
        assert f"the folder {name}: " in unescape(draw_plan(named, plan))
