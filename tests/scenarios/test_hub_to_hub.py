"""Hub to Hub without disk: identical, atomic, resumable, and every refusal leaves nothing behind."""

import random
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import CommitOperationAdd
from huggingface_hub.errors import RepositoryNotFoundError
from safetensors.numpy import save_file

from sharding import job
from sharding.core.errors import DestinationError, ShardingError, SourceError
from sharding.core.events import Planned, Progress, Published, ShardFinished, Verified
from sharding.formats.names import REPORT_NAME
from sharding.report.schema import Report
from sharding.storage.hub.staging import STAGING_BRANCH
from tests.conftest import environment, listing, new_seed, write_checkpoint
from tests.hubs import TOKEN, branches, download, exists, files_of, push, shard
from tests.localhub.conftest import Server
from tests.promises import promise
from tests.scenarios.torture import torture_hub, write_source

NUMBERS = count()

pytestmark = pytest.mark.usefixtures("nothing_stays_on_this_disk")


@pytest.fixture(scope="session")
def hub(served: Callable[..., Server]) -> Server:
    return served("--org", "acme=alice,bob")


@pytest.fixture
def name() -> str:
    """A name that no repo has yet."""
    return f"alice/model-{next(NUMBERS)}"


@pytest.fixture
def source(hub: Server, checkpoint: Path, name: str) -> str:
    return push(hub, checkpoint, f"{name}-source")


def weights(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in listing(folder).items() if name.endswith((".safetensors", ".index.json"))}


def test_hub_to_hub_gives_the_files_that_folder_to_folder_gives(
    hub: Server, source: str, checkpoint: Path, name: str, tmp_path: Path
) -> None:
    report = shard(hub, source, name)
    assert report.verification.identical
    for _ in job.shard(str(checkpoint), str(tmp_path / "folder"), "60kB"):
        pass
    assert weights(download(hub, name, tmp_path / "hub")) == weights(tmp_path / "folder")
    assert (tmp_path / "hub/config.json").read_bytes() == (checkpoint / "config.json").read_bytes()


@promise("README.md#what-you-can-rely-on")
def test_no_weight_byte_touches_the_disk(hub: Server, source: str, name: str) -> None:
    assert shard(hub, source, name).resources.disk_bytes_written == 0


def test_weights_beside_a_model_are_copied_without_the_disk(
    hub: Server, checkpoint: Path, name: str, tmp_path: Path
) -> None:
    (checkpoint / "lora").mkdir()
    save_file({"lora_A.weight": np.arange(9000)}, checkpoint / "lora/adapter_model.safetensors")
    source = push(hub, checkpoint, f"{name}-source")
    assert shard(hub, source, name).resources.disk_bytes_written == 0
    copy = download(hub, name, tmp_path / "hub")
    assert listing(copy / "lora") == listing(checkpoint / "lora")
    *_, verified = job.verify(source, name, endpoint=hub.address, token=TOKEN)
    assert isinstance(verified, Verified)
    assert verified.verification.identical and "1 weight file beside them" in verified.verification.method


def test_main_gets_one_commit_with_everything_and_the_staging_branch_goes(hub: Server, source: str, name: str) -> None:
    shard(hub, source, name)
    assert [commit.title for commit in hub.api().list_repo_commits(name)][1:] == ["initial commit"]
    assert branches(hub, name) == {"main"}
    assert {REPORT_NAME, "sharding_digests.json", "config.json", "model.safetensors.index.json"} <= files_of(hub, name)


def test_a_folder_goes_to_the_hub_and_back(hub: Server, checkpoint: Path, name: str, tmp_path: Path) -> None:
    shard(hub, str(checkpoint), name)
    shard(hub, name, str(tmp_path / "back"), "1GB")
    *_, verified = job.verify(str(checkpoint), str(tmp_path / "back"))
    assert isinstance(verified, Verified)
    assert verified.verification.identical


def test_verify_streams_both_sides_from_the_hub(hub: Server, source: str, name: str) -> None:
    shard(hub, source, name)
    *_, verified = job.verify(source, name, endpoint=hub.address, token=TOKEN)
    assert isinstance(verified, Verified)
    assert verified.verification.identical


def test_a_bare_name_is_in_ones_own_namespace(hub: Server, source: str, name: str) -> None:
    shard(hub, source, name.removeprefix("alice/"))
    assert exists(hub, name)


def test_an_organisation_of_ones_own_may_be_written_to(hub: Server, source: str) -> None:
    destination = f"acme/model-{next(NUMBERS)}"
    assert shard(hub, source, destination).destination.repo_id == destination


@pytest.mark.parametrize(
    ("private", "options", "expected"),
    [
        (False, {}, False),
        (True, {}, True),
        (False, {"private": True}, True),
        (True, {"private": False, "confirmed": True}, False),
    ],
)
def test_a_new_repo_is_as_visible_as_its_source_unless_said_otherwise(
    hub: Server, checkpoint: Path, name: str, private: bool, options: dict[str, bool], expected: bool
) -> None:
    source = push(hub, checkpoint, f"{name}-source", private=private)
    shard(hub, source, name, **options)
    assert hub.api().model_info(name).private is expected


def test_a_new_repo_is_private_until_it_is_published(hub: Server, source: str, name: str) -> None:
    events = job.shard(source, name, "60kB", endpoint=hub.address, token=TOKEN)
    next(event for event in events if isinstance(event, ShardFinished))
    assert hub.api().model_info(name).private is True
    assert not {path for path in files_of(hub, name) if path.endswith(".safetensors")}
    for _ in events:
        pass
    assert hub.api().model_info(name).private is False


def test_a_pinned_source_may_move_on_meanwhile(hub: Server, source: str, name: str) -> None:
    events = job.shard(source, name, "20kB", endpoint=hub.address, token=TOKEN)
    next(event for event in events if isinstance(event, ShardFinished))
    hub.api().delete_file("model-00002-of-00002.safetensors", source)
    *_, report = events
    assert isinstance(report, Report)
    assert report.verification.identical


def test_an_earlier_result_is_replaced_and_nothing_stale_stays(hub: Server, source: str, name: str) -> None:
    shard(hub, source, name, "20kB")
    shard(hub, source, name, "1GB")
    assert {path for path in files_of(hub, name) if "safetensors" in path} == {"model.safetensors"}


# --- Refusals: each with its sentence, its hint, and nothing left behind ------------------------------


def test_what_cannot_be_read_is_refused(hub: Server, checkpoint: Path, name: str) -> None:
    hidden = f"bob/hidden-{next(NUMBERS)}"
    push(hub, checkpoint, hidden, "hf_bob", private=True)
    closed = f"bob/closed-{next(NUMBERS)}"
    push(hub, checkpoint, closed, "hf_bob")
    hub.api("hf_bob").update_repo_settings(closed, gated="manual")
    for place, says, hints in (
        ("alice/no-such-model", "The repo alice/no-such-model does not exist", "Check the name"),
        (hidden, f"The repo {hidden} does not exist", "Check the name"),
        (closed, f"{closed} is gated", "Accept its terms"),
        (f"{closed}@no-such-branch", "has no revision 'no-such-branch'", "branch"),
    ):
        with pytest.raises(SourceError, match=says) as refusal:
            shard(hub, place, name)
        assert hints in refusal.value.hint
        assert not exists(hub, name)


@pytest.mark.parametrize(
    ("token", "destination", "says"),
    [
        (None, "alice/x-{}", "You are not signed in"),
        ("hf_nobody", "alice/x-{}", "not valid or has expired"),
        ("hf_alice_read", "alice/x-{}", "not allow"),
        ("hf_alice", "bob/x-{}", "does not allow it"),
        ("hf_alice", "alice/..", "does not accept the name|neither"),
    ],
)
def test_what_may_not_be_written_is_refused_before_a_byte_moves(
    hub: Server, source: str, checkpoint: Path, token: str | None, destination: str, says: str
) -> None:
    destination = destination.format(next(NUMBERS))
    place = str(checkpoint) if token in (None, "hf_nobody") else source
    with pytest.raises(DestinationError, match=says) as refusal:
        shard(hub, place, destination, token=token)
    assert refusal.value.hint
    with pytest.raises((RepositoryNotFoundError, ValueError)):
        hub.api().model_info(destination)


def test_a_repo_that_this_tool_did_not_write_is_not_overwritten(
    hub: Server, source: str, checkpoint: Path, name: str
) -> None:
    push(hub, checkpoint, name)
    before = files_of(hub, name)
    with pytest.raises(DestinationError, match="did not write") as refusal:
        shard(hub, source, name)
    assert f"{name}-2" in refusal.value.hint
    assert files_of(hub, name) == before
    assert branches(hub, name) == {"main"}


def test_the_source_itself_is_no_destination(hub: Server, source: str) -> None:
    with pytest.raises(DestinationError, match="source itself"):
        shard(hub, source, source)


def test_a_public_copy_of_a_private_source_asks_first(hub: Server, checkpoint: Path, name: str) -> None:
    source = push(hub, checkpoint, f"{name}-source", private=True)
    with pytest.raises(DestinationError, match="everybody") as refusal:
        shard(hub, source, name, private=False)
    assert "--yes" in refusal.value.hint
    assert not exists(hub, name)


def test_a_full_quota_is_refused_and_leaves_no_repo(served: Callable[..., Server], checkpoint: Path) -> None:
    small = served("--quota", "50000")
    with pytest.raises(DestinationError) as refusal:
        shard(small, str(checkpoint), "alice/too-much", "1GB")
    assert refusal.value.hint
    assert not exists(small, "alice/too-much")


def test_somebody_elses_commit_meanwhile_is_not_overwritten_and_the_job_can_be_resumed(
    hub: Server, source: str, name: str
) -> None:
    events = job.shard(source, name, "60kB", endpoint=hub.address, token=TOKEN)
    next(event for event in events if isinstance(event, ShardFinished))
    hub.api().create_commit(name, [CommitOperationAdd("notes.txt", b"x")], commit_message="Mine")
    with pytest.raises(DestinationError, match="Somebody has changed"):
        list(events)
    assert "model.safetensors.index.json" not in files_of(hub, name)
    assert STAGING_BRANCH in branches(hub, name)


# --- Resuming -----------------------------------------------------------------------------------------


def stop_after(hub: Server, source: str, destination: str, shards: int, size: str = "20kB") -> None:
    events = job.shard(source, destination, size, endpoint=hub.address, token=TOKEN)
    for event in events:
        if isinstance(event, ShardFinished):
            shards -= 1
            if shards == 0:
                events.close()  # type: ignore[attr-defined]


def test_an_interrupted_job_is_resumed_from_its_staging_branch(hub: Server, source: str, name: str) -> None:
    stop_after(hub, source, name, 4)
    assert not {path for path in files_of(hub, name) if path.endswith(".safetensors")}
    events = list(job.shard(source, name, "20kB", endpoint=hub.address, token=TOKEN))
    assert len([event for event in events if isinstance(event, ShardFinished) and event.kept]) >= 4
    assert branches(hub, name) == {"main"}


def test_an_unfinished_job_of_another_plan_is_explained_and_restart_discards_it(
    hub: Server, source: str, name: str
) -> None:
    stop_after(hub, source, name, 3)
    with pytest.raises(DestinationError, match="another plan") as refusal:
        shard(hub, source, name, "60kB")
    assert "--restart" in refusal.value.hint
    assert STAGING_BRANCH in branches(hub, name)
    report = shard(hub, source, name, "60kB", restart=True)
    assert report.verification.identical
    assert branches(hub, name) == {"main"}


@pytest.mark.parametrize("kills", [3, pytest.param(30, marks=pytest.mark.thorough)])
def test_kills_at_random_moments_leave_main_whole_and_repeat_nothing_that_was_noted(
    kills: int, served: Callable[..., Server], name: str, tmp_path: Path
) -> None:
    seed = new_seed()
    hub = served()
    source = push(hub, write_source(tmp_path / "in", 100, 300_000), f"{name}-source")
    assert torture_hub(hub, source, name, tmp_path, kills, random.Random(seed)).kills >= kills


# --- What a job costs, and what it keeps to itself ----------------------------------------------------


def test_ten_thousand_small_tensors_cost_few_requests(hub: Server, name: str, tmp_path: Path) -> None:
    tensors = {f"layers.{n}.bias": np.full(256, n, np.float32) for n in range(10_000)}
    source = push(hub, write_checkpoint(tmp_path / "in", {"model.safetensors": tensors}, index=False), f"{name}-source")
    assert shard(hub, source, name, "4MB").resources.read_requests < 30


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # huggingface_hub's own, in its LFS upload
def test_a_hub_without_xet_gets_lfs_uploads_and_no_file_stays(
    served: Callable[..., Server], checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = served("--no-xet")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    report = shard(plain, str(checkpoint), "alice/lfs", "60kB")
    assert report.verification.identical
    assert listing(tmp_path / "tmp") == {}
    again = shard(plain, "alice/lfs", "alice/lfs-again", "1GB")
    assert again.verification.identical


def test_the_token_is_nowhere(served: Callable[..., Server], checkpoint: Path, name: str, tmp_path: Path) -> None:
    hub = served()  # its own: two processes cannot upload to one store that lies on the disk
    source = push(hub, checkpoint, f"{name}-source")
    env = {**environment(), "HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN}
    env |= {"HF_HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "sharding", "shard", source, name, "--max-shard-size", "60kB", "--events"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    places = {"stdout": done.stdout.encode(), "stderr": done.stderr.encode(), **listing(tmp_path)}
    places |= listing(download(hub, name, tmp_path / "result"))
    assert not [place for place, data in places.items() if TOKEN.encode() in data]


def test_an_error_never_shows_the_token(hub: Server, checkpoint: Path) -> None:
    secret = "hf_very_secret_token"
    with pytest.raises(ShardingError) as refusal:
        shard(hub, str(checkpoint), "alice/never", token=secret)
    assert secret not in refusal.value.message + refusal.value.hint


def test_progress_says_what_the_job_costs_by_now(hub: Server, source: str, name: str) -> None:
    events = list(job.shard(source, name, "20kB", endpoint=hub.address, token=TOKEN))
    report = events[-1]
    assert isinstance(report, Report)
    steps = [event for event in events if isinstance(event, Progress)]
    assert {step.phase for step in steps} == {"transfer", "verify"}
    assert all(0 < step.anon_bytes <= report.resources.peak_anon_bytes for step in steps)
    uploaded = [step.bytes_uploaded + step.bytes_deduplicated for step in steps]
    assert uploaded == sorted(uploaded)
    assert uploaded[-1] == report.resources.bytes_uploaded + report.resources.bytes_deduplicated > 0


def test_the_published_event_names_the_page(hub: Server, source: str, name: str) -> None:
    events = list(job.shard(source, name, "60kB", endpoint=hub.address, token=TOKEN))
    assert isinstance(events[0], Planned)
    (published,) = [event for event in events if isinstance(event, Published)]
    assert published.place == f"{hub.address}/{name}"
    assert len(published.ref.revision) == 40
