"""The page: how soon it answers, what its own process costs while a job runs, how twenty visitors plan at once."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from threading import Event
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import psutil
from gradio_client import Client
from huggingface_hub import HfApi
from machine import describe_machine
from processes import ROOT
from rich import box
from rich.console import Console
from rich.table import Table
from safetensors.numpy import save_file
from scratch import benchmark_arguments, scratch

_TOKEN = "hf_alice"
_SOURCE = "alice/source"
_MB = 1_000_000


def main() -> None:
    """Serve a Hub and the page, measure, print the table."""
    parser = benchmark_arguments(__doc__)
    parser.add_argument("--visitors", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60, help="how long they plan (default: 60)")
    arguments = parser.parse_args()
    with scratch(arguments.folder, 3 * _BYTES) as folder, _hub(folder) as hub:
        _push_source(hub, folder)
        starts = [_seconds_to_answer(hub, folder) for _ in range(arguments.pairs)]
        with _page(hub, folder) as (address, page):
            _plan(_client(address), "1GB")  # the headers are read once
            times, errors = _plan_together(address, arguments.visitors, arguments.seconds)
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
    console = Console(width=200, highlight=False, markup=False)
    console.print("## The page")
    console.print(table)
    console.print(f"- Each visitor asks `/plan` anew as soon as there is an answer, for {arguments.seconds:.0f} s.")
    console.print(f"- Machine: {describe_machine(ROOT, ('gradio', 'huggingface_hub'))}.", soft_wrap=True)
    console.print(f"- Load average at the end: {os.getloadavg()[0]:.1f}.")


_TENSORS, _ELEMENTS = 400, 200_000
_BYTES = 4 * _TENSORS * _ELEMENTS


@contextmanager
def _hub(folder: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "sharding.localhub", "--folder", str(folder / "hub")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout
        yield process.stdout.readline().split()[1]
        process.terminate()


def _push_source(hub: str, folder: Path) -> None:
    tensors = {f"layers.{n}.weight": np.random.default_rng(n).random(_ELEMENTS, np.float32) for n in range(_TENSORS)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    api = HfApi(endpoint=hub, token=_TOKEN)
    api.create_repo(_SOURCE)
    api.upload_file(path_or_fileobj=folder / "model.safetensors", path_in_repo="model.safetensors", repo_id=_SOURCE)


@contextmanager
def _page(hub: str, folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **{"HF_ENDPOINT": hub, "HF_TOKEN": _TOKEN, "HF_HOME": str(folder / "home")},
        **{"SHARD_FOLDER": str(folder / "desk"), "GRADIO_SERVER_PORT": str(port)},
    }
    command = [sys.executable, str(ROOT / "app.py")]
    with subprocess.Popen(command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL) as process:
        try:
            while True:
                try:
                    with urlopen(f"http://127.0.0.1:{port}", timeout=5):
                        break
                except (URLError, ConnectionError):
                    time.sleep(0.02)
            yield f"http://127.0.0.1:{port}", psutil.Process(process.pid)
        finally:
            process.terminate()


def _seconds_to_answer(hub: str, folder: Path) -> float:
    started = time.monotonic()
    with _page(hub, folder):
        return time.monotonic() - started


def _client(address: str) -> Client:
    headers = {"Authorization": f"Bearer {_TOKEN}"}
    return Client(address, token=False, headers=headers, verbose=False, analytics_enabled=False)


def _plan(client: Client, size: str) -> None:
    plan = client.predict(source=_SOURCE, max_shard_size=size, api_name="/plan")
    assert plan["total_bytes"] == _BYTES


def _plan_together(address: str, visitors: int, seconds: float) -> tuple[list[float], int]:
    """Return how long every plan took, and how many failed."""
    clients = [_client(address) for _ in range(visitors)]
    until = time.monotonic() + seconds

    def visit(client: Client) -> tuple[list[float], int]:
        times, errors, number = [], 0, 0
        while (started := time.monotonic()) < until:
            number += 1
            try:
                _plan(client, f"{number % 50 + 1}MB")
            except Exception:
                errors += 1
            times.append(time.monotonic() - started)
        return times, errors

    with ThreadPoolExecutor(visitors) as pool:
        results = list(pool.map(visit, clients))
    return [seconds for times, _ in results for seconds in times], sum(errors for _, errors in results)


def _memory_during_a_job(address: str, page: psutil.Process) -> int:
    """Return the most resident memory of the page's own process while a job runs."""
    client, ended = _client(address), Event()
    job = client.predict(source=_SOURCE, destination="alice/result", max_shard_size="2MB", api_name="/shard")["job"]

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
