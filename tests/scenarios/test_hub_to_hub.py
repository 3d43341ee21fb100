"""Hub to Hub without disk: identical, atomic, and refused before a byte moves."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub.errors import RepositoryNotFoundError
from safetensors.numpy import save_file

from sharding import job
from sharding.core.errors import DestinationError
from sharding.core.events import Planned, Progress, Published, ShardFinished
from sharding.core.options import Options
from sharding.formats.names import REPORT_NAME
from sharding.report.schema import Report
from tests.commands import run_process
from tests.conftest import environment, listing
from tests.folders import compared, finish, weights
from tests.hubs import TOKEN, branches, download, files_of, push, shard
from tests.inhouse import InHouse
from tests.localhub.conftest import Server
from tests.promises import promise
from tests.scenarios.conftest import NUMBERS, SOURCE

pytestmark = pytest.mark.usefixtures("nothing_stays_on_this_disk")


@promise("README.md#what-you-can-rely-on")
def test_a_copy_is_private_until_one_commit_shows_all_of_it_and_no_byte_of_it_touched_the_disk(
    hub: InHouse, folder: Path, name: str, tmp_path: Path
) -> None:
    events = []
    for event in job.shard(SOURCE, name, "60kB", endpoint=hub.address, token=TOKEN):
        events.append(event)
        if isinstance(event, ShardFinished):
            assert hub.api().model_info(name).private is True
            assert not {path for path in files_of(hub, name) if path.endswith(".safetensors")}
    report = events[-1]
    assert isinstance(events[0], Planned) and isinstance(report, Report)
    (published,) = [event for event in events if isinstance(event, Published)]
    assert published.place == f"{hub.address}/{name}" and len(published.ref.revision) == 40
    assert hub.api().model_info(name).private is False
    assert [commit.title for commit in hub.api().list_repo_commits(name)][1:] == ["initial commit"]
    assert branches(hub, name) == {"main"}
    assert {REPORT_NAME, "sharding_digests.json", "config.json", "model.safetensors.index.json"} <= files_of(hub, name)
    finish(job.shard(str(folder), str(tmp_path / "folder"), "60kB"))
    copy = download(hub, name, tmp_path / "hub")
    assert weights(tmp_path / "folder").items() <= weights(copy).items()
    assert (copy / "config.json").read_bytes() == (folder / "config.json").read_bytes()
    assert compared(SOURCE, name, endpoint=hub.address, token=TOKEN).identical
    assert report.resources.disk_bytes_written == 0
    steps = [event for event in events if isinstance(event, Progress)]
    assert {step.phase for step in steps} == {"transfer", "verify"}
    assert all(0 < step.anon_bytes <= report.resources.peak_anon_bytes for step in steps)
    uploaded = [step.bytes_uploaded + step.bytes_deduplicated for step in steps]
    assert uploaded == sorted(uploaded)
    assert uploaded[-1] == report.resources.bytes_uploaded + report.resources.bytes_deduplicated > 0


def test_weights_beside_a_model_are_copied_without_the_disk(
    hub: InHouse, checkpoint: Path, name: str, tmp_path: Path
) -> None:
    (checkpoint / "lora").mkdir()
    save_file({"lora_A.weight": np.arange(9000)}, checkpoint / "lora/adapter_model.safetensors")
    source = push(hub, checkpoint, f"{name}-source")
    assert shard(hub, source, name).resources.disk_bytes_written == 0
    copy = download(hub, name, tmp_path / "hub")
    assert listing(copy / "lora") == listing(checkpoint / "lora")
    proof = compared(source, name, endpoint=hub.address, token=TOKEN)
    assert proof.identical and "1 weight file beside them" in proof.method


@pytest.mark.parametrize("change", ["drop", "rename"])
def test_a_copy_with_other_names_is_read_while_it_arrives(
    hub: InHouse, checkpoint: Path, name: str, change: str
) -> None:
    source = push(hub, checkpoint, f"{name}-source")
    options = Options("60kB", drop="layers.0.*") if change == "drop" else Options("60kB", rename="layers.0.=first.")
    proof = shard(hub, source, name, options).verification
    assert proof.identical and proof.evidence.read == "hub" and proof.made


# --- Refusals: each with its sentence, its hint, and nothing left behind ------------------------------


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
def test_what_may_not_be_written_is_refused_before_a_byte_moves_and_no_token_is_shown(
    hub: InHouse, folder: Path, token: str | None, destination: str, says: str
) -> None:
    destination = destination.format(next(NUMBERS))
    with pytest.raises(DestinationError, match=says) as refusal:
        shard(hub, str(folder) if token in (None, "hf_nobody") else SOURCE, destination, token=token)
    assert refusal.value.hint and str(token) not in refusal.value.message + refusal.value.hint
    with pytest.raises((RepositoryNotFoundError, ValueError)):
        hub.api().model_info(destination)


# --- Resuming -----------------------------------------------------------------------------------------


def test_the_token_is_nowhere(served: Callable[..., Server], folder: Path, name: str, tmp_path: Path) -> None:
    own = served()  # two processes cannot upload to one store that lies on the disk
    source = push(own, folder, f"{name}-source")
    env = {**environment(), "HF_ENDPOINT": own.address, "HF_TOKEN": TOKEN}
    env |= {"HF_HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)}
    done = run_process("shard", source, name, "--max-shard-size", "60kB", "--events", env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    places = {"stdout": done.stdout.encode(), "stderr": done.stderr.encode(), **listing(tmp_path)}
    places |= listing(download(own, name, tmp_path / "result"))
    assert not [place for place, data in places.items() if TOKEN.encode() in data]
