"""A Hub that answers oddly, or not as the public one: a sentence and a hint; never a traceback."""

import json
from pathlib import Path

import pytest

from sharding import job
from sharding.core.errors import DestinationError, ShardingError
from sharding.storage.hub import answers as retry
from sharding.storage.hub.staging import STAGING_BRANCH
from tests.commands import invoke, run_process
from tests.folders import finish, kept, until_shard
from tests.hubs import TOKEN, branches, exists, files_of, shard
from tests.inhouse import InHouse, hub_in_house
from tests.scenarios.conftest import SOURCE

JSON_IN_THE_STORE = "*.json filter=lfs diff=lfs merge=lfs -text\n*.safetensors filter=lfs diff=lfs merge=lfs -text\n"


def test_what_nobody_foresaw_is_a_fault_of_the_program_with_status_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "inspect", lambda *_, **__: 1 / 0)
    ended = invoke("inspect", SOURCE, "--json")
    assert ended.exit_code == 3
    error = json.loads(ended.stdout)["error"]
    assert (error["kind"], "ZeroDivisionError" in error["message"]) == ("Fault", True)
    assert "bug in the program" in error["message"] and "Please report" in error["hint"]
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("endpoint", "purpose", "is_before"),
    [
        ("GET /api/models/MADE/refs", "staging", True),
        ("POST /api/models/MADE/branch/", "staging", False),
        ("POST /api/models/MADE/preupload/", "the upload", False),
        ("POST /api/models/MADE/commit/", "publishing", False),
        ("GET /api/whoami-v2", "the login", True),
    ],
)
def test_an_endpoint_that_is_missing_is_named_where_it_can_be_before_a_repo_is_made(
    hub: InHouse, name: str, endpoint: str, purpose: str, is_before: bool
) -> None:
    endpoint = endpoint.replace("MADE", name)
    with hub.failing(f"gone@{endpoint}"), pytest.raises(DestinationError) as refusal:
        shard(hub, SOURCE, name)
    method, path = endpoint.split()
    assert refusal.value.message.startswith(f"This Hub has no {method} {path.rstrip('/')}")
    assert refusal.value.message.endswith(f", but {purpose} needs it.")
    assert hub.asked("POST /api/repos/create") == (0 if is_before else 1)
    assert not exists(hub, name)


def test_a_repo_that_is_there_can_be_written_where_nobody_can_be_asked_for_the_right(hub: InHouse, name: str) -> None:
    hub.api().create_repo(name)
    with hub.failing("gone@GET .*/auth-check"):
        shard(hub, SOURCE, name)
    assert "sharding_report.json" in files_of(hub, name)
    rules = ("gone@GET .*/auth-check", "status:403@POST .*/branch/")
    with hub.failing(*rules), pytest.raises(DestinationError, match="The login does not allow it"):
        shard(hub, SOURCE, name, "70kB")


@pytest.mark.parametrize("token", ["hf_a\nb", "hf_ü"])
def test_what_the_client_itself_refuses_is_not_asked_again_and_again_nor_blamed_on_a_proxy(
    hub: InHouse, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(retry.time, "sleep", waited.append)
    with pytest.raises(ShardingError, match="cannot be sent") as refusal:
        job.inspect(SOURCE, endpoint=hub.address, token=token)
    assert (waited, hub.log) == ([], [])
    assert "proxy" not in refusal.value.hint and token not in str(refusal.value)


def test_the_remark_on_a_repo_that_stays_behind_is_told_also_where_its_branch_stays(hub: InHouse, name: str) -> None:
    until_shard(job.shard(SOURCE, name, "60kB", endpoint=hub.address, token=TOKEN), stop=True)
    with hub.failing("status:403@DELETE /api/repos/delete", "status:403@DELETE .*/branch/"):
        discarded = job.discard(name, endpoint=hub.address, token=TOKEN)
    assert f"This tool created {name} for the job. It is empty, but this tool could not delete it" in discarded.remark
    assert f"{hub.address}/{name}/settings" in discarded.remark
    assert f"Its branch {STAGING_BRANCH} is still there" in discarded.remark


def test_json_that_a_repo_keeps_in_the_store_does_not_stand_in_the_way(hub: InHouse, name: str) -> None:
    hub.api().create_repo(name)
    hub.api().upload_file(path_or_fileobj=JSON_IN_THE_STORE.encode(), path_in_repo=".gitattributes", repo_id=name)
    until_shard(job.shard(SOURCE, name, "60kB", endpoint=hub.address, token=TOKEN), stop=True)
    events = list(job.shard(SOURCE, name, "60kB", endpoint=hub.address, token=TOKEN))
    assert kept(events)
    assert finish(iter(events)).verification.identical
    stored = {file.rfilename: file.lfs for file in hub.api().model_info(name, files_metadata=True).siblings or []}
    assert stored["sharding_digests.json"]
    assert branches(hub, name) == {"main"}


def test_without_xet_nothing_is_remarked_on_each_shard(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hub_in_house(tmp_path / "hub", xet=False) as hub:
        for name, text in {"ENDPOINT": hub.address, "TOKEN": TOKEN, "HUB_DISABLE_XET": "1"}.items():
            monkeypatch.setenv(f"HF_{name}", text)
        ended = run_process("shard", folder, "alice/made", "-s", "60kB", "--public")
    assert ended.returncode == 0, ended.stderr
    assert "binary" not in ended.stderr and "IO buffer" not in ended.stderr
