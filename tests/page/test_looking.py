"""Looking around, in a real browser: models are named, plans drawn, links read. On a loopback Hub."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.page.conftest import Site, advanced, copy_name, files, start_job

Visit = Callable[..., Page]


def test_a_plan_is_shown_at_once_without_a_login(space: Site, visit: Visit, small: str) -> None:
    page = visit(space)
    model, facts = page.get_by_label("Model", exact=True), page.locator("#facts")
    model.fill(small)
    page.get_by_role("button", name="Show the plan").click()
    expect(facts).to_contain_text("LlamaForCausalLM")
    expect(facts).to_contain_text("apache-2.0")
    expect(facts).to_contain_text("not gated")
    expect(page.locator("#picture .sheet")).to_contain_text("Today 2 files, 240.1 kB")
    expect(page.locator("#summary")).to_contain_text("2 files → 6, largest 40.1 kB")
    expect(page.locator("#start")).to_be_disabled()
    expect(page.locator("#start-message").get_by_role("button", name="Sign in")).to_be_visible()
    # Links and revisions can be pasted.
    for typed in ("https://hf.co/bob/small", "bob/small@main", "  bob/small/tree/main "):
        model.fill("not a repo")
        model.press("Enter")
        expect(page.locator("#facts .repo")).to_have_count(0)
        model.fill(typed)
        model.press("Enter")
        expect(facts).to_contain_text(small)
    # Names are suggested as one types.
    model.fill("not a repo")
    model.press("Enter")
    expect(page.locator("#facts .repo")).to_have_count(0)
    model.fill("")
    model.press_sequentially("bob/smal", delay=150)  # fewer names match at every key
    page.get_by_role("option", name=small).click()
    expect(facts).to_contain_text(small)


def test_changing_a_control_redraws_the_plan_and_nothing_else_and_what_is_wrong_stands_beside_its_field(
    space: Site, visit: Visit, small: str, gated: str
) -> None:
    page = visit(space, f"?repo={small}&size=100kB")
    model, size = page.get_by_label("Model", exact=True), page.get_by_label("Maximum file size")
    expect(files(page)).to_have_count(3)
    page.evaluate("document.querySelector('#facts .repo').marked = true")
    size.fill("50kB")
    size.press("Enter")
    expect(files(page)).to_have_count(6)
    assert page.evaluate("document.querySelector('#facts .repo').marked")
    expect(page).to_have_url(re.compile(r"size=50kB$"))
    advanced(page).get_by_label("As in today's files").check()
    expect(page).to_have_url(re.compile("order=stored$"))
    size.fill("one file")
    size.press("Enter")
    expect(files(page)).to_have_count(1)
    expect(page).to_have_url(re.compile("size=single-file&order=stored$"))
    # What is wrong stands beside the field that it is about.
    budget = page.get_by_label("Where would it run?")
    budget.fill("much")
    budget.press("Enter")
    page.get_by_role("button", name="Show the devices").click()
    expect(page.locator("#devices").get_by_role("alert")).to_contain_text("'much' is not the budget of one device")
    message = page.locator("#repo-message").get_by_role("alert")
    for typed, words in (
        ("not a repo", "'not a repo' is not the name of a repo"),
        (gated, "bob/gated is gated. Accept its terms at"),
        ("bob/nothing-here", "The repo bob/nothing-here does not exist"),
        ("/etc", "'/etc' is not the name of a repo"),
    ):
        model.fill(typed)
        model.press("Enter")
        expect(message).to_contain_text(words)
        expect(page.locator("#plan")).to_be_hidden()
    model.fill(small)
    model.press("Enter")
    expect(message).to_have_count(0)
    size.fill("10 apples")
    size.press("Enter")
    expect(page.locator("#size-message").get_by_role("alert")).to_contain_text("'10 apples' is not a size")


@pytest.mark.thorough
def test_a_variant_is_offered_where_there_is_one_and_kept_to_the_result(
    home: Site, visit: Visit, variants: str, small: str
) -> None:
    page = visit(home, f"?repo={small}&size=13kB&variant=bf16")
    model, choices = page.get_by_label("Model", exact=True), page.locator("#variants")
    expect(page.locator("#repo-message")).to_contain_text("There is no variant 'bf16'. You see the plain weights")
    expect(choices).to_be_hidden()
    advanced(page)
    # One beside the plain weights.
    model.fill(variants)
    model.press("Enter")
    expect(choices.get_by_label("The plain weights")).to_be_checked()
    expect(files(page)).to_have_count(6)
    choices.get_by_label("fp16").check()
    expect(files(page)).to_have_count(3)
    expect(page.locator("#facts")).to_contain_text("F16")
    expect(page.get_by_label("Name of the new repo")).to_have_value("variants-fp16-sharded-13kB")
    expect(page).to_have_url(re.compile("variant=fp16$"))
    # Only the plain weights of a model are placed on devices, and loaded to compare.
    expect(page.get_by_label("Where would it run?")).to_have_count(0)
    expect(page.get_by_label("Load the original and the copy as well")).to_have_count(0)
    assert not page.complaints  # type: ignore[attr-defined]
    page.reload()
    page.complaints.clear()  # type: ignore[attr-defined]  # a page that is left says that its stream broke off
    advanced(page)
    expect(choices.get_by_label("fp16")).to_be_checked()
    start_job(page, copy_name())
    result = page.locator("#result")
    expect(result).to_contain_text(re.compile("bit-identical to bob/variants@[0-9a-f]+, variant fp16"))
    expect(page.locator("#result-details")).to_contain_text("model.fp16-00001-of-00003.safetensors")
    expect(page.locator("#result-details")).to_contain_text("model.fp16*.safetensors")  # no library is named
    assert not page.complaints  # type: ignore[attr-defined]
