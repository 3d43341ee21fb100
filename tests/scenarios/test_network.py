"""What a network or a busy Hub does now and then is survived; what stays wrong ends in words, with nothing lost."""

import json
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharding import job
from sharding.core.errors import DestinationError, ShardingError, SourceError
from sharding.core.events import Published
from sharding.storage.hub import source as hub_source
from tests.clusters import wait_until
from tests.conftest import environment
from tests.folders import kept, until_shard
from tests.hubs import branches, exists, files_of, shard
from tests.inhouse import InHouse, hub_in_house
from tests.scenarios.conftest import SOURCE

LFS_WARNS = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # huggingface_hub's own, in its LFS upload
SECOND_HEADER = "GET .*/resolve/.*/model-00002.*"

pytestmark = pytest.mark.usefixtures("nothing_stays_on_this_disk")


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[InHouse]:
    """A Hub without Xet that has the source."""
    with hub_in_house(tmp_path_factory.mktemp("without"), xet=False) as hub:
        with warnings.catch_warnings(action="ignore"):  # huggingface_hub's own, in its LFS upload
            shard(hub, str(folder), SOURCE, "150kB", private=False)  # the client itself would want Xet
        yield hub


PASSING = [
    *("status:503@GET /api/whoami-v2#2", "status:429@GET .*/tree/#2"),
    *("status:500@POST /api/repos/create#1", "cut:0@POST /api/repos/create#1"),
    *("cut:0@POST .*/branch/#1", "status:502@POST .*/branch/#1"),
    *("status:504@POST .*/commit/.*staging#3", "cut:0@POST .*/commit/.*staging#2"),
    "cut:0@POST .*/commit/main#1",  # published, and nobody was told
    *("status:503@DELETE .*/branch/#1", "status:503@GET .*/refs#1"),
    "status:503@GET .*/xet-(read|write)-token/#3",
    *("cut:20@GET .*/resolve/#4", "status:408@GET .*/resolve/#2"),
]
"""What goes wrong at every endpoint, and passes."""


@pytest.mark.parametrize("rules", [PASSING, ["status:503@.*%0.05", "cut:5@GET .*%0.05"]], ids=["each", "at random"])
def test_what_passes_is_tried_again_and_published_once(hub: InHouse, name: str, rules: list[str]) -> None:
    with hub.failing(*rules):
        assert shard(hub, SOURCE, name).verification.identical
        assert rules is not PASSING or {rule.left for rule in hub.rules} == {0}
    assert branches(hub, name) == {"main"}
    assert len(hub.api().list_repo_commits(name)) == 2  # the first is of the repo itself


@LFS_WARNS
@pytest.mark.parametrize(
    "rules",
    [
        ("cut:1000@GET .*/resolve/.*safetensors$#20", "status:503@POST .*/info/lfs/objects/batch#2"),
        ("short:7@GET .*/resolve/.*safetensors$#5", "cut:0@PUT .*#2"),
        ("stall:30@GET .*/resolve/.*safetensors$#2", "status:500@GET .*/resolve/.*safetensors$#3"),
    ],
)
def test_what_passes_is_tried_again_without_xet(
    without: InHouse, name: str, rules: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if rules[0].startswith("stall"):
        monkeypatch.setattr(hub_source, "READ_TIMEOUT_SECONDS", 1)
    monkeypatch.setattr(hub_source, "LEAST_BYTES", 1000)  # what a try must bring to count as a new one
    with without.failing(*rules):
        assert shard(without, SOURCE, name).verification.identical


@LFS_WARNS
@pytest.mark.parametrize(
    ("rule", "says"),
    [("short:7", "ended early"), ("cut:0", "cannot be reached"), ("status:404", "cannot find it")],
)
def test_what_stays_wrong_with_reading_leaves_nothing(without: InHouse, name: str, rule: str, says: str) -> None:
    rule = f"{rule}@GET .*/resolve/.*safetensors$"
    with without.failing(rule), pytest.raises(SourceError, match=says) as refusal:
        shard(without, SOURCE, name)
    assert refusal.value.hint
    assert not exists(without, name)


# --- Logins -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("private", [False, True])
def test_a_login_that_may_only_contribute_makes_the_repo_as_visible_as_it_is_to_be(
    hub: InHouse, name: str, private: bool
) -> None:
    token = hub.login("alice", "openid contribute-repos read-repos")["access_token"]
    events = list(job.shard(SOURCE, name, "60kB", private=private, endpoint=hub.address, token=token))
    (published,) = [event for event in events if isinstance(event, Published)]
    assert published.remark == ""  # it could not change that later
    assert hub.api().model_info(name).private is private
    assert "model.safetensors.index.json" in files_of(hub, name)


def test_a_login_without_the_scope_for_it_is_refused(hub: InHouse, name: str) -> None:
    token = hub.login("alice", "openid read-repos")["access_token"]
    with pytest.raises(DestinationError, match="does not allow it.*scope"):
        shard(hub, SOURCE, name, token=token)
    gated = f"{name}-gated"
    hub.api().duplicate_repo(SOURCE, gated, private=False)
    hub.api().update_repo_settings(gated, gated="auto")
    token = hub.login("alice", "openid contribute-repos")["access_token"]
    with pytest.raises(SourceError, match="gated"):
        shard(hub, gated, name, token=token)
    token = hub.login("alice", "openid contribute-repos gated-repos")["access_token"]
    assert shard(hub, gated, name, token=token).verification.identical


def test_an_expired_login_stops_a_job_which_goes_on_after_the_next(hub: InHouse, name: str) -> None:
    token = hub.login("alice", "openid contribute-repos read-repos")["access_token"]
    events = job.shard(SOURCE, name, "20kB", endpoint=hub.address, token=token)
    until_shard(events)
    with hub.failing("status:401@.*"), pytest.raises(ShardingError, match="not valid") as stop:
        list(events)
    assert "sign in" in stop.value.hint.lower()
    token = hub.login("alice", "openid contribute-repos read-repos")["access_token"]
    assert kept(job.shard(SOURCE, name, "20kB", endpoint=hub.address, token=token))
    assert branches(hub, name) == {"main"}


# --- Giving up ----------------------------------------------------------------------------------------


@LFS_WARNS
def test_an_interrupt_ends_a_job_whose_network_stalls(without: InHouse, tmp_path: Path) -> None:
    env = {**environment(), "HF_ENDPOINT": without.address, "HF_TOKEN": "hf_alice", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "sharding", "inspect", SOURCE, "--json"]
    without.log.clear()
    with without.failing(f"stall:3600@{SECOND_HEADER}"):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        wait_until(lambda: without.asked(SECOND_HEADER))
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in stderr
    assert json.loads(stdout)["error"]["kind"] == "Cancelled"
