"""What a network or a busy Hub does now and then is survived; what stays wrong ends in words, with nothing lost."""

import json
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sharding import job
from sharding.core.destination import Discarded
from sharding.core.errors import DestinationError, ShardingError, SourceError
from sharding.core.events import Published, ShardFinished
from sharding.storage.hub import retry
from sharding.storage.hub import source as hub_source
from sharding.storage.hub.staging import STAGING_BRANCH
from tests.conftest import environment, in_two_files
from tests.hubs import branches, download, exists, files_of, push, shard
from tests.inhouse import InHouse, hub_in_house
from tests.localhub.conftest import Server

LFS_WARNS = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # huggingface_hub's own, in its LFS upload
MADE, SOURCE, GATED = "alice/made", "alice/source", "alice/gated"
SECOND_HEADER = "GET .*/resolve/.*/model-00002.*"

pytestmark = pytest.mark.usefixtures("nothing_stays_on_this_disk")


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "NETWORK_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(hub_source, "READ_TIMEOUT_SECONDS", 1)


@pytest.fixture(scope="module")
def hubs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[bool, InHouse]]:
    """Two Hubs that have the source: with Xet, and without."""
    with (
        hub_in_house(tmp_path_factory.mktemp("with-xet")) as with_xet,
        hub_in_house(tmp_path_factory.mktemp("without"), xet=False) as without,
    ):
        checkpoint = in_two_files(tmp_path_factory.mktemp("in") / "checkpoint")
        push(with_xet, checkpoint, SOURCE)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # huggingface_hub's own, in its LFS upload
            shard(without, str(checkpoint), SOURCE, "150kB", private=False)  # the client itself would want Xet
        yield {True: with_xet, False: without}


@pytest.fixture
def start(hubs: dict[bool, InHouse]) -> Iterator[Callable[..., InHouse]]:
    """Return a Hub that fails by the rules given, and has nothing but the source."""
    with ExitStack() as failing:

        def start(*rules: str, xet: bool = True) -> InHouse:
            hubs[xet].log.clear()
            failing.enter_context(hubs[xet].failing(*rules))
            return hubs[xet]

        yield start
    for hub in hubs.values():
        hub.api().delete_repo(MADE, missing_ok=True)


def nothing_is_left(hub: Server) -> bool:
    return not exists(hub, MADE)


@pytest.mark.parametrize(
    "rules",
    [
        ["status:503@GET /api/whoami-v2#2"],
        ["status:429@GET .*/tree/#2"],
        ["status:500@POST /api/repos/create#1", "cut:0@POST /api/repos/create#1"],
        ["cut:0@POST .*/branch/#1", "status:502@POST .*/branch/#1"],
        ["status:504@POST .*/commit/.*staging#3", "cut:0@POST .*/commit/.*staging#2"],
        ["cut:0@POST .*/commit/main#1"],  # published, and nobody was told
        ["status:503@DELETE .*/branch/#1", "status:503@GET .*/refs#1"],
        ["status:503@GET .*/xet-(read|write)-token/#3"],
        ["cut:20@GET .*/resolve/#4", "status:408@GET .*/resolve/#2"],
        ["status:503@.*%0.05", "cut:5@GET .*%0.05"],
    ],
    ids=lambda rules: rules[0],
)
def test_what_passes_is_tried_again(start: Callable[..., InHouse], rules: list[str]) -> None:
    hub = start(*rules)
    assert shard(hub, SOURCE, MADE).verification.identical
    hub.rules.clear()
    assert branches(hub, MADE) == {"main"}


@LFS_WARNS
@pytest.mark.parametrize(
    "rule",
    [
        "cut:1000@GET .*/resolve/.*safetensors$#20",
        "short:7@GET .*/resolve/.*safetensors$#5",
        "stall:30@GET .*/resolve/.*safetensors$#2",
        "status:500@GET .*/resolve/.*safetensors$#5",
        "status:503@POST .*/info/lfs/objects/batch#2",
        "cut:0@PUT .*#2",
    ],
)
def test_what_passes_is_tried_again_without_xet(
    start: Callable[..., InHouse], rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_source, "LEAST_BYTES", 1000)  # what a try must bring to count as a new one
    hub = start(rule, xet=False)
    assert shard(hub, SOURCE, MADE).verification.identical


@LFS_WARNS
@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("whole@GET .*/resolve/.*safetensors$", "did not send bytes"),
        ("long:10@GET .*/resolve/.*safetensors$", "more bytes of model-|did not send bytes"),
        ("short:7@GET .*/resolve/.*safetensors$", "ended early"),
        ("cut:0@GET .*/resolve/.*safetensors$", "cannot be reached"),
        ("status:500@GET .*/resolve/.*safetensors$", "internal problem"),
        ("status:404@GET .*/resolve/.*safetensors$", "cannot find it"),
    ],
)
def test_what_stays_wrong_with_reading_leaves_nothing(start: Callable[..., InHouse], rule: str, says: str) -> None:
    hub = start(rule, xet=False)
    with pytest.raises(SourceError, match=says) as refusal:
        shard(hub, SOURCE, MADE)
    assert refusal.value.hint
    assert nothing_is_left(hub)


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (400, "does not accept"),
        (401, "not valid or has expired"),
        (403, "does not allow"),
        (409, "changed it just now"),
        (412, "Somebody else has changed it"),
        (413, "larger than the Hub accepts"),
        (429, "slow down"),
        (507, "internal problem"),
    ],
)
def test_every_refusal_of_a_commit_has_its_sentence_and_leaves_nothing(
    start: Callable[..., InHouse], status: int, says: str
) -> None:
    hub = start(f"status:{status}@POST .*/commit/")
    with pytest.raises(DestinationError, match=says) as refusal:
        shard(hub, SOURCE, MADE)
    assert refusal.value.hint
    assert nothing_is_left(hub)


# --- Logins -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("private", [False, True])
def test_a_login_that_may_only_contribute_makes_the_repo_as_visible_as_it_is_to_be(
    start: Callable[..., InHouse], private: bool
) -> None:
    hub = start()
    token = hub.login("alice", "openid contribute-repos read-repos")["access_token"]
    events = list(job.shard(SOURCE, MADE, "60kB", private=private, endpoint=hub.address, token=token))
    (published,) = [event for event in events if isinstance(event, Published)]
    assert published.remark == ""  # it could not change that later
    assert hub.api().model_info(MADE).private is private
    assert "model.safetensors.index.json" in files_of(hub, MADE)


def test_a_login_without_the_scope_is_refused(start: Callable[..., InHouse]) -> None:
    hub = start()
    token = hub.login("alice", "openid read-repos")["access_token"]
    with pytest.raises(DestinationError, match="does not allow it.*scope") as refusal:
        shard(hub, SOURCE, MADE, token=token)
    assert refusal.value.hint
    assert nothing_is_left(hub)


def test_a_gated_source_needs_the_scope_for_it(start: Callable[..., InHouse]) -> None:
    hub = start()
    hub.api().duplicate_repo(SOURCE, GATED, private=False, exist_ok=True)
    hub.api().update_repo_settings(GATED, gated="auto")
    token = hub.login("alice", "openid contribute-repos")["access_token"]
    with pytest.raises(SourceError, match="gated"):
        shard(hub, GATED, MADE, token=token)
    token = hub.login("alice", "openid contribute-repos gated-repos")["access_token"]
    assert shard(hub, GATED, MADE, token=token).verification.identical


def test_an_expired_login_stops_a_job_which_goes_on_after_the_next(start: Callable[..., InHouse]) -> None:
    hub = start()
    token = hub.login("alice", "openid contribute-repos read-repos")["access_token"]
    events = job.shard(SOURCE, MADE, "20kB", endpoint=hub.address, token=token)
    next(event for event in events if isinstance(event, ShardFinished))
    with hub.failing("status:401@.*"), pytest.raises(ShardingError, match="not valid") as stop:
        list(events)
    assert "sign in" in stop.value.hint.lower()
    token = hub.login("alice", "openid contribute-repos read-repos")["access_token"]
    again = list(job.shard(SOURCE, MADE, "20kB", endpoint=hub.address, token=token))
    assert any(event.kept for event in again if isinstance(event, ShardFinished))
    assert branches(hub, MADE) == {"main"}


# --- Giving up ----------------------------------------------------------------------------------------


def stop_after_a_shard(hub: Server, **options: object) -> None:
    events = job.shard(SOURCE, MADE, "20kB", endpoint=hub.address, **options)  # type: ignore[arg-type]
    next(event for event in events if isinstance(event, ShardFinished))
    events.close()


def test_an_unfinished_job_is_found_and_discarded_from_anywhere(start: Callable[..., InHouse]) -> None:
    hub = start()
    place = {"endpoint": hub.address, "token": "hf_alice"}
    assert job.find_unfinished(MADE, **place) is None
    assert job.discard(MADE, **place) == Discarded(found=False)
    stop_after_a_shard(hub, token="hf_alice", private=False)
    found = job.find_unfinished(MADE, **place)
    assert found
    assert (found.source.repo_id, found.options.max_shard_bytes, found.private, found.created) == (
        SOURCE,
        20_000,
        False,
        True,
    )
    assert found.source.revision == hub.api().model_info(SOURCE).sha
    assert job.discard(MADE, **place) == Discarded(found=True, repo_deleted=True)
    assert nothing_is_left(hub)


def test_discarding_keeps_what_an_earlier_job_has_published(start: Callable[..., InHouse], tmp_path: Path) -> None:
    hub = start()
    shard(hub, SOURCE, MADE, "60kB")
    before = files_of(hub, MADE)
    stop_after_a_shard(hub, token="hf_alice")
    assert STAGING_BRANCH in branches(hub, MADE)
    assert job.discard(MADE, endpoint=hub.address, token="hf_alice") == Discarded(found=True)
    assert (files_of(hub, MADE), branches(hub, MADE)) == (before, {"main"})
    assert download(hub, MADE, tmp_path / "still whole")


def test_where_the_login_may_not_delete_the_empty_repo_it_is_said_with_a_link(start: Callable[..., InHouse]) -> None:
    hub = start()
    token = hub.login("alice", "openid contribute-repos read-repos")["access_token"]
    stop_after_a_shard(hub, token=token)
    discarded = job.discard(MADE, endpoint=hub.address, token=token)
    assert not discarded.repo_deleted
    assert f"{hub.address}/{MADE}/settings" in discarded.remark
    assert (files_of(hub, MADE), branches(hub, MADE)) == ({".gitattributes"}, {"main"})


@LFS_WARNS
def test_an_interrupt_ends_a_job_whose_network_stalls(start: Callable[..., InHouse], tmp_path: Path) -> None:
    hub = start(f"stall:3600@{SECOND_HEADER}", xet=False)
    env = {**environment(), "HF_ENDPOINT": hub.address, "HF_TOKEN": "hf_alice", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "sharding", "inspect", SOURCE, "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    while not hub.asked(SECOND_HEADER):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in stderr
    assert json.loads(stdout)["error"]["kind"] == "Cancelled"
