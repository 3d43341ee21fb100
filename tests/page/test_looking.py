"""Looking around, in a real browser: models are named, plans drawn, links read. On a loopback Hub."""

import re

from playwright.sync_api import expect

from tests.page.conftest import Visit, advanced, enter, files, model, size
from tests.page.site import Site


def test_a_plan_is_shown_at_once_without_a_login_and_what_is_wrong_stands_beside_its_field(
    space: Site, visit: Visit, small: str, gated: str, variants: str
) -> None:
    page = visit(space)
    facts, named = page.locator("#facts"), page.locator("#facts .repo")
    model(page).fill(small)
    page.get_by_role("button", name="Show the plan").click()
    for words in ("LlamaForCausalLM", "apache-2.0", "not gated"):
        expect(facts).to_contain_text(words)
    expect(page.locator("#picture .sheet")).to_contain_text("Today 2 files, 240.1 kB")
    expect(page.locator("#summary")).to_contain_text("2 → 6 files, largest 40.1 kB")
    expect(page.get_by_role("button", name="Sign in and start")).to_be_enabled()
    # Links can be pasted, and names are suggested as one types.
    enter(model(page), "not a repo")
    expect(named).to_have_count(0)
    enter(model(page), "https://hf.co/bob/small")
    expect(facts).to_contain_text(small)
    enter(model(page), "not a repo")
    expect(named).to_have_count(0)
    model(page).fill("")
    model(page).press_sequentially("bob/smal", delay=150)  # fewer names match at every key
    page.get_by_role("option", name=small).click()
    expect(facts).to_contain_text(small)
    expect(files(page)).to_have_count(6)
    # A control draws the plan again and nothing else.
    page.evaluate("document.querySelector('#facts .repo').marked = true")
    enter(size(page), "100kB")
    expect(files(page)).to_have_count(3)
    assert page.evaluate("document.querySelector('#facts .repo').marked")
    expect(page).to_have_url(re.compile(r"size=100kB$"))
    advanced(page).get_by_label("As in today's files").check()
    expect(page).to_have_url(re.compile("order=stored$"))
    enter(size(page), "one file")
    expect(files(page)).to_have_count(1)
    expect(page).to_have_url(re.compile("size=single-file&order=stored$"))
    # What is wrong stands beside the field that it is about.
    enter(page.get_by_label("Where would it run?"), "much")
    page.get_by_role("button", name="Show the devices").click()
    expect(page.locator("#devices").get_by_role("alert")).to_contain_text("'much' is not the budget of one device")
    message = page.locator("#repo-message").get_by_role("alert")
    enter(model(page), gated)
    expect(message).to_contain_text("bob/gated is gated. Accept its terms at")
    expect(page.locator("#plan")).to_be_hidden()
    enter(model(page), variants)
    expect(facts).to_contain_text(variants)
    expect(message).to_have_count(0)
    enter(size(page), "10 apples")
    expect(page.locator("#size-message").get_by_role("alert")).to_contain_text("'10 apples' is not a size")
    enter(size(page), "13kB")
    expect(files(page)).to_have_count(6)
    page.locator("#variants").get_by_label("fp16").check()
    expect(files(page)).to_have_count(3)
    expect(page).to_have_url(re.compile("variant=fp16$"))
