"""Loopback Hubs to measure against, and a small disk to work on."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi

from harness.processes import ROOT, Surroundings

TOKEN = "hf_alice"
UNKNOWN_CHUNKS = "--fault=status:404@GET /cas/v1/chunks/"
"""An option of a Hub whose store says of no chunk that it has it. So clients with empty caches send all bytes."""

_READY = re.compile(r"^ready (\S+)$", re.M)


@dataclass(frozen=True, slots=True)
class HubState:
    """Surroundings for a run: a Hub that begins as a copy of `original` (None: empty), reached by HF_ENDPOINT.

    With `small_disk` the command finds nothing but a file system of that many bytes under HF_HOME, TMPDIR and
    its working directory. `log` gets a line for every request, where it is given.
    """

    folder: Path
    original: Path | None = None
    options: Sequence[str] = ()
    small_disk_bytes: int | None = None
    log: Path | None = None

    @contextmanager
    def __call__(self) -> Iterator[Surroundings]:
        """Serve while the block lasts."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.original:
            shutil.copytree(self.original, self.folder)
        with ExitStack() as stack:
            address = stack.enter_context(serve(self.folder, self.options, self.log))
            home = self.folder.with_name(f"{self.folder.name}-home")
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir()
            if self.small_disk_bytes:
                stack.enter_context(_small_disk(home, self.small_disk_bytes))
            os.sync()
            yield Surroundings(environment(address, home), home)


@contextmanager
def serve(folder: Path, options: Sequence[str] = (), log: Path | None = None) -> Iterator[str]:
    """Yield the address of a loopback Hub kept in `folder`."""
    command = [sys.executable, "-m", "sharding.localhub", "--folder", str(folder), *options]
    said = log or folder.with_name(f"{folder.name}.log")
    if log:
        command.append("--access-log")
    with open(said, "wb") as output, subprocess.Popen(command, stdout=output, cwd=ROOT) as process:
        try:
            while not (ready := _READY.search(said.read_text())):
                if process.poll() is not None:
                    raise RuntimeError("The loopback Hub did not start.")
                time.sleep(0.05)
            yield ready[1]
        finally:
            process.terminate()


def filled(folder: Path, sources: Iterable[Path], options: Sequence[str] = (), *, private: bool = False) -> Path:
    """Return the folder of a new Hub that has each of `sources`, folders, as a repo of alice's of the same name."""
    full, home = folder / "full", folder / "home"
    with serve(full, options) as address:
        for source in sources:
            command = (sys.executable, ROOT / "bench/harness/peers.py", "upload", source, f"alice/{source.name}")
            subprocess.run([*map(str, command)], env=dict(environment(address, home)), check=True)
            if private:
                HfApi(address, TOKEN).update_repo_settings(f"alice/{source.name}", private=True)
    shutil.rmtree(home, ignore_errors=True)
    return full


def environment(address: str, home: Path) -> Mapping[str, str]:
    """Return the variables under which a client knows nothing but the Hub at `address` and the folder `home`."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "",  # An installed package is compiled once, as the peers are here.
        "HF_ENDPOINT": address,
        "HF_TOKEN": TOKEN,
        "HF_HOME": str(home),
        "TMPDIR": str(home),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }


@contextmanager
def _small_disk(place: Path, size_bytes: int) -> Iterator[None]:
    """Mount a file system in memory. Raises CalledProcessError where that is not permitted."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
