"""A repo of one's own keeps its visibility and its files, whatever is published into it or given up."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import HfApi

from sharding import job
from sharding.core.errors import DestinationError
from sharding.core.events import Planned, Published, ShardFinished
from sharding.storage.hub import answers as retry
from sharding.storage.hub.staging import STAGING_BRANCH
from tests.conftest import listing, write_checkpoint
from tests.hubs import TOKEN, branches, download, files_of, push, shard
from tests.inhouse import InHouse, hub_in_house

SOURCE, MADE = "alice/source", "alice/made"
SETTINGS = f"PUT /api/models/{MADE}/settings"
BESIDE = {
    "config.json": b'{"of": "the commit"}',
    "tokenizer.model": b"of the commit",
    "sub/vocab.txt": b"of the commit",
}
"""Files beside the weights: two in git, and one in the store, which is copied there."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tensors = {f"layers.{n}.weight": np.full(50, n, np.float32) for n in range(3)}
    folder = write_checkpoint(tmp_path / "in", {"model.safetensors": tensors}, index=False)
    for name, data in BESIDE.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def hub(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InHouse]:
    monkeypatch.setattr(retry, "NETWORK_WAIT_SECONDS", 0.001)
    with hub_in_house(tmp_path / "hub") as hub:
        push(hub, folder, SOURCE)
        yield hub


# --- Visibility ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("private", [None, False])
@pytest.mark.parametrize("earlier", [True, False])
def test_a_private_repo_of_ones_own_stays_private(hub: InHouse, earlier: bool, private: bool | None) -> None:
    if earlier:
        shard(hub, SOURCE, MADE, "500B", private=True)
    else:
        hub.api().create_repo(MADE, private=True)
    hub.log.clear()
    shard(hub, SOURCE, MADE, "300B", private=private)
    assert hub.api().model_info(MADE).private is True
    assert hub.asked(SETTINGS) == hub.asked("POST /api/repos/create") == 0


def test_a_private_repo_of_ones_own_stays_private_also_when_an_unfinished_job_goes_on(hub: InHouse) -> None:
    hub.api().create_repo(MADE, private=True)
    events = job.shard(SOURCE, MADE, "200B", endpoint=hub.address, token=TOKEN)
    next(event for event in events if isinstance(event, ShardFinished))
    events.close()
    shard(hub, SOURCE, MADE, "200B")
    assert hub.api().model_info(MADE).private is True
    assert hub.asked(SETTINGS) == 0


def test_a_new_repo_that_cannot_be_shown_stays_private_and_that_is_said(hub: InHouse) -> None:
    with hub.failing(f"status:500@{SETTINGS}"):
        events = list(job.shard(SOURCE, MADE, "300B", endpoint=hub.address, token=TOKEN))
    (published,) = [event for event in events if isinstance(event, Published)]
    assert f"You can make it public at {hub.address}/{MADE}/settings" in published.remark
    assert hub.api().model_info(MADE).private is True
    assert branches(hub, MADE) == {"main"}


# --- Giving up ----------------------------------------------------------------------------------------


def test_what_is_published_is_not_given_up_although_its_staging_branch_is_there_still(hub: InHouse) -> None:
    with hub.failing(f"status:403@DELETE .*{STAGING_BRANCH}"), pytest.raises(job.DestinationError):
        shard(hub, SOURCE, MADE, "300B")
    shown = files_of(hub, MADE)
    assert "model.safetensors.index.json" in shown and STAGING_BRANCH in branches(hub, MADE)
    discarded = job.discard(MADE, endpoint=hub.address, token=TOKEN)
    assert (discarded.found, discarded.repo_deleted) == (True, False)
    assert (files_of(hub, MADE), branches(hub, MADE)) == (shown, {"main"})


# --- Files beside the weights -------------------------------------------------------------------------


def move_on(hub: InHouse) -> None:
    """Change every file beside the weights of the source."""
    for path, data in BESIDE.items():
        hub.put(SOURCE, path, data + b" later")


def beside(folder: Path) -> dict[str, bytes]:
    return {path: data for path, data in listing(folder).items() if path in BESIDE}


@pytest.mark.parametrize("to_hub", [True, False])
@pytest.mark.parametrize("when", [Planned, ShardFinished])
def test_files_beside_the_weights_are_those_of_the_pinned_commit(
    hub: InHouse, tmp_path: Path, to_hub: bool, when: type
) -> None:
    assert hub.api().get_paths_info(SOURCE, "tokenizer.model")[0].lfs  # type: ignore[union-attr]
    out = MADE if to_hub else str(tmp_path / "out")
    events = job.shard(SOURCE, out, "300B", endpoint=hub.address, token=TOKEN)
    next(event for event in events if isinstance(event, when))
    move_on(hub)
    for _ in events:
        pass
    assert beside(download(hub, MADE, tmp_path / "down") if to_hub else tmp_path / "out") == BESIDE


@pytest.mark.parametrize("to_hub", [True, False])
def test_files_beside_the_weights_are_those_of_the_revision_asked_for(
    hub: InHouse, tmp_path: Path, to_hub: bool
) -> None:
    hub.api().create_tag(SOURCE, tag="v1")
    move_on(hub)
    shard(hub, f"{SOURCE}@v1", MADE if to_hub else str(tmp_path / "out"), "300B")
    assert beside(download(hub, MADE, tmp_path / "down") if to_hub else tmp_path / "out") == BESIDE


def test_a_source_that_the_hub_has_renamed_is_not_replaced_under_its_old_name(
    hub: InHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Hub answers for the old name with the repo itself. Its loopback twin does not, so the client is led there."""
    ask, old = HfApi.model_info, "alice/old"
    led = lambda api, repo_id, **more: ask(api, SOURCE if repo_id == old else repo_id, **more)  # noqa: E731
    monkeypatch.setattr(HfApi, "model_info", led)
    before = files_of(hub, SOURCE)
    with pytest.raises(DestinationError, match=f"The Hub calls {old} {SOURCE} now"):
        shard(hub, SOURCE, old, "300B", overwrite=True)
    assert files_of(hub, SOURCE) == before
