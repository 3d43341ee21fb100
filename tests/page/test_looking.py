"""Looking around, in a real browser: models are named, plans drawn, links read. On a loopback Hub."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.localhub.conftest import Server
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


def test_a_link_fills_the_form_in(space: Site, visit: Visit, tiny: str) -> None:
    page = visit(space, f"?repo={tiny}@main&size=70kB&order=stored&strategy=pp:2&dtype=bf16")
    expect(page.get_by_label("Model", exact=True)).to_have_value(f"{tiny}@main")
    expect(page.get_by_label("Maximum file size")).to_have_value("70kB")
    advanced(page)
    expect(page.get_by_label("As in today's files")).to_be_checked()
    expect(page.get_by_role("radio", name="For transformers on several machines")).to_be_checked()
    expect(page.get_by_label("bf16", exact=True)).to_be_checked()
    # Another process asks transformers first.
    expect(page.locator("#shards tbody").last.locator("tr")).to_have_count(2)


@pytest.fixture(scope="module")
def no_plain(hub: Server, variants: str) -> str:
    """A repo of two variants and no plain weights."""
    api = hub.api("hf_bob")
    api.create_repo("bob/no-plain")
    half = hub.ask("GET", f"/{variants}/resolve/main/model.fp16.safetensors").body
    for name in ("ema", "fp16"):
        api.upload_file(path_or_fileobj=half, path_in_repo=f"model.{name}.safetensors", repo_id="bob/no-plain")
    return "bob/no-plain"


@pytest.mark.thorough
def test_a_variant_is_offered_where_there_is_one_and_kept_to_the_result(
    home: Site, visit: Visit, variants: str, no_plain: str, small: str
) -> None:
    page = visit(home, f"?repo={small}&size=13kB&variant=bf16")
    model, choices = page.get_by_label("Model", exact=True), page.locator("#variants")
    expect(page.locator("#repo-message")).to_contain_text("There is no variant 'bf16'. You see the plain weights")
    expect(advanced(page).get_by_label("Where would it run?")).to_be_visible()
    expect(choices).to_be_hidden()
    # Several and no plain weights: one of them is shown.
    model.fill(no_plain)
    model.press("Enter")
    expect(page.locator("#repo-message")).to_contain_text("several variants but no plain weights. You see ema")
    expect(choices.get_by_label("ema")).to_be_checked()
    choices.get_by_label("fp16").check()
    expect(page.locator("#shards")).to_contain_text("model.fp16-00001-of-00003.safetensors")
    expect(page.locator("#repo-message").get_by_role("status")).to_have_count(0)
    model.fill(small)
    model.press("Enter")
    expect(choices).to_be_hidden()
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


@pytest.mark.thorough
def test_overflow_is_asked_about_where_a_cast_can_have_it(home: Site, visit: Visit, variants: str) -> None:
    page = visit(home, f"?repo={variants}&dtype=fp16&allow_overflow=true")
    dtype, allow = page.locator("#dtype"), page.get_by_label("Allow overflow")
    advanced(page)
    expect(allow).to_be_checked()
    dtype.get_by_label("As it is").check()
    expect(allow).to_have_count(0)
    expect(page).not_to_have_url(re.compile("allow_overflow"))
    dtype.get_by_label("fp16").check()
    expect(allow).not_to_be_checked()
    allow.check()
    expect(page).to_have_url(re.compile("allow_overflow=true$"))


@pytest.mark.thorough
def test_what_became_infinite_is_counted_in_the_result(home: Site, visit: Visit, variants: str) -> None:
    page = visit(home, f"?repo={variants}&dtype=fp16&allow_overflow=true")
    start_job(page, copy_name())
    expect(page.locator("#result")).to_contain_text("3 numbers too large for fp16 became infinite")


@pytest.mark.thorough
def test_ordinary_weights_are_offered_where_a_repo_is_quantized(
    home: Site, visit: Visit, quantized: str, small: str
) -> None:
    page = visit(home, f"?repo={quantized}&size=90kB&dtype=bf16&dequantize=true")
    model, offered = page.get_by_label("Model", exact=True), page.locator("#dequantize")
    box = offered.get_by_role("checkbox")
    expect(box).to_be_checked()
    # Where a repo is not quantized there is nothing to offer.
    model.fill(small)
    model.press("Enter")
    expect(box).to_have_count(0)
    expect(page).not_to_have_url(re.compile("dequantize"))
    advanced(page).locator("#dtype").get_by_label("As it is").check()
    expect(files(page)).to_have_count(3)
    # Where it is, both sizes are said.
    model.fill(quantized)
    model.press("Enter")
    expect(offered).to_contain_text("Dequantize: 320.9 kB → 640.8 kB")
    expect(offered).to_contain_text("quantized with fp8, one scale for each 128 x 128")
    expect(box).not_to_be_checked()
    expect(page.locator("#findings")).to_contain_text("Tick Dequantize for training")
    expect(page.locator("#picture .sheet")).to_contain_text("Today 1 file, 320.9 kB")
    box.check()
    # What is quantized becomes bf16. The format chosen for all tensors stays as it is.
    expect(page).to_have_url(re.compile("size=90kB&dequantize=true$"))
    expect(page.locator("#picture .sheet")).to_contain_text("640.8 kB")
    expect(page.get_by_label("Load the original and the copy as well")).to_have_count(0)
    expect(page.get_by_label("Name of the new repo")).to_have_value("model-fp8-bf16-sharded-90kB")


@pytest.mark.thorough
def test_ordinary_weights_are_made_of_a_quantized_repo(home: Site, visit: Visit, quantized: str) -> None:
    page = visit(home, f"?repo={quantized}&size=200kB&dtype=bf16&dequantize=true")
    expect(page.locator("#dequantize").get_by_role("checkbox")).to_be_checked()
    start_job(page, copy_name())
    expect(page.locator("#progress .route")).to_contain_text("dequantized")
    result = page.locator("#result")
    expect(result).to_contain_text(
        re.compile(
            r"All 5 tensors bit-identical to bob/model-fp8@\w+, dequantized to bf16 \(fp8, one scale for each 128 x 128\)"
        )
    )
    expect(result).to_contain_text("Its numbers are computed, not copied")


@pytest.mark.thorough
def test_the_devices_of_a_machine_are_shown_with_the_code_that_uses_them(space: Site, visit: Visit, tiny: str) -> None:
    page = advanced(visit(space, f"?repo={tiny}"))
    page.get_by_label("Where would it run?").fill("cuda:0=40kB,cpu=1GB")
    page.get_by_label("Where would it run?").press("Enter")
    page.get_by_role("button", name="Show the devices").click()
    expect(page.locator("#devices tbody tr")).to_have_count(2)
    expect(page.locator("#devices")).to_contain_text("It fits.")
    expect(page.locator("#devices code")).to_contain_text(f"from_pretrained(\n    '{tiny}',")
