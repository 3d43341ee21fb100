"""A crowd on the page: some plan all the time, others have jobs in the queue all the time; nobody sees an error."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median, quantiles
from threading import Event

import psutil
from gradio_client import Client
from harness.processes import ROOT
from harness.results import tell
from harness.scratch import benchmark_arguments, scratch
from harness.visitors import SOURCE, SOURCE_BYTES, connect, plan, plan_together, serve_hub, serve_page
from rich import box
from rich.table import Table

_MB = 1_000_000


def main() -> None:
    """Serve a Hub and the page, let all at it, print the table."""
    parser = benchmark_arguments(__doc__)
    parser.add_argument("--visitors", type=int, default=50, help="who plan")
    parser.add_argument("--jobs", type=int, default=10, help="who queue jobs, one after the other")
    parser.add_argument("--seconds", type=float, default=300)
    arguments = parser.parse_args()
    users = ("alice", *(f"worker{number}" for number in range(arguments.jobs)))
    with (
        scratch(arguments.folder, 20 * SOURCE_BYTES) as folder,
        serve_hub(folder, users) as hub,
        serve_page(hub, folder) as (address, page),
    ):
        plan(connect(address), "1GB")  # the headers are read once
        with ThreadPoolExecutor(arguments.jobs + 2) as pool:
            ended = Event()
            memory = pool.submit(_sample, page, ended)
            until = time.monotonic() + arguments.seconds
            work = [pool.submit(_queue, connect(address, f"hf_{user}"), user, until) for user in users[1:]]
            times, errors = plan_together(address, arguments.visitors, until - time.monotonic())
            outcomes = [state for each in work for state in each.result()]
            ended.set()
            resident = memory.result()
    third = len(resident) // 3
    early, late = median(resident[third : 2 * third]), median(resident[2 * third :])
    done = outcomes.count("done")
    table = Table("figure", "value", "target", box=box.MARKDOWN)
    table.add_row("resident memory of the page, last third to the second", f"{late / early:.3f}", "about 1")
    table.add_row(f"plans of {arguments.visitors} visitors", f"{len(times):,}, {errors} errors", "no error")
    table.add_row(f"jobs of {arguments.jobs} others", f"{done} done, {len(outcomes) - done} not", "all done")
    table.add_row("time of a plan: median", f"{median(times):.2f} s", "")
    table.add_row("time of a plan: 95th percentile", f"{quantiles(times, n=20)[-1]:.2f} s", "")
    table.add_row("resident memory of the page's process: peak", f"{max(resident) / _MB:.0f} MB", "below 700 MB")
    facts = [
        f"For {arguments.seconds:.0f} s each visitor asked `/plan` again as soon as there was an answer. Each of the "
        f"others had a job of {SOURCE_BYTES / _MB:.0f} MB in the queue, every time into a new repo.",
        "The page, its jobs, the Hub and all visitors share the cores of this one machine.",
        f"Load average at the end: {os.getloadavg()[0]:.1f}.",
    ]
    tell("A crowd", table, facts, ROOT, ("gradio", "huggingface_hub"))


def _queue(client: Client, user: str, until: float) -> list[str]:
    """Submit one job after the other; return how each of them ended."""
    outcomes = []
    while time.monotonic() < until:
        destination = f"{user}/result-{len(outcomes)}"
        answer = client.predict(source=SOURCE, destination=destination, max_shard_size="50MB", api_name="/shard")
        while (state := client.predict(job=answer["job"], api_name="/status")["state"]) in ("queued", "running"):
            time.sleep(1)
        outcomes.append(state)
    return outcomes


def _sample(page: psutil.Process, ended: Event) -> list[int]:
    """Return the resident memory of the page's own process, ten times a second."""
    sizes = []
    while not ended.wait(0.1):
        sizes.append(page.memory_info().rss)
    return sizes


if __name__ == "__main__":
    main()
