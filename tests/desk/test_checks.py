"""A desk that reads a result and its source whole, says what it found, and remembers it."""

import warnings
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
import torch.distributed.checkpoint as dcp
from safetensors.numpy import load_file, save_file

from sharding import job
from sharding.core.errors import Refused, SourceError
from sharding.core.options import Options
from sharding.desk.desk import Desk
from sharding.desk.jobs import JobRecord, JobRequest, Settings, new_job_id
from sharding.page.result_panels import is_proved
from sharding.page.serving.pictures import certificate_of
from sharding.report.snippets import how_to_check
from tests import quantized
from tests.conftest import random_tensors, write_checkpoint
from tests.desk.actors import Stage
from tests.desk.conftest import ALICE, AS_ALICE, BOB, end, player, state
from tests.folders import tensors
from tests.ggufs import model
from tests.hubs import download, propose, push, shard
from tests.localhub.conftest import Server
from tests.promises import promise

pytestmark = pytest.mark.usefixtures("at_hand")


@pytest.fixture
def copy(hub: Server, small: str, name: str) -> str:
    """A result that no desk has made, in bob's namespace."""
    repo_id = name.replace("alice/", "bob/")
    shard(hub, small, repo_id, "70kB", BOB)
    return repo_id


def test_a_check_reads_both_whole_and_what_it_found_of_this_commit_is_remembered(
    hub: Server, desk: Desk, settings: Settings, small: str, copy: str
) -> None:
    """What is pushed later is another."""
    commit = f"{copy}@{hub.api().model_info(copy).sha}"
    assert desk.results.judge(copy, ALICE)[1].level == "fits"
    done = end(desk, desk.submit_about("verify", copy, *AS_ALICE))
    assert (done.state, done.error) == ("done", None)
    assert done.verification and done.verification.identical and done.verification.tensors == 14
    assert done.request.source.startswith(f"{small}@") and done.request.destination == commit
    assert desk.jobs_of("alice")[0].result == commit
    result, trust = desk.results.judge(copy, None)
    assert (trust.level, result.repo_id) == ("read-now", copy)
    hub.api(BOB).upload_file(repo_id=copy, path_in_repo="notes.txt", path_or_fileobj=b"Later.")
    desk.close()
    with Desk(settings) as later:
        assert [later.results.judge(place, ALICE)[1].level for place in (copy, commit)] == ["fits", "read-now"]


def test_a_result_of_gguf_files_is_held_to_those_of_a_source_that_has_other_weights_too(
    hub: Server, desk: Desk, tmp_path: Path, name: str
) -> None:
    both = model(write_checkpoint(tmp_path / "both", {"model.safetensors": random_tensors()}, False), "small-Q8_0")
    source, options = push(hub, both, "alice/both"), Options("10kB", format="gguf")
    list(job.shard(source, name, options, endpoint=hub.address, token=ALICE))
    assert desk.results.judge(name, None)[1].level == "fits"


def test_a_check_that_came_to_no_end_says_nothing_of_a_result(desk: Desk, stage: Stage, copy: str) -> None:
    job_id = desk.submit_about("verify", copy, *AS_ALICE)
    player(desk, stage, job_id).exit(3)
    state(desk, job_id, "failed")
    record = desk.jobs_of("alice")[0]
    assert record.result == "" and record.can_resume
    assert desk.results.judge(copy, ALICE)[1].level == "fits"


def test_the_time_of_a_result_is_that_of_the_job_here_that_made_this_commit(
    hub: Server, desk: Desk, small: str, copy: str
) -> None:
    """A check of it, and a job that made another commit, say nothing of it."""
    source, result = (f"{repo}@{hub.api().model_info(repo).sha}" for repo in (small, copy))
    asked = JobRequest(source, copy, Options("70kB"))
    made = JobRecord(new_job_id(copy), "alice", asked, 1, 5.0, "done", 6.0, 116.0, result=result)
    checked = replace(made, id=new_job_id(copy), request=replace(asked, destination=result, kind="verify"), ended=9.0)
    other = replace(made, id=new_job_id(copy), result=f"{copy}@{'0' * 40}", ended=7.0)
    wanted = desk.results.judge(copy, ALICE)[0]
    for record, seconds in ((checked, None), (other, None), (made, 110.0)):
        desk._shelf.save(record)
        assert desk.results.seconds_of(wanted) == seconds


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
    assert desk.results.judge(copy, ALICE)[1].level == "fits"
    failed = end(desk, desk.submit_about("verify", copy, *AS_ALICE))
    assert failed.state == "failed" and failed.error
    assert failed.error[0] == f"The copy differs from its source in 1 tensor. The first is {changed}: its bytes differ."
    trust = desk.results.judge(copy, ALICE)[1]
    assert trust.level == "contradicted" and failed.error[0] in trust.reasons


def test_what_was_made_here_is_known_to_be(desk: Desk, small: str, name: str) -> None:
    made = end(desk, desk.submit(JobRequest(small, name, Options("70kB")), *AS_ALICE))
    assert made.state == "done"
    assert desk.results.judge(name, BOB)[1].level == "made-here"
    assert desk.results.compare(small, name, None)[1].level == "made-here"


@promise("docs/security.md#make-every-byte-read-sound-like")
def test_a_copy_that_was_only_sampled_is_known_as_that_until_a_check_reads_it(
    desk: Desk, small: str, name: str
) -> None:
    made = end(desk, desk.submit(JobRequest(small, name, Options("70kB"), proof="stated"), *AS_ALICE))
    assert made.state == "done" and made.verification and made.verification.outcome.kind == "stated"
    assert made.reread == {} and any("The Hub states the hashes" in line for line in made.log)
    result, trust = desk.results.judge(name, BOB)
    assert trust.level == "stated" and "every byte" not in " ".join(trust.reasons)
    assert not is_proved(result.report, trust) and certificate_of(result, trust).tone == "plain"
    assert desk.results.compare(small, name, None)[1].level == "stated"
    end(desk, desk.submit_about("verify", name, *AS_ALICE))
    result, trust = desk.results.judge(name, BOB)
    assert trust.level == "read-now" and certificate_of(result, trust).tone == "good"
    assert desk.results.compare(small, name, None)[1].level == "read-now"


@pytest.fixture(scope="module")
def trained(hub: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base in FP8, here and on the Hub, and what a run has saved of it, quantized as it is."""
    folder = quantized.save_fp8("qwen3", tmp_path_factory.mktemp("in") / "base")
    run = folder.parent / "run"
    with warnings.catch_warnings(action="ignore"):
        dcp.save({"model": tensors(folder)}, storage_writer=dcp.FileSystemWriter(run), no_dist=True)
    push(hub, folder, "alice/base")
    push(hub, run, "alice/run")
    return folder


def test_what_is_said_of_a_copy_with_a_base_is_held_to_both(desk: Desk, hub: Server, trained: Path, name: str) -> None:
    copy = name.replace("alice/", "bob/")
    options = Options("1MB", base="alice/base", dequantize=True)
    shard(hub, "alice/run", copy, options, BOB)
    result, trust = desk.results.judge(copy, ALICE)
    assert trust.level == "fits", trust.reasons
    assert "--base alice/base@" in how_to_check(result.report, copy)["check every byte"]
    done = end(desk, desk.submit_about("verify", copy, *AS_ALICE))
    assert done.verification and done.verification.identical


def test_a_base_that_was_a_folder_is_missed_where_the_bytes_depend_on_it_and_only_there(
    desk: Desk, hub: Server, trained: Path, name: str
) -> None:
    shard(hub, "alice/run", name, Options("1MB", base=str(trained), dequantize=True))
    result, trust = desk.results.judge(name, ALICE)
    assert trust.level == "claims" and "the base was a folder" in trust.reasons[1]
    assert how_to_check(result.report, name) == {}
    with pytest.raises(Refused, match="folder, which is not on this machine"):
        desk.submit_about("verify", name, *AS_ALICE)
    shard(hub, "alice/run", f"{name}-kept", Options("1MB", base=str(trained)))
    assert desk.results.judge(f"{name}-kept", ALICE)[1].level == "fits"
    assert end(desk, desk.submit_about("verify", f"{name}-kept", *AS_ALICE)).state == "done"
    assert desk.results.judge(f"{name}-kept", ALICE)[1].level == "read-now"


@pytest.fixture
def unmerged(hub: Server, small: str, tmp_path: Path) -> str:
    """Other weights, in a pull request of bob in a repo of alice."""
    other = write_checkpoint(tmp_path / "other", {"model.safetensors": random_tensors(seed=9)}, False)
    return f"{small}@{propose(hub, other, small)}"


@promise("docs/security.md#get-weights-of-an-unmerged-pull")
def test_weights_of_a_pull_request_are_never_green(
    desk: Desk, settings: Settings, unmerged: str, name: str, hub: Server
) -> None:
    commit = unmerged.partition("@")[2]
    said = f"No known branch or tag of alice/small contains commit {commit[:12]}"
    made = end(desk, desk.submit(JobRequest(unmerged, name, Options("70kB")), *AS_ALICE))
    assert (made.state, made.unreached) == ("done", (unmerged,))
    trust = desk.results.judge(name, BOB)[1]
    assert trust.level == "unreached" and said in trust.reasons[0] and "This page made the copy" in trust.reasons[1]
    with Desk(Settings(settings.folder.parent / "elsewhere", hub.address)) as other:
        assert other.results.judge(name, BOB)[1].level == "unreached"
        done = end(other, other.submit_about("verify", name, *AS_ALICE))
        assert (done.state, done.unreached) == ("done", (unmerged,))
        trust = other.results.judge(name, BOB)[1]
        assert trust.level == "unreached" and "read every tensor of both" in trust.reasons[1]


@promise("docs/security.md#get-a-result-in-a-pull")
def test_a_result_in_a_pull_request_is_not_that_repos(
    desk: Desk, hub: Server, copy: str, tmp_path: Path, name: str
) -> None:
    hub.api(ALICE).create_repo(name)
    place = f"{name}@{propose(hub, download(hub, copy, tmp_path / 'copy'), name)}"
    trust = desk.results.judge(place, ALICE)[1]
    assert trust.level == "unreached" and f"No known branch or tag of {name} contains" in trust.reasons[0]
    done = end(desk, desk.submit_about("verify", place, *AS_ALICE))
    assert done.state == "done" and desk.results.judge(place, ALICE)[1].level == "unreached"
    assert desk.results.judge(f"{name}@refs/pr/1", ALICE)[1].level == "unreached"


def test_there_is_nothing_to_check_where_there_is_no_result_or_no_source(
    desk: Desk, hub: Server, small: str, name: str, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match="no sharding_report.json"):
        desk.submit_about("verify", small, *AS_ALICE)
    folder = write_checkpoint(tmp_path / "folder", {"model.safetensors": random_tensors()}, False)
    shard(hub, str(folder), name, private=False)
    with pytest.raises(Refused, match="made from a folder"):
        desk.submit_about("verify", name, *AS_ALICE)
    assert desk.results.judge(name, ALICE)[1].level == "claims"
