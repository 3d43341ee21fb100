"""A copy is made, resumed and discarded on disks that lack something. Each is a real file system (FUSE)."""

import os
import posix
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharding import job
from sharding.core.errors import DestinationError
from sharding.core.protocols import Discarded
from sharding.storage.journal import JOURNAL_NAME
from tests.commands import run_process
from tests.conftest import environment, listing
from tests.folders import finish, kept, reshard, staged, until_shard
from tests.hubs import TOKEN
from tests.inhouse import InHouse
from tests.storage.odd_disk import MOST_BYTES

pytestmark = pytest.mark.thorough


@pytest.fixture(autouse=True)
def real_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests of this folder do without."""
    monkeypatch.setattr(os, "fsync", posix.fsync)


@pytest.fixture
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A disk that lacks what the test says."""
    below, place = tmp_path / "below", tmp_path / "disk"
    for folder in (below, place):
        folder.mkdir()
    command = [sys.executable, "-m", "tests.storage.odd_disk", request.param, str(below), str(place)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment(), **pipes) as server:  # type: ignore[call-overload]
        assert server.stdout and server.stderr
        if server.stdout.readline() != "ready\n":
            pytest.skip(f"This process may not mount a disk over FUSE: {server.stderr.read().strip()[-200:]}")
        try:
            yield place
        finally:
            subprocess.run(["umount", "--lazy", place], check=True)
            server.wait(60)


def killed(checkpoint: Path, out: Path) -> None:
    """A job that a kill has ended in the midst of its shards."""
    command = [sys.executable, "-m", "sharding", "shard", str(checkpoint), str(out), "-s", "20kB", "--events"]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            if '"shard-finished"' in line:
                process.send_signal(signal.SIGKILL)
                break
        process.stdout.read()
    assert staged(out).is_dir() and (staged(out) / JOURNAL_NAME).exists()


@pytest.mark.parametrize("disk", ["sync", "locks", "append"], indirect=True)
def test_a_copy_is_made_replaced_and_resumed_after_a_kill_and_discarded(checkpoint: Path, disk: Path) -> None:
    out = disk / "out"
    reshard(checkpoint, out, "60kB")
    reshard(checkpoint, out, "20kB")
    assert not staged(out).exists()
    killed(checkpoint, disk / "killed")
    events = list(job.shard(str(checkpoint), str(disk / "killed"), "20kB"))
    assert kept(events) > 0 and listing(disk / "killed").keys() == listing(out).keys()
    killed(checkpoint, disk / "given up")
    assert job.discard(str(disk / "given up")) == Discarded(found=True)
    assert not (disk / "given up").exists() or listing(disk / "given up") == {}
    killed(checkpoint, disk / "other")
    reshard(checkpoint, disk / "other", "60kB")  # another plan


@pytest.mark.parametrize("disk", ["locks", "append"], indirect=True)
def test_two_jobs_still_keep_out_of_each_others_way(checkpoint: Path, disk: Path) -> None:
    first = job.shard(str(checkpoint), str(disk / "out"), "20kB")
    until_shard(first)
    done = run_process("shard", checkpoint, disk / "out", "-s", "20kB")
    assert done.returncode == 3 and "Another job is writing" in done.stderr
    assert finish(first).verification.identical


@pytest.mark.parametrize("disk", ["size"], indirect=True)
def test_a_file_that_is_too_large_for_a_disk_is_refused_with_a_size_that_fits(checkpoint: Path, disk: Path) -> None:
    with pytest.raises(DestinationError) as refusal:
        finish(job.shard(str(checkpoint), str(disk / "out"), "1GB"))
    assert "takes no file larger than 150.0 kB" in refusal.value.message
    assert refusal.value.hint == "Start again with a shard size of 100kB."
    assert 100_000 < MOST_BYTES == 150_000
    reshard(checkpoint, disk / "out", "100kB")


def test_a_home_that_cannot_be_written_takes_no_cache(hub: InHouse, own: str, name: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    read_only = ["mount", "--bind", "-o", "ro", home, home]
    if subprocess.run(read_only, capture_output=True).returncode:
        pytest.skip("This process may not mount anything.")
    try:
        known = {text: value for text, value in environment().items() if not text.startswith(("HF_", "XDG_"))}
        known |= {"HOME": str(home), "TMPDIR": str(tmp_path), "HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN}
        done = run_process("shard", own, name, "-s", "9kB", env=known)
        assert done.returncode == 0, done.stderr
    finally:
        subprocess.run(["umount", home], check=True)
    assert listing(home) == {}
    assert hub.asked("xet-write-token") and not list(tmp_path.glob("shard-*")), "what was written there is gone"
