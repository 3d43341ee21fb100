"""Coming to the page and asking for a plan, in a real browser, on a Hub that takes its time for every answer."""

import os
from statistics import median

from harness.browser import browser, seen, watch
from harness.hubs import filled, serve
from harness.processes import ROOT
from harness.results import tell
from harness.scratch import benchmark_arguments, scratch
from harness.shapes import SHAPES, build_shape
from harness.visitors import serve_page
from playwright.sync_api import Browser, Page
from rich import box
from rich.table import Table

_NEEDED_BYTES = 1_000_000_000

_NOTE_THE_FIELD = """
const look = () => {
  if (document.querySelector("#repo input")?.checkVisibility()) window.fieldSeen = performance.now();
  else requestAnimationFrame(look);
};
look();
"""


def main() -> None:
    """Serve a slow Hub, and the page anew for every round; come, ask twice, print the table."""
    parser = benchmark_arguments(__doc__)
    parser.add_argument("--answer", type=float, default=0.05, help="seconds that the Hub waits (default: 0.05)")
    parser.add_argument("--models", nargs=2, choices=SHAPES, default=["mistral", "llama"])
    arguments = parser.parse_args()
    field, first, second = [], [], []
    with scratch(arguments.folder, _NEEDED_BYTES) as folder:
        for name in arguments.models:
            build_shape(name, folder / name)
        full = filled(folder, [folder / name for name in arguments.models])
        with serve(full, [f"--fault=delay:{arguments.answer}@."]) as hub, browser() as opened:
            for _ in range(arguments.pairs):
                with serve_page(hub, folder) as (address, _process):
                    for times, seconds in zip(
                        (field, first, second), _visit(opened, address, arguments.models), strict=True
                    ):
                        times.append(seconds)
    table = Table("figure", "value", "target", box=box.MARKDOWN)
    titles = [SHAPES[name].title for name in arguments.models]
    for name, times, target in (
        ("from the address to a field that takes a name", field, "at most 1.5 s"),
        (f"from Enter to the map: {titles[0]}, the first plan of the process", first, "at most 2 s"),
        (f"from Enter to the map: {titles[1]}, afterwards", second, "at most 2 s"),
    ):
        table.add_row(name, f"{median(times):.2f} s ({min(times):.2f}..{max(times):.2f})", target)
    facts = [
        f"The Hub waits {1000 * arguments.answer:.0f} ms before every answer. It, page and browser share the machine.",
        f"Every one of {arguments.pairs} rounds has a new page, which reads the headers again.",
        f"Load average at the end: {os.getloadavg()[0]:.1f}.",
    ]
    tell("Arriving", table, facts, ROOT, ("gradio", "huggingface_hub"))


def _visit(opened: Browser, address: str, models: list[str]) -> tuple[float, float, float]:
    """Return the seconds until the field is there, and from Enter to the map of each of both models."""
    page = opened.new_page(viewport={"width": 1440, "height": 900})
    page.add_init_script(_NOTE_THE_FIELD)
    page.goto(address, wait_until="commit")
    field = page.wait_for_function("window.fieldSeen").json_value() / 1000
    page.locator("#account p").first.wait_for()
    asked = [_ask(page, f"alice/{name}") for name in models]
    page.close()
    return field, asked[0], asked[1]


def _ask(page: Page, repo: str) -> float:
    field = page.get_by_label("Model", exact=True)
    field.fill(repo)
    page.evaluate("document.querySelector('#picture .map')?.setAttribute('data-old', '')")
    watch(page, f"#picture .map[data-title*='{repo}']:not([data-old])")
    field.press("Enter")
    return seen(page)[0]


if __name__ == "__main__":
    main()
