"""A repo of one's own keeps its visibility, and files beside the weights are those of the commit that was pinned."""

from pathlib import Path

import pytest
from huggingface_hub import HfApi

from sharding.core.errors import DestinationError
from sharding.core.events import Planned, ShardFinished
from tests.conftest import listing
from tests.hubs import SOURCE, branches, download, files_of, is_private, remark_of, shard
from tests.inhouse import InHouse
from tests.storage.steps import start

BESIDE = ("config.json", "tokenizer.model", "sub/vocab.txt")
"""Files beside the weights: two in git, and one in the store, which is copied there."""


@pytest.mark.parametrize("before", ["nothing", "a copy", "an unfinished job"])
def test_a_private_repo_of_ones_own_stays_private(hub: InHouse, name: str, before: str) -> None:
    hub.api().create_repo(name, private=True)
    if before == "a copy":
        shard(hub, SOURCE, name, "20kB", private=True)
    elif before == "an unfinished job":
        start(hub, name, ShardFinished).close()
    hub.log.clear()
    for private in (None, False) if before == "nothing" else (None,):
        shard(hub, SOURCE, name, "9kB", private=private)
        assert is_private(hub, name)
    assert hub.asked(f"PUT /api/models/{name}/settings") == hub.asked("POST /api/repos/create") == 0


def test_a_new_repo_that_cannot_be_shown_stays_private_and_that_is_said(hub: InHouse, name: str) -> None:
    with hub.failing(f"status:500@PUT /api/models/{name}/settings"):
        remark = remark_of(start(hub, name, Planned, private=False))
    assert f"You can make it public at {hub.address}/{name}/settings" in remark
    assert is_private(hub, name) and branches(hub, name) == {"main"}


@pytest.mark.parametrize(("to_hub", "when"), [(True, Planned), (False, ShardFinished), (True, None)])
def test_files_beside_the_weights_are_those_of_the_pinned_commit_or_the_revision_asked_for(
    hub: InHouse, own: str, name: str, tmp_path: Path, to_hub: bool, when: type | None
) -> None:
    for path in BESIDE:
        hub.put(own, path, b"{}")
    assert hub.api().get_paths_info(own, "tokenizer.model")[0].lfs  # type: ignore[union-attr]
    hub.api().create_tag(own, tag="v1")
    out = name if to_hub else str(tmp_path / "out")
    events = start(hub, out, when, source=own) if when else None
    for path in BESIDE:
        hub.put(own, path, b'{"later": 1}')
    if events:
        list(events)
    else:
        shard(hub, f"{own}@v1", out, "9kB")
    found = listing(download(hub, name, tmp_path / "down") if to_hub else tmp_path / "out")
    assert {path: found[path] for path in BESIDE} == dict.fromkeys(BESIDE, b"{}")


def test_no_source_is_replaced_under_its_old_name(hub: InHouse, own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Hub answers for the old name with the repo itself. Its loopback twin does not, so the client is led there."""
    ask, old = HfApi.model_info, "alice/old"
    led = lambda api, repo_id, **more: ask(api, own if repo_id == old else repo_id, **more)  # noqa: E731
    monkeypatch.setattr(HfApi, "model_info", led)
    before = files_of(hub, own)
    with pytest.raises(DestinationError, match=f"The Hub calls {old} {own} now"):
        shard(hub, own, old, "9kB", overwrite=True)
    assert files_of(hub, own) == before
