"""Looking at a model of very many tensors: from the click to the map, in a real browser."""

import os
from statistics import median

from harness.browser import browser, seen, watch
from harness.checkpoints import build_sparse
from harness.processes import ROOT
from harness.results import tell
from harness.scratch import benchmark_arguments, scratch
from harness.visitors import TOKEN, serve_hub, serve_page
from huggingface_hub import HfApi
from playwright.sync_api import Page
from rich import box
from rich.table import Table

_REPO = "alice/many"


def main() -> None:
    """Serve a Hub and the page anew for every round, look, print the table."""
    parser = benchmark_arguments(__doc__)
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--tensors", type=int, default=100_000, help="in all files together (default: 100000)")
    arguments = parser.parse_args()
    first, again, busy = [], [], []
    with scratch(arguments.folder, 2_000 * arguments.tensors) as folder, serve_hub(folder) as hub:
        build_sparse(folder / "many", arguments.files, arguments.tensors, width=4)
        api = HfApi(endpoint=hub, token=TOKEN)
        api.create_repo(_REPO)
        api.upload_folder(repo_id=_REPO, folder_path=folder / "many")
        with browser() as opened:
            for _ in range(arguments.pairs):
                with serve_page(hub, folder) as (address, _process):
                    page = opened.new_page(viewport={"width": 1440, "height": 900})
                    page.goto(address)
                    page.locator("#account p").first.wait_for()
                    seconds, shown = _look(page)
                    first.append(seconds)
                    busy.append(shown)
                    again.append(_slide(page))
                    page.close()
    table = Table("figure", "value", "target", box=box.MARKDOWN)
    for name, times, target in (
        (f"from the click to the map: {arguments.tensors:,} tensors in {arguments.files} files", first, "at most 3 s"),
        ("until a busy sign shows", busy, "at most 0.1 s"),
        ("from the slider to the new map", again, ""),
    ):
        table.add_row(name, f"{median(times):.2f} s ({min(times):.2f}..{max(times):.2f})", target)
    facts = [
        f"Each of {arguments.pairs} rounds reads the headers again. Page, Hub and browser share the machine.",
        f"Load average at the end: {os.getloadavg()[0]:.1f}.",
    ]
    tell("Looking", table, facts, ROOT, ("gradio", "huggingface_hub"))


def _look(page: Page) -> tuple[float, float]:
    """Return the seconds from the click to the map, and to the busy sign."""
    page.get_by_label("Model", exact=True).fill(_REPO)
    watch(page, "#picture .map")
    page.locator("#show").click()
    return seen(page)


def _slide(page: Page) -> float:
    page.wait_for_function("!document.body.classList.contains('busy') && !document.querySelector('.map.still')")
    page.evaluate("document.querySelector('#picture .map').dataset.old = ''")
    watch(page, "#picture .map:not([data-old])")
    page.locator("#size-slider").focus()
    page.keyboard.press("ArrowRight")
    return seen(page)[0]


if __name__ == "__main__":
    main()
