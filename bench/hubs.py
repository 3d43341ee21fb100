"""Loopback Hubs to measure against, and a small disk to work on."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from processes import ROOT, Surroundings

TOKEN = "hf_alice"


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
    if log:
        command.append("--access-log")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, bufsize=1) as process:
        assert process.stdout
        word, _, address = next(line for line in process.stdout if line.startswith("ready")).strip().partition(" ")
        try:
            yield address
        finally:
            process.terminate()
            requests = process.stdout.read()
            if log:
                log.write_text(requests)


def environment(address: str, home: Path) -> Mapping[str, str]:
    """Return the variables under which a client knows nothing but the Hub at `address` and the folder `home`."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
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
