"""The slider, on the one screen that it shares with the map and the button, in a real browser."""

import re

import pytest
from playwright.sync_api import Page, Route, expect

from tests.page.conftest import Visit, advanced, enter, settled, size
from tests.page.site import Site


def list_first_file(page: Page) -> None:
    """List the tensors in the first file of the copy."""
    page.locator("#picture .strip.after").focus()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    expect(page.locator("#tensors h3")).to_be_visible()


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
    slider = page.locator("#size-slider")
    slider.focus()
    page.keyboard.press("ArrowLeft")  # draws, and says nothing of the model
    expect(size(page)).to_have_value("50kB")
    expect(page).to_have_url(re.compile("size=50kB$"))
    list_first_file(page)
    show.click()
    expect(title).to_have_count(0)
    # At a size of one's own the slider stands beside it.
    enter(size(page), "70kB")
    expect(slider).to_have_attribute("aria-valuetext", "70kB")


@pytest.mark.thorough
def test_the_plan_is_that_of_the_slider_although_an_earlier_question_arrives_late(
    home: Site, visit: Visit, layered: str
) -> None:
    page = visit(home, f"?repo={layered}&size=100kB")
    settled(page)
    late: list[Route] = []

    def hold(route: Route) -> None:
        if not late:
            late.append(route)
            page.wait_for_timeout(500)
        route.continue_()

    size(page).focus()
    page.route("**/queue/join*", hold)
    page.locator("#size-slider").focus()  # leaves the field, which asks
    page.keyboard.press("ArrowLeft")
    for _ in range(2):
        expect(page.locator("#summary")).to_contain_text("1 → 10 files")
        expect(page.locator("#size-slider")).to_have_attribute("aria-valuetext", "50kB")
        page.wait_for_timeout(500)
    assert late
