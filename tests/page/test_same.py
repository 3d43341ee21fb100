""" "Is this copy the same?" for any two repos: in a real browser, over HTTP, and as panels."""

import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect
from safetensors.numpy import load_file, save_file

from sharding.core.origin import Place
from sharding.core.verification import Difference, Evidence, Verification
from sharding.desk.jobs import JobRecord, JobRequest, Told, status_of
from sharding.page.comparison_panels import differences_panel, likeness_panel
from sharding.verify.structure import Claims, Contrast, Likeness, Verdict, sentence_of
from sharding.verify.trust import Level, Trust
from tests.conftest import in_two_files, random_tensors
from tests.page.conftest import Publish, Visit, enter, fits
from tests.page.site import Site, answer_in, call
from tests.page.sources import save_one
from tests.page.test_for_everybody import THEMES, axe, in_theme, tab_to, violations
from tests.promises import promise
from tests.test_evil_names import Tags

LONG_NAME = "model.layers.0." + "a-part-with-a-long-name." * 8 + "weight"


@pytest.fixture(scope="module")
def tuned(publish: Publish) -> str:
    """A copy of `small` with other numbers in two tensors."""

    def save(folder: Path) -> Path:
        for path in in_two_files(folder).glob("*.safetensors"):
            tensors = load_file(path)
            for name in {"layers.2.weight", "layers.9.weight"} & tensors.keys():
                tensors[name] = tensors[name] + np.float32(0.5)
            save_file(tensors, path, metadata={"format": "pt"})
        return folder

    return publish(save, "tuned")


@pytest.fixture(scope="module")
def other(publish: Publish) -> str:
    """A repo that differs from `small` in each way, with long names in it and in its own name."""
    tensors = random_tensors()
    tensors[LONG_NAME] = tensors.pop("layers.11.weight")
    tensors["layers.2.weight"] = tensors["layers.2.weight"][:7]
    tensors["norm.steps"] = tensors["norm.steps"].astype(np.int32)
    name = "a-copy-with-a-name-that-is-as-long-as-names-of-repos-get-in-real-life-2026-11"
    return publish(lambda folder: save_one(folder, tensors), name)


def verdict(page: Page) -> Any:
    return expect(page.locator("#likeness [role=status]"))


def field(page: Page, name: str) -> Locator:
    return page.locator(f"#{name} :is(input, textarea)")


def compare(site: Site, *names: str, token: str = "", variant: str = "") -> tuple[str, dict[str, Any]]:
    """Call the endpoint as anybody could; return what it said, and its answer if there is one."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    _, said = call(site, "compare", [*names, variant], headers)
    return said, answer_in(said) if "event: complete" in said else {}


def test_a_visitor_who_is_not_signed_in_gets_a_verdict_and_is_offered_to_read(
    space: Site, visit: Visit, small: str, genuine: str
) -> None:
    page = visit(space, "?goal=is-this-copy-the-same")
    expect(page.locator("#choose")).to_have_count(0)
    expect(page.locator("#same").get_by_role("link", name="All goals")).to_have_attribute("href", "./")
    expect(page.locator("#same .goal svg")).to_have_count(1)
    tab_to(page, "Original")
    page.keyboard.type(small)
    tab_to(page, "Copy")
    page.keyboard.type(genuine)
    page.keyboard.press("Enter")
    verdict(page).to_have_text("Same names, shapes and dtypes. Bytes not checked yet.")
    assert page.locator("#likeness .good").count() == 0
    expect(page.locator(".ladder .reached")).to_have_count(1)
    expect(page.locator("#read")).to_be_disabled()
    expect(page.locator("#read-message")).to_contain_text("needs a login")
    expect(page).to_have_url(re.compile(f"\\?compare={small}&with={genuine}$"))


def test_a_link_compares_and_back_leads_to_it_from_the_job_that_read_every_byte(
    home: Site, visit: Visit, small: str, tuned: str
) -> None:
    page = visit(home, f"?compare={small}&with={tuned}")
    verdict(page).to_contain_text("Bytes not checked yet")
    tab_to(page, "Read every byte of both")
    page.keyboard.press("Enter")
    outcome = page.locator("#result")
    expect(outcome.locator(".state")).to_have_text("2 tensors of 14 differ.")
    expect(page.locator("#same, #run")).to_have_count(0)
    pinned = [rf"{name}@[0-9a-f]{{40}}" for name in (small, tuned)]
    expect(outcome.locator(".share-link pre")).to_have_text(re.compile(rf"/\?compare={pinned[0]}&with={pinned[1]}$"))
    expect(outcome.locator(".route")).to_have_text(re.compile(f"{small} at [0-9a-f]{{12}} compared with {tuned} at "))
    assert "not published" not in page.locator("#past").inner_text()
    expect(page).to_have_url(re.compile(rf"/\?compare={pinned[0]}&with={pinned[1]}$"))
    rows = outcome.get_by_role("rowheader")
    assert sorted(rows.all_inner_texts()) == ["layers.2.weight", "layers.9.weight"]
    expect(outcome.locator("tbody")).to_contain_text("0.5")
    heat = outcome.locator("svg.heat")
    expect(heat.locator("title").first).to_have_text("By how much the layers differ: 2 tensors of 14")
    assert heat.locator("rect:not([rx]):not(.h0)").count() == 2
    fills = {heat.locator(f"rect.h{level}").last.evaluate("(it) => getComputedStyle(it).fill") for level in range(5)}
    assert len(fills) == 5
    expect(page.locator("#resume")).to_have_count(0)
    assert not page.complaints  # type: ignore[attr-defined]
    page.go_back()
    page.complaints.clear()  # type: ignore[attr-defined]  # a page that is left says that its stream broke off
    expect(page).to_have_url(re.compile(rf"\?compare={small}&with={tuned}$"))
    kept = page.locator("#likeness")
    expect(kept.locator(".state.bad")).to_have_text("2 tensors of 14 differ.")
    expect(kept.locator("svg.heat rect:not([rx]):not(.h0)")).to_have_count(2)
    expect(kept.locator("tbody")).to_contain_text("0.5")
    expect(page.locator("#compare")).to_have_text("Compare again")
    expect(page.locator("#read")).to_have_count(0)


def test_what_differs_is_named_and_fits_a_phone_in_both_themes_and_axe_finds_nothing(
    home: Site, visit: Visit, small: str, other: str
) -> None:
    page = visit(home, f"?compare={small}")
    expect(field(page, "original")).to_have_value(small)
    expect(page.locator("#likeness")).to_contain_text("Name the original and the copy.")
    enter(field(page, "copied"), "bob/nothing-here")
    expect(page.locator("#likeness").get_by_role("alert")).to_contain_text("bob/nothing-here does not exist")
    expect(page.locator("#read")).to_have_count(0)
    field(page, "copied").fill(other)
    page.locator("#compare").click()
    verdict(page).to_have_text("Not the same: the copy differs from the original in 4 tensors.")
    counts = "1 only in the original", "1 only in the copy", "1 with another shape", "1 with another dtype (I64 → I32)"
    assert tuple(page.locator(".counts li").all_inner_texts()) == counts
    cells = [row.inner_text().split("\t") for row in page.locator("#likeness tbody tr").all()]
    assert ["layers.2.weight", "F32 [5000]", "F32 [7]"] in cells and [LONG_NAME, "—", "F32 [5000]"] in cells
    for theme in THEMES:
        in_theme(page, theme)
        for width in (360, 1440):
            page.set_viewport_size({"width": width, "height": 900})
            assert fits(page)
            table = page.locator("#likeness .scroll")
            assert table.evaluate("(it) => it.scrollWidth <= it.clientWidth"), width
    assert not page.complaints  # type: ignore[attr-defined]
    script = axe()  # where there is no axe-core, this is skipped here
    assert violations(page, script) == []
    page.locator("#read").click()
    page.locator("#outcome svg.heat").wait_for()
    assert violations(page, script) == []


def test_a_program_gets_every_difference_without_a_login(space: Site, small: str, genuine: str, other: str) -> None:
    _, answer = compare(space, small, genuine)
    assert (answer["verdict"], answer["mismatches"], answer["in_same_files"]) == ("same-structure", [], 0)
    assert (answer["trust"]["level"], answer["original"]["repo_id"], answer["tensors"]) == ("fits", small, 14)
    _, answer = compare(space, small, other)
    assert answer["verdict"] == "different" and answer["trust"]["level"] == "contradicted"
    assert {one["tensor"]: one["problem"] for one in answer["mismatches"]} == {
        "layers.2.weight": "it is F32 [7] and should be F32 [5000]",
        "layers.11.weight": "it is missing",
        "norm.steps": "it is I32 [7] and should be I64 [7]",
        LONG_NAME: "it is not in the original",
    }
    said, _ = compare(space, small, 5)  # type: ignore[arg-type]
    assert "event: error" in said and "must be text" in said


def test_a_variant_is_compared_by_its_name_over_http(space: Site, variants: str) -> None:
    assert compare(space, variants, variants)[1]["verdict"] == "same-files"
    answer = compare(space, variants, variants, variant="fp16")[1]
    assert (answer["verdict"], answer["asked"]) == ("converted", {"dtype": "fp32", "variant": "fp16"})


# --- Panels, without a browser


def likeness(verdict: Verdict = "same-structure", **more: Any) -> Likeness:
    sides = Place("hub", "a/b", "1" * 40), Place("hub", "c/d", "2" * 40)
    values = {"variant": "", "asked": {}, "made": (), "tensors": 500, "bytes": 10, "in_same_files": 0}
    return Likeness(verdict, *sides, **{**values, "mismatches": (), "unreached": (), **more})


def panel(of: Likeness, level: Level = "fits", *reasons: str) -> str:
    return likeness_panel(of, Trust(level, (sentence_of(of), *reasons)), "http://hub")


@promise("docs/security.md#get-a-copy-shown-in-green")
def test_only_what_this_page_has_read_is_green() -> None:
    verdicts: tuple[Verdict, ...] = ("different", "converted", "same-structure", "same-files")
    levels: tuple[Level, ...] = ("fits", "unreached", "contradicted", "claims")
    for verdict, level in product(verdicts, levels):
        claimed = likeness(verdict, claims=Claims(500, ()), in_same_files=500 if verdict == "same-files" else 0)
        html = panel(claimed, level)
        assert "good" not in html and html.count('class="reached"') <= 1, (verdict, level)


@pytest.mark.parametrize("level", ["made-here", "read-now"])
def test_what_it_has_read_is_green_and_the_whole_ladder_is_lit(level: Level) -> None:
    html = panel(likeness(), level)
    assert "good" in html and html.count('class="reached"') == 2
    assert "The same: all 500 tensors are identical." in html and "restarts" not in html
    html = likeness_panel(likeness(), Trust(level, (), until="until this Space restarts"), "http://hub")
    assert "10 B, by this page; known until this Space restarts</span>" in html


def test_thousands_of_differences_are_counted() -> None:
    mismatches = tuple(Contrast(f"w{n}", "dtype", "F16", "F32 [1]", "F16 [1]", "F32") for n in range(3000))
    tags = Tags(panel(likeness("different", mismatches=mismatches), "contradicted", "They differ."))
    assert tags.seen.count("tr") == 102 and "and 2,900 more" in tags.text
    assert "shard-my-repo diff a/b@1111" in tags.text


def test_a_reading_with_thousands_of_differences_shows_the_strongest() -> None:
    differences = tuple(Difference(f"layers.{n}.w", 0.5, 0.1, n / 3000, 0.25) for n in range(3000))
    gone = (Difference("gone", note="only in the first"),)
    proof = Verification(3001, 10, 1.0, Evidence("both"), (), differences=(*differences, *gone))
    told = Told(verification=proof)
    record = JobRecord("x", "alice", JobRequest("a/b@1", "c/d@2", kind="verify"), 10, 0.0, "failed")
    html = differences_panel(status_of(record, told), ["layers.0.other.weight"], "http://hub", "http://page/")
    tags = Tags(html)
    assert tags.seen.count("tr") == 102 and "and 2,901 more" in tags.text
    shown = re.findall(r"layers\.(\d+)\.w", tags.text.split("strongest first")[1])
    assert shown[:3] == ["0", "1", "2"] and "only in the first" in tags.text
    assert "http://page/?compare=a/b@1&amp;with=c/d@2<" in html
