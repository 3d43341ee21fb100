"""What a job is pinned to, and what goes on later as it was begun."""

import json
from pathlib import Path

import pytest

from sharding import job
from sharding.core.options import Options
from sharding.desk.desk import Desk
from sharding.desk.jobs import JobRequest
from sharding.formats.names import REPORT_NAME
from sharding.storage.hub.staging import STAGING_BRANCH
from tests.conftest import random_tensors, write_checkpoint
from tests.desk.actors import Stage
from tests.desk.conftest import ALICE, AS_ALICE, state, stop_short
from tests.hubs import branches, push, shard
from tests.inhouse import InHouse

SIZE = Options("60kB")


def test_a_job_copies_the_commit_that_was_planned_whatever_is_pushed_later(
    hub: InHouse, desk: Desk, stage: Stage, name: str, tmp_path: Path
) -> None:
    folder = write_checkpoint(tmp_path / "in", {"model.safetensors": random_tensors()}, False)
    source = push(hub, folder, f"{name}-source")
    commit = hub.api().model_info(source).sha
    actor = stage(name)
    job_id = desk.submit(JobRequest(source, name, SIZE), *AS_ALICE)
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    hub.api().upload_folder(repo_id=source, folder_path=folder)
    assert hub.api().model_info(source).sha != commit
    status = state(desk, job_id, "running")
    assert status.request == JobRequest(f"{source}@{commit}", name, SIZE)
    assert actor.arguments[-2:] == [f"{source}@{commit}", name]
    actor.exit()
    assert state(desk, job_id, "failed").request == status.request


def test_a_check_is_of_what_the_result_says_of_itself_at_the_commits_that_are_there(
    hub: InHouse, desk: Desk, stage: Stage, variants: str, name: str
) -> None:
    """The same variant, dtype and commits; and not what is pushed meanwhile."""
    shard(hub, variants, name, Options("1MB", variant="fp16"))
    for dtype in ("keep", "bf16"):
        report = json.loads(hub.ask("GET", f"/{name}/resolve/main/{REPORT_NAME}").body)
        report["plan"]["asked"] = {"variant": "fp16"} | ({} if dtype == "keep" else {"dtype": dtype})
        hub.api().upload_file(repo_id=name, path_in_repo=REPORT_NAME, path_or_fileobj=json.dumps(report).encode())
        source, copy = (f"{repo}@{hub.api().model_info(repo).sha}" for repo in (variants, name))
        job_id = desk.submit_about("verify", name, *AS_ALICE)
        request = state(desk, job_id, "running").request
        assert (request.kind, request.source, request.destination) == ("verify", source, copy)
        assert (request.options.variant, request.options.dtype) == ("fp16", dtype)
        stage(copy).exit()
        state(desk, job_id, "failed")


@pytest.mark.parametrize("private", [None, True])
def test_what_is_unfinished_goes_on_with_its_choices_and_as_hidden_as_it_was(
    hub: InHouse, desk: Desk, stage: Stage, variants: str, name: str, private: bool | None
) -> None:
    """From the commit that was copied, whatever is pushed meanwhile; nobody else's repo says anything of it."""
    options = Options("10kB", "blocks", "stored", variant="fp16", allow_overflow=True)
    source = f"{variants}@{hub.api().model_info(variants).sha}"
    stop_short(hub, source, name, options, private=private)
    hub.api().upload_file(repo_id=variants, path_in_repo=f"{private}.txt", path_or_fileobj=b"Later.")
    request = desk.unfinished(name, ALICE)
    assert request == JobRequest(source, name, options, private=bool(private), confirmed=True)
    assert desk.unfinished(f"{name}-none", ALICE) is None and desk.unfinished(variants, ALICE) is None
    actor = stage(name)
    job_id = desk.submit(request, *AS_ALICE)
    assert state(desk, job_id, "running").request == request
    assert ("--private" if private else "--public") in actor.arguments
    actor.exit()
    state(desk, job_id, "failed")
    job.discard(name, endpoint=hub.address, token=ALICE)
    assert desk.unfinished(name, ALICE) is None


def test_what_was_begun_from_a_folder_cannot_go_on_here(hub: InHouse, desk: Desk, name: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "in", {"model.safetensors": random_tensors()}, False)
    stop_short(hub, str(folder), name)
    assert desk.unfinished(name, ALICE) is None
    assert STAGING_BRANCH in branches(hub, name)
