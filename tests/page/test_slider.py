"""The slider, on the one screen that it shares with the map and the button, in a real browser."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, Route, expect

from tests.page.conftest import Site, advanced, list_first_file, settled

Visit = Callable[..., Page]


def test_all_that_one_needs_stands_on_one_screen_and_every_choice_says_when_one_wants_it(
    home: Site, visit: Visit, layered: str
) -> None:
    page = visit(home, f"?repo={layered}")
    page.locator("#start:not([disabled])").wait_for()
    settled(page)
    for part in ("#repo", "#size-slider", "#picture .strip.today", "#picture .strip.after", "#summary", "#start"):
        box = page.locator(part).bounding_box()
        assert box and box["y"] >= 0 and box["y"] + box["height"] <= 900, part
    # It stays in view.
    advanced(page)
    page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    expect(page.locator("#start")).to_be_in_viewport()
    expect(page.locator("#summary")).to_be_in_viewport()
    for part in ("#strategy", "#order", "#dtype", "#visibility", "#measure", "#budget"):
        assert re.search(r"\w{3,}.* \w+.*[.:]", page.locator(part).inner_text()), part
    # What is asked for once more is not drawn again: a list of tensors stays.
    show, body, title = (page.locator(part) for part in ("#show", "body", "#tensors h3"))
    list_first_file(page)
    show.click()
    expect(body).not_to_have_class(re.compile("busy"))
    expect(page.locator("#repo-message")).to_have_text("")
    expect(title).to_be_visible()
    page.locator("#size-slider").focus()
    page.keyboard.press("ArrowLeft")  # draws, and says nothing of the model
    expect(page).to_have_url(re.compile("size=50kB$"))
    list_first_file(page)
    show.click()
    expect(title).to_have_count(0)


@pytest.mark.thorough
def test_the_slider_stands_at_what_each_model_suggests_and_a_size_of_ones_own_stays(
    home: Site, visit: Visit, layered: str, small: str
) -> None:
    page = visit(home, f"?repo={layered}")
    slider, written = page.locator("#size-slider"), page.get_by_label("Maximum file size")
    expect(written).to_have_value("100kB")
    expect(slider).to_have_attribute("aria-valuetext", "100kB")
    expect(page.locator("#size-reason")).to_contain_text("If a download breaks")
    for size in ("50kB", "77kB"):
        model = page.get_by_label("Model", exact=True)
        model.fill(small)
        model.press("Enter")
        expect(page.locator("#facts")).to_contain_text(small)
        expect(written).to_have_value(size)
        written.fill("77kB")
        written.press("Enter")
        expect(page).to_have_url(re.compile("size=77kB$"))
        expect(slider).to_have_attribute("aria-valuetext", "77kB")
        model.fill(layered)
        model.press("Enter")
        expect(page.locator("#facts")).to_contain_text(layered)
    # It draws at once.
    written.fill("100kB")
    written.press("Enter")
    expect(page.locator("#summary")).to_contain_text("1 file → 5")
    expect(slider).to_have_attribute("aria-valuetext", "100kB")
    slider.focus()
    page.keyboard.press("ArrowLeft")
    assert "busy" in (page.locator("body").get_attribute("class") or "")
    expect(written).to_have_value("50kB")
    expect(page.locator("#summary")).to_contain_text("1 file → 10")
    expect(page.locator("body")).not_to_have_class(re.compile("busy"))
    expect(page).to_have_url(re.compile("size=50kB$"))
    page.keyboard.press("End")
    expect(written).to_have_value("one file")
    expect(page.locator("#size-reason")).to_contain_text("One file. If a download breaks")
    expect(page.locator("#summary")).to_contain_text("Nothing would change")
    # A size that is no stop: the slider stands beside it, also when it was moved in between.
    for size, reads in (("70kB", "70kB"), ("50kB", "50kB"), ("70kB", "70kB")):
        written.fill(size)
        written.press("Enter")
        expect(page.locator("body")).not_to_have_class(re.compile("busy"))
        expect(slider).to_have_attribute("aria-valuetext", reads)


@pytest.mark.thorough
def test_the_plan_is_that_of_the_slider_although_an_earlier_question_arrives_late(
    home: Site, visit: Visit, layered: str
) -> None:
    page = visit(home, f"?repo={layered}&size=100kB")
    settled(page)
    late: list[object] = []

    def hold(route: Route) -> None:
        if not late:
            late.append(route)
            page.wait_for_timeout(1500)
        route.continue_()

    page.get_by_label("Maximum file size").focus()
    page.route("**/queue/join*", hold)
    page.locator("#size-slider").focus()  # leaves the field, which asks
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#summary")).to_contain_text("1 file → 10")
    settled(page)
    page.wait_for_timeout(1000)
    assert late
    expect(page.locator("#summary")).to_contain_text("1 file → 10")
    expect(page.locator("#size-slider")).to_have_attribute("aria-valuetext", "50kB")
