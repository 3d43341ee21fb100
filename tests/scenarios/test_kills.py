"""Killed with -9 at random moments and run to the end: nothing half-made is seen, nothing is done twice."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, environment, new_seed
from tests.hubs import push
from tests.inhouse import InHouse
from tests.scenarios.torture import torture_hub, write_source


@pytest.mark.parametrize("kills", [8, pytest.param(100, marks=pytest.mark.thorough)])
def test_kills_of_forked_jobs_lose_nothing_and_repeat_two_shards_at_most(kills: int) -> None:
    seed = new_seed()
    # A process of its own: forks of this one would share whatever other tests have started in it.
    command = [sys.executable, "-m", "tests.scenarios.torture", "--only", "folder", "--seed", str(seed), str(kills)]
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"{kills} kills" in done.stdout


@pytest.mark.usefixtures("nothing_stays_on_this_disk")
@pytest.mark.parametrize("kills", [1, pytest.param(12, marks=pytest.mark.thorough)])
def test_kills_from_hub_to_hub_leave_main_whole_and_repeat_nothing_that_was_noted(
    kills: int, hub: InHouse, name: str, tmp_path: Path
) -> None:
    moments = random.Random(new_seed())
    source = push(hub, write_source(tmp_path / "in", 40, 300_000), f"{name}-source")
    assert torture_hub(hub, source, name, tmp_path, kills, moments).kills >= kills
