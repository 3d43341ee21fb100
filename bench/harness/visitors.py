"""The page on a loopback Hub, and visitors who use it as programs do."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import psutil
from gradio_client import Client
from huggingface_hub import HfApi
from safetensors.numpy import save_file

from harness.processes import ROOT

TOKEN = "hf_alice"
SOURCE = "alice/source"

_TENSORS, _ELEMENTS = 400, 200_000
SOURCE_BYTES = 4 * _TENSORS * _ELEMENTS


@contextmanager
def serve_hub(folder: Path) -> Iterator[str]:
    """Yield the address of a Hub that has the source."""
    command = [sys.executable, "-m", "sharding.localhub", "--folder", str(folder / "hub")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout
        address = process.stdout.readline().split()[1]
        _push_source(address, folder)
        yield address
        process.terminate()


def _push_source(hub: str, folder: Path) -> None:
    tensors = {f"layers.{n}.weight": np.random.default_rng(n).random(_ELEMENTS, np.float32) for n in range(_TENSORS)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    api = HfApi(endpoint=hub, token=TOKEN)
    api.create_repo(SOURCE)
    api.upload_file(path_or_fileobj=folder / "model.safetensors", path_in_repo="model.safetensors", repo_id=SOURCE)


@contextmanager
def serve_page(hub: str, folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Yield the address of the page, once it answers, and its process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **{"HF_ENDPOINT": hub, "HF_TOKEN": TOKEN, "HF_HOME": str(folder / "home")},
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


def connect(address: str) -> Client:
    """Return a visitor of the page who bears `TOKEN`."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    return Client(address, token=False, headers=headers, verbose=False, analytics_enabled=False)


def plan(client: Client, size: str) -> None:
    """Ask the page for a plan. Raises AssertionError where it is wrong."""
    planned = client.predict(source=SOURCE, max_shard_size=size, api_name="/plan")
    assert planned["total_bytes"] == SOURCE_BYTES


def plan_together(address: str, visitors: int, seconds: float) -> tuple[list[float], int]:
    """Let visitors plan, each anew as soon as there is an answer; return how long every plan took, and failures."""
    with ThreadPoolExecutor(visitors) as pool:
        clients = list(pool.map(lambda _: connect(address), range(visitors)))
        until = time.monotonic() + seconds

        def visit(client: Client) -> tuple[list[float], int]:
            times, errors, number = [], 0, 0
            while (started := time.monotonic()) < until:
                number += 1
                try:
                    plan(client, f"{number % 50 + 1}MB")
                except Exception:
                    errors += 1
                times.append(time.monotonic() - started)
            return times, errors

        results = list(pool.map(visit, clients))
    return [seconds for times, _ in results for seconds in times], sum(errors for _, errors in results)
