"""The map, the slider and the one screen that they share with the button, in a real browser."""

import re
import signal
from collections.abc import Callable

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.conftest import write_checkpoint
from tests.localhub.conftest import Server
from tests.page.conftest import Site, advanced, copy_name, files, push, start_job

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


def test_a_tensor_says_what_it_is_and_where_it_goes(home: Site, visit: Visit, layered: str) -> None:
    page = visit(home, f"?repo={layered}&size=100kB")
    expect(files(page)).to_have_count(5)
    settled(page)
    page.locator('#picture rect[data-n^="model.layers.7.mlp.up_proj.weight"]').hover()
    expect(page.locator("#picture .readout")).to_have_text(
        re.compile(
            r"^model\.layers\.7\.mlp\.up_proj\.weight, F32, 1500, 6\.0 kB, "
            r"from model\.safetensors to model-0000\d-of-00005\.safetensors$"
        )
    )


def test_a_click_on_a_file_lists_its_tensors(home: Site, visit: Visit, layered: str) -> None:
    page = visit(home, f"?repo={layered}&size=100kB")
    settled(page)
    page.locator('#picture rect[data-n^="model.embed_tokens.weight"]').click()
    expect(page.locator("#tensors h3")).to_have_text("model-00001-of-00005.safetensors")
    expect(page.locator("#tensors tbody tr").filter(has_text="model.embed_tokens.weight")).to_contain_text("36.0 kB")
    page.locator("#picture .sides button").first.click()
    settled(page)
    page.locator('#picture rect[data-n^="model.embed_tokens.weight"]').click()
    expect(page.locator("#tensors h3")).to_have_text("model.safetensors")
    expect(page.locator("#tensors tbody tr")).to_have_count(121)


def test_the_map_is_walked_by_keyboard(home: Site, visit: Visit, layered: str) -> None:
    page = visit(home, f"?repo={layered}&size=100kB")
    settled(page)
    strip, readout = page.locator("#picture .strip"), page.locator("#picture .readout")
    strip.focus()
    page.keyboard.press("ArrowRight")
    expect(readout).to_contain_text("model-00001-of-00005.safetensors: ")
    page.keyboard.press("End")
    expect(readout).to_contain_text("model-00005-of-00005.safetensors: ")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    expect(page.locator("#tensors h3")).to_have_text("model-00004-of-00005.safetensors")


def test_today_and_after_are_one_picture_that_moves(home: Site, visit: Visit, layered: str) -> None:
    page = visit(home, f"?repo={layered}&size=100kB")
    settled(page)
    after = cells(page)
    today, both = page.locator("#picture .sides button").first, page.locator("#picture .sides button")
    expect(both.last).to_have_attribute("aria-pressed", "true")
    today.click()
    expect(today).to_have_attribute("aria-pressed", "true")
    then = cells(page)
    assert then.keys() == after.keys() and then != after
    both.last.click()
    assert cells(page) == after


@pytest.mark.parametrize("width", [390, 1440])
def test_three_thousand_files_and_one_are_both_drawn_within_the_page(
    home: Site, visit: Visit, hub: Server, width: int
) -> None:
    repo_id = f"bob/many-{width}"
    hub.api("hf_bob").create_repo(repo_id)
    tensors = {f"layers.{n}.mlp.weight": np.zeros(3, np.uint8) for n in range(3000)}
    from safetensors.numpy import save

    hub.api("hf_bob").upload_file(path_or_fileobj=save(tensors), path_in_repo="model.safetensors", repo_id=repo_id)
    page = visit(home, f"?repo={repo_id}&size=3B")
    page.set_viewport_size({"width": width, "height": 900})
    expect(page.locator("#picture .sides")).to_contain_text("After 3,000 files")
    assert 100 < files(page).count() <= 240
    assert len(page.locator("#picture").inner_html()) < 200_000
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    page.get_by_label("Largest file").fill("one file")
    page.get_by_label("Largest file").press("Enter")
    expect(files(page)).to_have_count(1)


# --- The slider ---------------------------------------------------------------------------------------


def test_the_slider_stands_at_what_the_model_suggests_and_draws_at_once(home: Site, visit: Visit, layered: str) -> None:
    page = visit(home, f"?repo={layered}")
    slider, written = page.locator("#size-slider"), page.get_by_label("Largest file")
    expect(written).to_have_value("100kB")
    expect(slider).to_have_attribute("aria-valuetext", "100kB")
    expect(page.locator("#size-reason")).to_contain_text("A download that breaks off")
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


def test_another_model_gets_its_own_size_and_a_size_of_ones_own_stays(
    home: Site, visit: Visit, layered: str, small: str
) -> None:
    page = visit(home, f"?repo={layered}")
    expect(page.get_by_label("Largest file")).to_have_value("100kB")
    for size in ("50kB", "77kB"):
        model = page.get_by_label("Model", exact=True)
        model.fill(small)
        model.press("Enter")
        expect(page.locator("#facts")).to_contain_text(small)
        expect(page.get_by_label("Largest file")).to_have_value(size)
        page.get_by_label("Largest file").fill("77kB")
        page.get_by_label("Largest file").press("Enter")
        expect(page).to_have_url(re.compile("size=77kB$"))
        expect(page.locator("#size-slider")).to_have_attribute("aria-valuetext", "77kB")
        model.fill(layered)
        model.press("Enter")
        expect(page.locator("#facts")).to_contain_text(layered)


def test_what_is_asked_for_once_more_is_not_drawn_again(home: Site, visit: Visit, layered: str) -> None:
    page = visit(home, f"?repo={layered}")
    page.locator("#start:not([disabled])").wait_for()
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


# --- One screen ---------------------------------------------------------------------------------------


def test_all_that_one_needs_stands_on_one_screen_and_stays_in_view(home: Site, visit: Visit, layered: str) -> None:
    page = visit(home, f"?repo={layered}")
    page.locator("#start:not([disabled])").wait_for()
    settled(page)
    for part in ("#repo", "#size-slider", "#picture .strip", "#summary", "#start"):
        box = page.locator(part).bounding_box()
        assert box and box["y"] >= 0 and box["y"] + box["height"] <= 900, part
    advanced(page)
    page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    expect(page.locator("#start")).to_be_in_viewport()
    expect(page.locator("#summary")).to_be_in_viewport()


def test_every_choice_under_advanced_says_when_one_wants_it(home: Site, visit: Visit, layered: str) -> None:
    page = advanced(visit(home, f"?repo={layered}"))
    for part in ("#strategy", "#order", "#dtype", "#visibility", "#measure", "#budget"):
        assert re.search(r"\w{3,}.* \w+.*[.:]", page.locator(part).inner_text()), part


# --- Jobs ---------------------------------------------------------------------------------------------


def test_a_job_shows_how_far_it_is_in_the_page_its_title_and_the_map(home: Site, visit: Visit, long: str) -> None:
    page = visit(home, f"?repo={long}&size=60kB")
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
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#progress .cancelled")).to_be_visible()


def test_a_job_that_is_done_has_all_its_colours_and_is_found_among_my_jobs(home: Site, visit: Visit, long: str) -> None:
    page = visit(home, f"?repo={long}&size=60kB")
    name = copy_name()
    start_job(page, name)
    page.locator("#log summary").click()
    expect(page.locator("#result")).to_contain_text("bit-identical")
    expect(page.locator("#job-map rect[data-c]")).not_to_have_count(0)
    expect(page.locator("#job-map rect.waiting")).to_have_count(0)
    expect(page.locator("#log details")).to_have_attribute("open", "")
    page.go_back()
    expect(page).to_have_url(re.compile(f"repo={long}"))
    expect(files(page)).to_have_count(12)
    page.goto(home.address)
    row = page.locator("#jobs li").filter(has_text=name).first
    expect(row).to_contain_text("done")
    row.get_by_role("link").click()
    expect(page.locator("#result")).to_contain_text("bit-identical")


def test_a_page_whose_server_is_silent_says_so_and_goes_on(serve: Callable[..., Site], visit: Visit, long: str) -> None:
    site = serve(HF_TOKEN="hf_alice")
    page = visit(site, f"?repo={long}&size=60kB")
    start_job(page, copy_name("endless"))
    expect(page.locator("#progress .finished")).to_contain_text(re.compile(r"[1-9] of 12"))
    silence = page.locator("#progress .silence")
    expect(silence).to_be_hidden()
    assert site.process
    site.process.send_signal(signal.SIGSTOP)
    try:
        page.wait_for_timeout(500)
        page.evaluate("heard -= 60_000, tick()")
        expect(silence).to_contain_text(re.compile("No news from this page's server for 1 min [0-9]+ s"))
    finally:
        site.process.send_signal(signal.SIGCONT)
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#progress .cancelled")).to_be_visible()
