"""A desk that reads a result and its source whole, says what it found, and remembers it."""

from hashlib import sha256
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from sharding import job
from sharding.core.errors import Refused, SourceError
from sharding.core.options import Options
from sharding.desk import Desk, JobRequest, Settings
from tests.conftest import random_tensors, write_checkpoint
from tests.desk.conftest import ALICE, AS_ALICE, BOB, end
from tests.hubs import download
from tests.localhub.conftest import Server


@pytest.fixture
def copy(hub: Server, small: str, name: str) -> str:
    """A result that no desk has made, in bob's namespace."""
    repo_id = name.replace("alice/", "bob/")
    *_, _ = job.shard(small, repo_id, "70kB", endpoint=hub.address, token=BOB)
    return repo_id


def test_a_check_reads_both_whole_and_is_remembered(desk: Desk, settings: Settings, small: str, copy: str) -> None:
    assert desk.judge(copy, ALICE)[1].level == "fits"
    done = end(desk, desk.submit_check(copy, *AS_ALICE))
    assert (done.state, done.error) == ("done", None)
    assert done.verification and done.verification.identical and done.verification.tensors == 14
    assert done.request.source.startswith(f"{small}@") and done.request.destination.startswith(f"{copy}@")
    result, trust = desk.judge(copy, ALICE)
    assert (trust.level, result.repo_id) == ("read-now", copy)
    desk.close()
    with Desk(settings) as later:
        assert later.judge(copy, None)[1].level == "read-now"


def test_a_check_that_finds_a_difference_fails_and_stays_red(
    desk: Desk, hub: Server, copy: str, tmp_path: Path
) -> None:
    folder = download(hub, copy, tmp_path / "copy")
    shard = folder / "model-00001-of-00004.safetensors"
    tensors = load_file(shard)
    changed = sorted(tensors)[0]
    tensors[changed].reshape(-1).view("u1")[0] ^= 1
    save_file(tensors, shard, metadata={"format": "pt"})
    report = (folder / "sharding_report.json").read_text()
    before = sha256(hub.ask("GET", f"/{copy}/resolve/main/{shard.name}").body).hexdigest()
    (folder / "sharding_report.json").write_text(report.replace(before, sha256(shard.read_bytes()).hexdigest()))
    hub.api(BOB).upload_folder(repo_id=copy, folder_path=folder, ignore_patterns=[".cache/*"])
    assert desk.judge(copy, ALICE)[1].level == "fits"
    failed = end(desk, desk.submit_check(copy, *AS_ALICE))
    assert failed.state == "failed" and failed.error
    assert failed.error[0] == f"The copy differs from its source in 1 tensor: {changed}: its bytes differ."
    trust = desk.judge(copy, ALICE)[1]
    assert trust.level == "contradicted" and failed.error[0] in trust.reasons


def test_what_was_made_here_is_known_to_be(desk: Desk, small: str, name: str) -> None:
    made = end(desk, desk.submit(JobRequest(small, name, Options("70kB")), *AS_ALICE))
    assert made.state == "done"
    assert desk.judge(name, BOB)[1].level == "made-here"


def test_there_is_nothing_to_check_where_there_is_no_result_or_no_source(
    desk: Desk, hub: Server, small: str, name: str, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match="no sharding_report.json"):
        desk.submit_check(small, *AS_ALICE)
    folder = write_checkpoint(tmp_path / "folder", {"model.safetensors": random_tensors()}, False)
    *_, _ = job.shard(str(folder), name, "70kB", private=False, endpoint=hub.address, token=ALICE)
    with pytest.raises(Refused, match="made from a folder"):
        desk.submit_check(name, *AS_ALICE)
    assert desk.judge(name, ALICE)[1].level == "claims"
