"""The page: how soon it answers, what its own process costs while a job runs, how twenty visitors plan at once."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median, quantiles
from threading import Event

import psutil
from harness.processes import ROOT
from harness.results import tell
from harness.scratch import benchmark_arguments, scratch
from harness.visitors import SOURCE, SOURCE_BYTES, connect, plan, plan_together, serve_hub, serve_page
from rich import box
from rich.table import Table

_MB = 1_000_000


def main() -> None:
    """Serve a Hub and the page, measure, print the table."""
    parser = benchmark_arguments(__doc__)
    parser.add_argument("--visitors", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60, help="how long they plan (default: 60)")
    arguments = parser.parse_args()
    with scratch(arguments.folder, 3 * SOURCE_BYTES) as folder, serve_hub(folder) as hub:
        starts = [_seconds_to_answer(hub, folder) for _ in range(arguments.pairs)]
        with serve_page(hub, folder) as (address, page):
            plan(connect(address), "1GB")  # the headers are read once
            times, errors = plan_together(address, arguments.visitors, arguments.seconds)
            peak = _memory_during_a_job(address, page)
    table = Table("figure", "value", "target", box=box.MARKDOWN)
    table.add_row(
        "first answer of `python app.py`",
        f"{median(starts):.2f} s ({min(starts):.2f}..{max(starts):.2f})",
        "at most 5 s",
    )
    table.add_row("resident memory of the page's process while a job runs", f"{peak / _MB:.0f} MB", "below 700 MB")
    table.add_row(f"plans of {arguments.visitors} visitors", f"{len(times):,}, {errors} errors", "no error")
    table.add_row("time of a plan: median", f"{median(times):.2f} s")
    table.add_row("time of a plan: 95th percentile", f"{quantiles(times, n=20)[-1]:.2f} s")
    facts = [
        f"For {arguments.seconds:.0f} s each visitor asks `/plan` again as soon as there is an answer.",
        f"Load average at the end: {os.getloadavg()[0]:.1f}.",
    ]
    tell("The page", table, facts, ROOT, ("gradio", "huggingface_hub"))


def _seconds_to_answer(hub: str, folder: Path) -> float:
    started = time.monotonic()
    with serve_page(hub, folder):
        return time.monotonic() - started


def _memory_during_a_job(address: str, page: psutil.Process) -> int:
    """Return the most resident memory of the page's own process while a job runs."""
    client, ended = connect(address), Event()
    job = client.predict(source=SOURCE, destination="alice/result", max_shard_size="2MB", api_name="/shard")["job"]

    def sample() -> int:
        peak = 0
        while not ended.wait(0.05):
            peak = max(peak, page.memory_info().rss)
        return peak

    with ThreadPoolExecutor(1) as pool:
        sampling = pool.submit(sample)
        while client.predict(job=job, api_name="/status")["state"] in ("queued", "running"):
            time.sleep(0.2)
        ended.set()
        return sampling.result()


if __name__ == "__main__":
    main()
