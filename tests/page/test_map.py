"""The map of a plan, of a job and of a result, in a real browser."""

import json
import re
import signal
import xml.etree.ElementTree as ET
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.conftest import write_checkpoint
from tests.inhouse import InHouse
from tests.page.conftest import Publish, Visit, cancel, enter, files, fits, held_job, model, settled, size, start_job
from tests.page.site import Site, copy_name
from tests.page.sources import LONG, save_one

SIDES = ("today", "after")
SMALL_FLOWS = [
    *(["0 0", "60.0 kB"], ["0 1", "60.0 kB"], ["0 2", "40.0 kB"]),
    *(["1 0", "54 B"], ["1 2", "20.0 kB"], ["1 3", "60.1 kB"]),
]
"""What goes from which file of `small` to which file of at most 70 kB."""
SVG = "{http://www.w3.org/2000/svg}"
HINT = "Hover or use the arrow keys to inspect; click a file to list its tensors."


def readout(page: Page) -> Locator:
    return page.locator("#picture .readout")


def page_height(page: Page) -> int:
    height: int = page.evaluate("document.documentElement.scrollHeight")
    return height


# --- The map ------------------------------------------------------------------------------------------


def test_the_map_says_what_a_tensor_is_lists_files_and_is_walked_by_keyboard(
    home: Site, visit: Visit, layered: str
) -> None:
    page = visit(home, f"?repo={layered}&size=100kB")
    expect(files(page)).to_have_count(5)
    settled(page)
    title, listed = page.locator("#tensors h3"), page.locator("#tensors tbody tr")
    today, after = page.locator("#picture .strip.today"), page.locator("#picture .strip.after")
    captions = page.locator("#picture .caption")
    expect(captions).to_have_text([re.compile("^Today 1 file, 440"), re.compile("^After 5 files, 440.*, the largest ")])
    # A tensor that is pointed at says what it is and where it goes, in both strips.
    for strip in (after, today):
        strip.locator('rect[data-n^="model.layers.7.mlp.up_proj.weight"]').hover()
        expect(readout(page)).to_have_text(
            re.compile(
                r"^model\.layers\.7\.mlp\.up_proj\.weight, F32, 1500, 6\.0 kB, "
                r"from model\.safetensors to model-0000\d-of-00005\.safetensors$"
            )
        )
        page.mouse.move(0, 0)
        expect(readout(page)).to_have_text(HINT)
    # A file is reached with the arrow keys, and Enter lists its tensors.
    after.focus()
    page.keyboard.press("ArrowRight")
    expect(readout(page)).to_contain_text("model-00001-of-00005.safetensors: ")
    page.keyboard.press("End")
    expect(readout(page)).to_contain_text("model-00005-of-00005.safetensors: ")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    expect(title).to_have_text("model-00004-of-00005.safetensors")
    # Up leads to where its bytes are today, and down back to the first file with bytes of that one.
    page.keyboard.press("ArrowUp")
    expect(today).to_be_focused()
    expect(readout(page)).to_contain_text("model.safetensors: 121 tensors, 440.0 kB, to 5 files")
    page.keyboard.press("Enter")
    expect(title).to_have_text("model.safetensors")
    expect(listed).to_have_count(121)
    page.keyboard.press("ArrowDown")
    expect(after).to_be_focused()
    expect(readout(page)).to_contain_text("model-00001-of-00005.safetensors: ")
    # A click lists the file on its side.
    after.locator('rect[data-n^="model.embed_tokens.weight"]').click()
    expect(title).to_have_text("model-00001-of-00005.safetensors")
    expect(listed.filter(has_text="model.embed_tokens.weight")).to_contain_text("36.0 kB")
    today.locator('rect[data-n^="model.embed_tokens.weight"]').click()
    expect(title).to_have_text("model.safetensors")
    # Numbers of files never overlap, however narrow the screen.
    enter(size(page), "10kB")
    expect(page).to_have_url(re.compile("size=10kB$"))
    for width in (1440, 360):
        page.set_viewport_size({"width": width, "height": 900})
        settled(page)
        boxes = page.locator("#picture .labels.after span").evaluate_all(
            "spans => spans.map(span => span.getBoundingClientRect()).map(box => [box.left, box.right])"
        )
        assert len(boxes) > 5
        assert all(one[1] <= other[0] for one, other in pairwise(boxes)), width


def test_ribbons_lead_from_a_file_to_its_new_ones_with_their_bytes_and_the_picture_is_saved(
    home: Site, visit: Visit, small: str, tmp_path: Path
) -> None:
    page = visit(home, f"?repo={small}&size=70kB", color_scheme="dark")
    expect(files(page)).to_have_count(4)
    settled(page)
    height, ribbons = page_height(page), page.locator("#picture .ribbons path")
    shown = page.locator("#picture .ribbons path.on")
    bytes_of = "paths => paths.map(path => [path.dataset.flow, path.dataset.bytes])"
    assert sorted(ribbons.evaluate_all(bytes_of)) == SMALL_FLOWS
    for side, place, numbers in (("after", 1, range(4)), ("today", 0, range(2))):
        for number in numbers:
            box = page.locator(f"#picture .strip.{side} rect.file").nth(number).bounding_box()
            assert box
            page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
            expect(shown).not_to_have_count(0)
            mine = [flow for flow in SMALL_FLOWS if flow[0].split()[place] == str(number)]
            assert sorted(shown.evaluate_all(bytes_of)) == mine
            assert page_height(page) == height
    # A ribbon is as wide as its share of both files.
    widths = ribbons.evaluate_all("paths => paths.map(path => path.getBBox().width > 0)")
    assert all(widths)
    page.mouse.move(0, 0)
    expect(shown).to_have_count(0)
    expect(readout(page)).to_have_text(HINT)
    assert page_height(page) == height
    # So does the keyboard, and with reduced motion nothing fades.
    page.emulate_media(reduced_motion="reduce")
    page.locator("#picture .strip.after").focus()
    page.keyboard.press("Home")
    expect(shown).to_have_count(2)
    moving = "parts => parts.map(part => getComputedStyle(part).transitionDuration)"
    assert set(page.locator("#picture .ribbons path, #picture rect").evaluate_all(moving)) == {"0s"}

    # The picture is saved with what is shown.
    page.mouse.move(0, 0)
    page.emulate_media(reduced_motion="no-preference", color_scheme="dark")
    height = page_height(page)
    for kind in ("svg", "png"):
        with page.expect_download() as download:
            page.get_by_role("button", name=f"Save picture as {kind.upper()}").click()
        assert download.value.suggested_filename == f"small-70kB.{kind}"
        download.value.save_as(tmp_path / kind)
    assert page_height(page) == height and page.locator("#picture .map").count() == 1
    picture = ET.parse(tmp_path / "svg").getroot()
    texts = ["".join(text.itertext()) for text in picture.iter(f"{SVG}text")]
    assert texts[0] == "bob/small: 2 files → 4"
    assert {"Today", "After", "2 files, 240.1 kB, the largest 160.0 kB", "T4", "fits, 15.0 GB to spare"} <= {*texts}
    assert {"2 · 60.0 kB", "other"} <= {*texts}, "numbers and sizes, and the legend"
    assert len([*picture.iter(f"{SVG}path")]) == len(SMALL_FLOWS)
    drawn = page.locator("#picture .strip rect[data-c], #picture .strip rect.file").count()
    assert len([rect for strip in picture.iterfind(f".//{SVG}svg") for rect in strip.findall(f"{SVG}rect")]) == drawn
    # It needs nothing else: colours stand in it, and no address does.
    assert {rect.get("fill", "")[:3] for rect in picture.iter(f"{SVG}rect")} == {"rgb", "#16"}
    assert not [key for part in picture.iter() for key in part.attrib if key.endswith(("href", "class", "style"))]
    png = (tmp_path / "png").read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    sides = [int.from_bytes(png[16 + 4 * n : 20 + 4 * n], "big") for n in (0, 1)]
    assert sides == [2 * int(picture.get(side, "")) for side in ("width", "height")]


@pytest.fixture(scope="module")
def mixed(publish: Publish) -> str:
    """A public model of 4 layers with 8 experts each, in two files that share layer 2."""

    def save(folder: Path) -> Path:
        parts = [f"{expert}.{part}_proj" for expert in range(8) for part in ("up", "down")]
        names = [f"model.layers.{n}.mlp.experts.{part}.weight" for n in range(4) for part in parts]
        halves = {f"model-0000{n + 1}-of-00002.safetensors": names[40 * n : 40 * n + 40] for n in (0, 1)}
        tensors = {name: np.zeros(250, np.float32) for name in names}
        return write_checkpoint(folder, {file: {name: tensors[name] for name in part} for file, part in halves.items()})

    return publish(save, "mixed")


FOLDERS = {"text_encoder": 2, "text_encoder_2": 10, "unet": 40, "vae": 1}


@pytest.fixture(scope="module")
def pipeline(publish: Publish) -> str:
    def save(folder: Path) -> Path:
        index = dict[str, object](_class_name="StableDiffusionXLPipeline")
        for name, tensors in FOLDERS.items():
            save_one(folder / name, {f"layers.{n}.weight": np.full(250, n, np.float32) for n in range(tensors)})
            index[name] = ["transformers", "CLIPTextModel"]
        (folder / "model_index.json").write_text(json.dumps(index))
        return folder

    return publish(save, "pipeline")


def test_experts_have_a_grid_and_components_of_a_pipeline_their_names_above_and_below_their_files(
    home: Site, visit: Visit, mixed: str, pipeline: str
) -> None:
    page = visit(home, f"?repo={mixed}&size=16kB")
    expect(files(page)).to_have_count(4)
    settled(page)
    grid = page.locator("#picture .grid")
    expect(page.locator("#picture .caption").last).to_contain_text("Experts 8 in each of 4 layers.")
    grid.scroll_into_view_if_needed()
    box = grid.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 5.5 / 8, box["y"] + box["height"] * 2.5 / 4)
    expect(readout(page)).to_have_text(
        "model.layers.2, expert 5, 2.0 kB, from model-00002-of-00002.safetensors to model-00003-of-00004.safetensors"
    )
    assert page.locator("#picture .ribbons path.on").evaluate_all("paths => paths.map(path => path.dataset.flow)") == [
        "0 2",
        "1 2",
    ]
    grid.focus()
    for key in ("ArrowRight", "ArrowDown", "End"):
        page.keyboard.press(key)
    expect(readout(page)).to_contain_text("model.layers.1, expert 7, 2.0 kB, from model-00001-of-00002.safetensors")
    page.keyboard.press("Enter")
    expect(page.locator("#tensors h3")).to_have_text("model-00002-of-00004.safetensors")
    size(page).fill("10kB")
    enter(model(page), pipeline)
    expect(page.locator("#facts")).to_contain_text(pipeline)
    expect(files(page)).to_have_count(7)
    settled(page)
    for side in ("today", "after"):
        names = page.locator(f"#picture .components.{side} span")
        expect(names).to_have_text(list(FOLDERS))
        boxes = [name.bounding_box() for name in names.all()]
        for one, other in combinations([box for box in boxes if box], 2):
            apart = one["x"] + one["width"] <= other["x"] or other["x"] + other["width"] <= one["x"]
            assert apart or one["y"] != other["y"]
    # A file that is alone in its folder has no number there.
    expect(page.locator("#picture .labels.after span")).to_have_text(
        ["2.0 kB", "10.0 kB", *(f"{n} · 10.0 kB" for n in range(1, 5))]
    )


@pytest.mark.thorough
def test_three_thousand_files_and_one_are_both_drawn_within_the_page(
    home: Site, visit: Visit, publish: Publish
) -> None:
    tensors = {f"layers.{n}.mlp.weight": np.zeros(3, np.uint8) for n in range(3000)}
    many = publish(lambda folder: save_one(folder, tensors), "many")
    page = visit(home, f"?repo={many}&size=3B")
    expect(page.locator("#picture .sheet")).to_contain_text(
        "After 3,000 files, 9.0 kB; each column stands for 13 files"
    )
    assert 100 < files(page).count() <= 240
    settled(page)
    for width in (390, 1440):
        page.set_viewport_size({"width": width, "height": 900})
        assert fits(page)
    # A file is found by its number and by its name, a tensor by its layer; Enter goes there.
    search, column = page.get_by_label("Find a file or tensor"), "model-01496-of-03000.safetensors to model-01508"
    for text in ("1500", "model-01500-of-03000.safetensors", "layers.1499.mlp.weight"):
        search.fill(text)
        expect(readout(page)).to_contain_text("Columns that match: 1 of the copy")
        expect(page.locator("#picture .strip.after rect.found")).to_have_count(1)
        search.press("Enter")
        expect(readout(page)).to_contain_text(re.compile(rf"^1 of [12]: {column}"))
    search.fill("nothing.like.it")
    expect(readout(page)).to_have_text("No file or tensor has this name.")
    # Both strips grow together, and a match that lies outside is brought into view.
    wide = page.locator("#picture .strip.after").bounding_box()
    for _ in range(3):
        page.get_by_role("button", name="Zoom in").click()
    for side in SIDES:
        box = page.locator(f"#picture .strip.{side}").bounding_box()
        assert wide and box and box["width"] == pytest.approx(8 * wide["width"], abs=2)
    search.fill("2999")
    search.press("Enter")
    window, marked = (page.locator(f"#picture {part}").bounding_box() for part in (".window", "rect.file.chosen"))
    assert window and marked and window["x"] <= marked["x"] <= window["x"] + window["width"]
    page.locator("#picture .strip.after").focus()
    page.keyboard.press("0")
    box = page.locator("#picture .strip.after").bounding_box()
    assert box and box["width"] == wide["width"]
    enter(size(page), "one file")
    expect(files(page)).to_have_count(1)
    expect(search).to_have_count(0)


# --- A job --------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_job_shows_how_far_it_is_in_the_page_its_title_and_the_map_and_when_its_server_is_silent(
    home: Site, visit: Visit, hub: InHouse, long: str
) -> None:
    page = visit(home, f"?repo={long}&size={LONG}")
    page.locator("#start:not([disabled])").wait_for()
    with held_job(hub, name := copy_name("held"), after=5):
        watch_a_job(home, page, start_job(page, name), long)
        cancel(page)
    expect(page.locator("#progress .cancelled")).to_be_visible()


def watch_a_job(home: Site, page: Page, job: str, long: str) -> None:
    expect(page.locator("#progress .finished")).to_contain_text(re.compile(r"[1-9] of 12 files finished"))
    expect(page.locator("#progress .percent")).to_have_text(re.compile(r"^\d+%$"))
    expect(page.locator("#progress .elapsed")).to_have_text(re.compile(r"^\d+ s so far$"))
    expect(page.locator("#progress .timeline [aria-current=step]")).to_contain_text("Write the files")
    link = page.locator("#progress details pre")
    expect(link).to_be_hidden()
    page.get_by_text("Private link to this job").click()
    expect(link).to_be_visible()
    expect(link).to_have_text(f"{home.address}/?job={job}")
    expect(page).to_have_title(re.compile(rf"^\d+% · {long} · Shard My Repo$"))
    expect(page.locator("#job-map .strip.after rect.waiting")).not_to_have_count(0)
    expect(page.locator("#job-map .ribbons path.waiting")).not_to_have_count(0)
    expect(page.locator("#job-map .strip.today rect.waiting")).to_have_count(0)
    expect(page.locator("#job-map .strip.after rect[data-c]:not(.waiting)")).not_to_have_count(0)
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
