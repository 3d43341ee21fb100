"""The map, the slider and the one screen that they share with the button, in a real browser."""

import re
import signal
from collections.abc import Callable

import numpy as np
import pytest
from playwright.sync_api import Page, Route, expect

from tests.conftest import write_checkpoint
from tests.localhub.conftest import Server
from tests.page.conftest import LONG, Site, advanced, copy_name, files, push, start_job

Visit = Callable[..., Page]


@pytest.fixture(scope="module")
def layered(hub: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A public model of 40 layers in one file."""
    parts = {"self_attn.q_proj": 40, "mlp.up_proj": 60, "input_layernorm": 1}
    tensors = {
        f"model.layers.{n}.{part}.weight": np.full(25 * size, n, np.float32)
        for n in range(40)
        for part, size in parts.items()
    }
    tensors |= {"model.embed_tokens.weight": np.ones(9000, np.float32)}
    folder = write_checkpoint(tmp_path_factory.mktemp("in") / "layered", {"model.safetensors": tensors}, False)
    return push(hub, folder, "bob/layered")


def cells(page: Page) -> dict[str, list[float]]:
    """Where the cells of the map stand."""
    sides = "['x', 'y', 'width', 'height'].map((side) => Number(cell.getAttribute(side)))"
    found: dict[str, list[float]] = page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('#picture rect[data-n]')]"
        f".map((cell) => [cell.dataset.n.split(',')[0], {sides}]))"
    )
    return found


def settled(page: Page) -> None:
    """Return when the map is there and nothing moves any more."""
    page.locator("#picture .map").wait_for()
    page.wait_for_function(
        "!document.querySelector('.map[data-plays], .map.still') && !document.getAnimations().length"
    )


# --- The map ------------------------------------------------------------------------------------------


def test_the_map_says_what_a_tensor_is_lists_files_and_is_walked_by_keyboard(
    home: Site, visit: Visit, layered: str
) -> None:
    page = visit(home, f"?repo={layered}&size=100kB")
    expect(files(page)).to_have_count(5)
    settled(page)
    readout, title, listed = (page.locator(part) for part in ("#picture .readout", "#tensors h3", "#tensors tbody tr"))
    # A tensor that is pointed at says what it is and where it goes.
    page.locator('#picture rect[data-n^="model.layers.7.mlp.up_proj.weight"]').hover()
    expect(readout).to_have_text(
        re.compile(
            r"^model\.layers\.7\.mlp\.up_proj\.weight, F32, 1500, 6\.0 kB, "
            r"from model\.safetensors to model-0000\d-of-00005\.safetensors$"
        )
    )
    # A file is reached with the arrow keys, and Enter lists its tensors.
    page.locator("#picture .strip").focus()
    page.keyboard.press("ArrowRight")
    expect(readout).to_contain_text("model-00001-of-00005.safetensors: ")
    page.keyboard.press("End")
    expect(readout).to_contain_text("model-00005-of-00005.safetensors: ")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    expect(title).to_have_text("model-00004-of-00005.safetensors")
    # So does a click.
    embedding = page.locator('#picture rect[data-n^="model.embed_tokens.weight"]')
    embedding.click()
    expect(title).to_have_text("model-00001-of-00005.safetensors")
    expect(listed.filter(has_text="model.embed_tokens.weight")).to_contain_text("36.0 kB")
    # Today and after are one picture that moves.
    today, after = page.locator("#picture .sides button").first, page.locator("#picture .sides button").last
    there = cells(page)
    expect(after).to_have_attribute("aria-pressed", "true")
    today.click()
    expect(today).to_have_attribute("aria-pressed", "true")
    then = cells(page)
    assert then.keys() == there.keys() and then != there
    settled(page)
    embedding.click()
    expect(title).to_have_text("model.safetensors")
    expect(listed).to_have_count(121)
    after.click()
    assert cells(page) == there


@pytest.mark.thorough
def test_three_thousand_files_and_one_are_both_drawn_within_the_page(home: Site, visit: Visit, hub: Server) -> None:
    hub.api("hf_bob").create_repo("bob/many")
    tensors = {f"layers.{n}.mlp.weight": np.zeros(3, np.uint8) for n in range(3000)}
    from safetensors.numpy import save

    hub.api("hf_bob").upload_file(path_or_fileobj=save(tensors), path_in_repo="model.safetensors", repo_id="bob/many")
    page = visit(home, "?repo=bob/many&size=3B")
    expect(page.locator("#picture .sides")).to_contain_text("After 3,000 files")
    assert 100 < files(page).count() <= 240
    assert len(page.locator("#picture").inner_html()) < 200_000
    for width in (390, 1440):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    page.get_by_label("Largest file").fill("one file")
    page.get_by_label("Largest file").press("Enter")
    expect(files(page)).to_have_count(1)


# --- The slider, on one screen with all that one needs ------------------------------------------------


def test_all_that_one_needs_stands_on_one_screen_and_every_choice_says_when_one_wants_it(
    home: Site, visit: Visit, layered: str
) -> None:
    page = visit(home, f"?repo={layered}")
    page.locator("#start:not([disabled])").wait_for()
    settled(page)
    for part in ("#repo", "#size-slider", "#picture .strip", "#summary", "#start"):
        box = page.locator(part).bounding_box()
        assert box and box["y"] >= 0 and box["y"] + box["height"] <= 900, part
    # It stays in view.
    advanced(page)
    page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    expect(page.locator("#start")).to_be_in_viewport()
    expect(page.locator("#summary")).to_be_in_viewport()
    for part in ("#strategy", "#order", "#dtype", "#visibility", "#measure", "#budget"):
        assert re.search(r"\w{3,}.* \w+.*[.:]", page.locator(part).inner_text()), part
    # What is asked for once more is not drawn again.
    strip = page.locator("#picture .strip")
    strip.evaluate("strip => strip.dataset.seen = 'before'")
    page.locator("#show").click()
    expect(page.locator("body")).not_to_have_class(re.compile("busy"))
    expect(page.locator("#repo-message")).to_have_text("")
    expect(strip).to_have_attribute("data-seen", "before")
    page.locator("#size-slider").focus()
    page.keyboard.press("ArrowLeft")  # draws, and says nothing of the model
    expect(page).to_have_url(re.compile("size=50kB$"))
    strip.evaluate("strip => strip.dataset.seen = 'before'")
    page.locator("#show").click()
    expect(strip).not_to_have_attribute("data-seen", "before")


@pytest.mark.thorough
def test_the_slider_stands_at_what_each_model_suggests_and_a_size_of_ones_own_stays(
    home: Site, visit: Visit, layered: str, small: str
) -> None:
    page = visit(home, f"?repo={layered}")
    slider, written = page.locator("#size-slider"), page.get_by_label("Largest file")
    expect(written).to_have_value("100kB")
    expect(slider).to_have_attribute("aria-valuetext", "100kB")
    expect(page.locator("#size-reason")).to_contain_text("A download that breaks off")
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
    expect(page.locator("#size-reason")).to_contain_text("ComfyUI")
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

    page.get_by_label("Largest file").focus()
    page.route("**/queue/join*", hold)
    page.locator("#size-slider").focus()  # leaves the field, which asks
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#summary")).to_contain_text("1 file → 10")
    settled(page)
    page.wait_for_timeout(1000)
    assert late
    expect(page.locator("#summary")).to_contain_text("1 file → 10")
    expect(page.locator("#size-slider")).to_have_attribute("aria-valuetext", "50kB")


# --- A job --------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_job_shows_how_far_it_is_in_the_page_its_title_and_the_map_and_when_its_server_is_silent(
    home: Site, visit: Visit, long: str
) -> None:
    page = visit(home, f"?repo={long}&size={LONG}")
    page.locator("#start:not([disabled])").wait_for()
    job = start_job(page, copy_name("endless"))
    expect(page.locator("#progress .finished")).to_contain_text(re.compile(r"[1-9] of 12 files finished"))
    expect(page.locator("#progress .percent")).to_have_text(re.compile(r"^\d+%$"))
    expect(page.locator("#progress")).to_contain_text(re.compile(r"Step 1 of 2 ·\s+\d+ s so far"))
    expect(page.locator("#progress pre")).to_have_text(f"{home.address}/?job={job}")
    expect(page).to_have_title(re.compile(r"^\d+% · Shard My Repo$"))
    expect(page.locator("#job-map rect.waiting")).not_to_have_count(0)
    expect(page.locator("#job-map rect[data-c]:not(.waiting)")).not_to_have_count(0)
    meter = page.get_by_role("progressbar")
    expect(meter).to_have_attribute("aria-valuetext", re.compile(r"^\d+%: Writing the files$"))
    # Its server is silent for a while, and the page goes on afterwards.
    silence = page.locator("#progress .silence")
    expect(silence).to_be_hidden()
    assert home.process
    home.process.send_signal(signal.SIGSTOP)
    try:
        page.wait_for_timeout(500)
        page.evaluate("heard -= 60_000, tick()")
        expect(silence).to_contain_text(re.compile("No news from this page's server for 1 min [0-9]+ s"))
    finally:
        home.process.send_signal(signal.SIGCONT)
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#progress .cancelled")).to_be_visible()
