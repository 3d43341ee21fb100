"""The goal that merges a LoRA: its two fields, the hatched map, and the certificate of what comes of it."""

import re

import pytest
from playwright.sync_api import expect

from tests.page.conftest import Publish, Visit, enter, model, settled, start_job
from tests.page.site import Site, answer_in, call, choices, copy_name
from tests.page.sources import LAYERS, save_lora, save_plain

CHANGED, TENSORS = 2 * LAYERS, 4 * LAYERS + 1


@pytest.fixture(scope="module")
def plain(publish: Publish) -> str:
    return publish(save_plain, "plain")


@pytest.fixture(scope="module")
def lora(publish: Publish) -> str:
    return publish(save_lora, "lora")


def test_a_merge_goes_from_its_goal_to_its_certificate(home: Site, visit: Visit, plain: str, lora: str) -> None:
    page = visit(home)
    field = page.locator("#adapter :is(input, textarea)")
    expect(field).to_be_hidden()
    page.locator("#goals .card", has_text="Merge my LoRA").click()
    expect(field).to_be_visible()
    enter(model(page), plain)
    expect(page.locator("#repo-message")).to_contain_text("Now name your adapter.")
    expect(page.locator("#start")).not_to_be_visible()
    enter(field, lora)
    expect(page.locator("#summary")).to_contain_text(f"{CHANGED} of {TENSORS} tensors change")
    expect(page).to_have_url(re.compile(rf"goal=merge-lora&size=[\w-]+&adapter={lora}"))
    # No other goal uses it.
    page.locator("#goals .chip", has_text="Smaller files").click()
    expect(field).to_be_hidden()
    expect(page.locator("#summary")).not_to_contain_text("change")
    expect(page).not_to_have_url(re.compile("adapter="))
    page.locator("#goals .chip", has_text="Merge my LoRA").click()
    expect(field).to_have_value(lora)
    expect(page.locator("#picture .legend")).to_contain_text(f"{CHANGED} of {TENSORS} tensors change")
    settled(page)
    hatched = page.locator("#picture .strip.after path.changes")
    expect(hatched).to_have_count(1)
    assert (hatched.get_attribute("d") or "").count("z") == CHANGED
    pattern = page.locator("#picture .hatch").get_attribute("id")
    assert f"#{pattern}" in hatched.evaluate("path => getComputedStyle(path).fill")
    expect(page.locator("#picture .strip.after rect[data-n*=', changes']")).to_have_count(CHANGED)
    # A merge computes other numbers than its base, so neither the loads nor load-and-save are compared.
    expect(page.locator("#measure input")).not_to_be_visible()
    expect(page.locator("#shards")).not_to_contain_text("Load and save")
    start_job(page, copy_name("merged"))
    expect(page.locator(".job .route")).to_contain_text("bob/plain, with the adapter bob/lora merged")
    expect(page.locator("#result h2.state")).to_contain_text(
        re.compile(r"equal .*plain@\w+, with the adapter .*lora@\w+ merged, bit for bit")
    )
    expect(page.locator("#result")).to_contain_text(f"The adapter changes {CHANGED} of {TENSORS} tensors")
    expect(page.locator("#result a", has_text="lora").first).to_have_attribute("href", re.compile("/bob/lora/tree/"))
    expect(page.locator("#result")).to_contain_text("It needs no PEFT and no adapter.")
    expect(page.locator("#result-map .legend")).to_contain_text("tensors change")
    assert not page.complaints  # type: ignore[attr-defined]


def test_the_plan_of_a_merge_is_there_for_programs_and_nothing_but_a_repo_of_the_hub_is_an_adapter(
    space: Site, plain: str, lora: str
) -> None:
    def said(adapter: str) -> str:
        return call(space, "plan", [plain, *choices("plan", max_shard_size="30kB", adapter=adapter)])[1]

    (merge,) = answer_in(said(lora))["made"]
    assert (merge["changed"], merge["of"], merge["by"]["repo_id"]) == (CHANGED, TENSORS, lora)
    for name in ("/etc", "./lora", "s3://bucket/lora", "https://example.org/bob/lora"):
        assert "event: error" in said(name) and "weight_map" not in said(name), name
