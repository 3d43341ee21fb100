"""Kill jobs with -9 at random moments, again and again: `python -m tests.scenarios.torture 500` for a long run.

A job into a folder, or from repo to repo, is begun, killed and begun again until it is done, and then with the next
destination, until it has been killed so many times. After every kill nothing half-made is seen and no shard is lost that
was noted as finished; in the end the result is bit-identical.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.harness.sections import RESULTS, replace_section
from sharding.core.limits import THREADS
from sharding.formats.names import STAGING_FOLDER
from sharding.storage.folder_writing import staging_in
from sharding.storage.hub.staging import RECORDS, STAGING_BRANCH
from tests.conftest import environment, write_checkpoint
from tests.folders import compared, recorded_in, reshard
from tests.hubs import TOKEN, branches, exists, files_of, push
from tests.localhub.conftest import Server
from tests.storage.publications import stable

INDEX = "model.safetensors.index.json"


@dataclass
class Tally:
    """What came of the kills."""

    kills: int = 0
    finished: int = 0


def write_source(folder: Path, tensors: int, tensor_bytes: int) -> Path:
    chance = np.random.default_rng(0)
    arrays = {f"layers.{number}.weight": chance.integers(0, 256, tensor_bytes, np.uint8) for number in range(tensors)}
    return write_checkpoint(folder, {"model.safetensors": arrays}, index=False)


def which(out: Path, file: str) -> tuple[int, int]:
    part = staging_in(out) / f"{file}.part"
    stat = (part if part.exists() else out / file).stat()
    return stat.st_ino, stat.st_mtime_ns


# --- A folder -------------------------------------------------------------------------------------------


def torture_folder(place: Path, kills: int, moments: random.Random) -> Tally:
    """Kill jobs from folder to folder, each in a fork of this process, which must not have used hf-xet."""
    source, out = write_source(place / "in", 40, 25_000), place / "out"
    started = time.monotonic()
    _forked(source, place / "whole", None)
    whole_seconds, whole = time.monotonic() - started, stable(place / "whole")
    tally, noted = Tally(), dict[str, tuple[int, int]]()
    while tally.kills < kills:
        killed = _forked(source, out, moments.uniform(0, 1.1) * whole_seconds)
        tally.kills += killed
        found = stable(out) if out.exists() else {}
        if INDEX in found:
            assert {name: data for name, data in found.items() if not name.startswith(f"{STAGING_FOLDER}/")} == whole
            shutil.rmtree(out)
            noted, tally.finished = {}, tally.finished + 1
        else:
            now = {file: which(out, file) for file in recorded_in(out)}
            assert {file: now.get(file) for file in noted} == noted, "a finished shard was lost or written again"
            parts = staging_in(out).glob("*.safetensors*.part")
            noted, under_way = now, {f"{path.name.partition('.')[0]}.safetensors" for path in parts} - set(now)
            assert len(under_way) <= THREADS
    _forked(source, out, None)
    assert stable(out) == whole
    return tally


def _forked(source: Path, out: Path, seconds: float | None) -> bool:
    """Run a job in a fork; kill it after `seconds`. Return whether it was killed."""
    child = os.fork()
    if child == 0:
        try:
            reshard(source, out, "100kB")
        except BaseException:
            traceback.print_exc()  # nothing else says it once the process is gone
            os._exit(1)
        os._exit(0)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


# --- From repo to repo ----------------------------------------------------------------------------------


def torture_hub(hub: Server, source: str, name: str, place: Path, kills: int, moments: random.Random) -> Tally:
    """Kill jobs from repo to repo, each in a process and with a home of its own, as on another machine every time."""
    tally, whole, base = Tally(), False, name
    noted: set[str] = set()
    while not (whole and tally.kills >= kills):
        if whole:  # on with the next one
            name, noted = f"{base}-{tally.finished}", set()
        kept, killed = _run(hub, source, name, place, moments if tally.kills < kills else None)
        assert kept is None or noted <= kept, f"lost {noted - kept}"
        noted = staged(hub, name)
        tally.kills += killed
        if whole := _shown_whole(hub, name):
            if killed:  # after the commit on main, before the staging branch was gone
                _run(hub, source, name, place, None)
            tally.finished += 1
            assert branches(hub, name) == {"main"}
            assert compared(source, name, endpoint=hub.address, token=TOKEN).identical
    return tally


def _run(
    hub: Server, source: str, name: str, place: Path, moments: random.Random | None
) -> tuple[set[str] | None, bool]:
    """Run a job, killed in its transfer or while it publishes; return the shards that it kept, and whether it was killed.

    What it kept is None if it was killed before it had said all of that.
    """
    home = tempfile.mkdtemp(prefix="home", dir=place)
    command = [sys.executable, "-m", "sharding", "shard", source, name, "--max-shard-size", "1MB", "--events"]
    env = {**environment(), "HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN, "HF_HOME": home}
    kept, new = set[str](), set[str]()
    shards_before_kill = moments.randrange(3) if moments else -1
    publishes = bool(moments and moments.random() < 0.3)
    killed = has_moved = False
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout
        while line := process.stdout.readline():
            event = json.loads(line)
            assert event.get("error") is None, event
            if event["event"] == "shard-finished":
                (kept if event["kept"] else new).add(event["file"])
            moved = event["event"] != "planned" and len(new) == shards_before_kill
            has_moved |= bool(new) or event.get("stage") in ("transfer", "verify") or event["event"] == "verified"
            if moments and not killed and (event["event"] == "verified" if publishes else moved):
                time.sleep(moments.random() * 0.3)
                killed = process.poll() is None
                process.kill()
        process.communicate()
    return kept if has_moved else None, killed


def staged(hub: Server, name: str) -> set[str]:
    """Return the shards of which the staging branch, where there is one, has a record."""
    if not exists(hub, name) or STAGING_BRANCH not in branches(hub, name):
        return set()
    files = hub.api().list_repo_files(name, revision=STAGING_BRANCH)
    return {path.removeprefix(RECORDS).removesuffix(".json") for path in files if path.startswith(f"{RECORDS}model")}


def _shown_whole(hub: Server, name: str) -> bool:
    """Return whether `main` shows the result; half of it is no answer."""
    shown = files_of(hub, name) if exists(hub, name) else set()
    assert INDEX in shown or not any(path.endswith(".safetensors") for path in shown)
    return INDEX in shown


# --- A long run -----------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kills", type=int, nargs="?", default=500)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--only", choices=["folder"], help="one way only")
    parser.add_argument("--note", action="store_true", help="write the outcome into bench/RESULTS.md")
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}", flush=True)
    moments = random.Random(options.seed)
    hub_kills = 0 if options.only else options.kills * 4 // 10
    started, tallies = time.monotonic(), dict[str, Tally]()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        tallies["a folder"] = torture_folder(place / "folder", options.kills - hub_kills, moments)
        if hub_kills:
            hub = Server(place / "served").start()
            try:
                source = push(hub, write_source(place / "in", 60, 300_000), "alice/source")
                tallies["repo to repo"] = torture_hub(hub, source, "alice/made", place, hub_kills, moments)
            finally:
                hub.stop()
    outcome = draw(tallies, options.seed, time.monotonic() - started)
    print(outcome)
    if options.note:
        replace_section(RESULTS, "## Kills", outcome)


def draw(tallies: dict[str, Tally], seed: int, seconds: float) -> str:
    kills = sum(one.kills for one in tallies.values())
    rows = [f"| {kind} | {one.kills} | {one.finished} |" for kind, one in tallies.items()]
    head = f"""{kills} kills with -9 at random moments, seed {seed}, in {seconds / 60:.0f} minutes. After each, `main` and
the folder showed nothing or everything, and no shard that was noted was lost or written again; all results
were bit-identical. Command: `make torture N={kills}`.

| job | kills | results finished in between |
|---|---|---|"""
    return "\n".join([head, *rows])


if __name__ == "__main__":
    main()
