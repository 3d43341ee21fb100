"""A folder with the name of somebody's repo is called a folder, wherever a result or a plan is shown."""

import re
from dataclasses import replace
from html import unescape

import pytest

from sharding.core.origin import Place
from sharding.drawing.map_svg import draw_plan
from sharding.formats.model_card import parse_card
from sharding.page.result_panels import Places, details_panel, result_panel
from sharding.report.card import write_card
from sharding.verify.trust import Level, Trust
from tests.report.results import FOLDER, checkpoint, made, of

NAMES = ["gpt2", "meta-llama/Llama-3.1-8B", "a/b/c"]
LEVELS: tuple[Level, ...] = ("made-here", "fits", "claims")


@pytest.mark.parametrize("name", NAMES)
def test_a_result_of_a_folder_never_stands_under_the_name_of_a_repo_alone(name: str) -> None:
    told, places = of(made(source=checkpoint(FOLDER)).report, repo_id=name), Places("a/copy", "", "")
    for level in LEVELS:
        trust = Trust(level, ())
        panels = result_panel(told, trust, places) + details_panel(told, places, trust)
        panels = " ".join(unescape(re.sub("<[^>]+>", " ", panels.replace("<wbr>", ""))).split())
        assert f"the folder {name}" in panels
        assert panels.count(name) == panels.count(f"the folder {name}"), level
    told = of(told, beside=(Place("folder", name, "1", role="base"),))
    card = write_card(told, parse_card(""), "", None, is_private=False)
    assert f"a copy of the folder `{name}`" in card and f"come from the folder `{name}`" in card
    assert "base_model" not in card
    assert (Place("hub", name).words, Place("folder", name).words) == (name, f"the folder {name}")


def test_the_map_of_a_plan_calls_a_folder_a_folder() -> None:
    cut = made(source=checkpoint(FOLDER))
    for name in NAMES:
        named = replace(cut.source, source=replace(FOLDER, repo_id=name))
        assert f"the folder {name}: " in unescape(draw_plan(named, cut.plan))
