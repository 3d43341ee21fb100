"""Killed with -9 at random moments and run to the end: nothing half-made is seen, nothing is done twice."""

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT, environment, new_seed, write_checkpoint
from tests.folders import recorded_in
from tests.hubs import push
from tests.localhub.conftest import Server
from tests.scenarios.torture import shown, stable, torture_page, which, write_source


def shard_command(source: Path, out: Path) -> list[str]:
    return [sys.executable, "-m", "sharding", "shard", str(source), str(out), "--max-shard-size", "1MB", "--events"]


@pytest.mark.parametrize("wanted", [3, pytest.param(15, marks=pytest.mark.thorough)])
def test_kills_at_random_moments_lose_nothing(wanted: int, tmp_path: Path) -> None:
    seed = new_seed()
    moments = random.Random(seed)
    tensors = {f"layers.{n}.weight": np.random.default_rng(n).bytes(250_000) for n in range(160)}
    arrays = {name: np.frombuffer(data, np.uint8) for name, data in tensors.items()}
    source = write_checkpoint(tmp_path / "in", {"model.safetensors": arrays}, index=False)
    started = time.monotonic()
    subprocess.run(shard_command(source, tmp_path / "whole"), env=environment(), check=True, capture_output=True)
    whole_seconds = time.monotonic() - started

    out = tmp_path / "out"
    finished: dict[str, tuple[int, int]] = {}
    kills = 0
    while kills < wanted:
        job = subprocess.Popen(shard_command(source, out), env=environment(), stdout=subprocess.DEVNULL)
        try:
            job.wait(moments.uniform(0.1, 1) * whole_seconds)
        except subprocess.TimeoutExpired:
            job.kill()
            job.wait()
            kills += 1
        if (out / "model.safetensors.index.json").exists():
            assert_complete(out, tmp_path / "whole")
            shutil.rmtree(out)
            finished = {}
        else:
            finished = assert_kept(out, finished)
    end = subprocess.run(shard_command(source, out), env=environment(), check=True, capture_output=True, text=True)
    events = [json.loads(line) for line in end.stdout.splitlines()]
    assert {
        event["file"] for event in events if event["event"] == "shard-finished" and event["kept"]
    } >= finished.keys()
    assert_kept(out, finished)
    assert stable(out) == stable(tmp_path / "whole")


def assert_complete(out: Path, whole: Path) -> None:
    """An index stands beside everything that it needs, even if the job had not ended yet."""
    assert shown(out) == stable(whole)


def assert_kept(out: Path, before: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Every shard that was finished before is the same file still; return all that are finished now."""
    now = {file: which(out, file) for file in {*before, *recorded_in(out)}}
    assert {file: now[file] for file in before} == before
    return now


@pytest.mark.parametrize("kills", [20, pytest.param(200, marks=pytest.mark.thorough)])
def test_kills_of_forked_jobs_lose_nothing_and_repeat_two_shards_at_most(kills: int) -> None:
    seed = new_seed()
    # A process of its own: forks of this one would share whatever other tests have started in it.
    command = [sys.executable, "-m", "tests.scenarios.torture", "--only", "folder", "--seed", str(seed), str(kills)]
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"{kills} kills" in done.stdout


@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.thorough)])
def test_kills_of_jobs_behind_the_page_lose_nothing(kills: int, served: Callable[..., Server], tmp_path: Path) -> None:
    seed = new_seed()
    hub = served()
    source = push(hub, write_source(tmp_path / "in", 60, 300_000), "alice/source")
    tally = torture_page(hub, source, "alice/page", tmp_path, kills, random.Random(seed))
    assert (tally.kills, tally.again) == (kills, kills)
