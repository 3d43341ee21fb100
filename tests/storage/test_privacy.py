"""What is to be private is private before its first byte goes up, or nothing goes up."""

from pathlib import Path
from typing import Any

import pytest

from sharding import job
from sharding.core.errors import DestinationError
from sharding.core.events import Planned, Verified
from sharding.core.options import Options, Request
from sharding.localhub import repos
from sharding.storage.hub.repo import HubRepo
from tests.folders import finish, write_ranks
from tests.hubs import SOURCE, TOKEN, after_commits, exists, files_of, is_private, push, remark_of, shard
from tests.inhouse import InHouse, ignore_private
from tests.promises import promise
from tests.storage.steps import start

WRITES = "^(POST|PUT) .*(commit|branch|preupload|info/lfs|xet-write|settings)"
STAGED = "/commit/shard-my-repo-staging"


@pytest.fixture
def hidden(hub: InHouse, folder: Path, name: str) -> str:
    """A private model."""
    push(hub, folder, f"{name}-hidden", private=True)
    hub.log.clear()
    return f"{name}-hidden"


def show(hub: InHouse, repo_id: str) -> None:
    hub.api().update_repo_settings(repo_id, private=False)
    hub.log.clear()


def hide(hub: InHouse, repo_id: str) -> None:
    hub.api().update_repo_settings(repo_id, private=True)
    hub.log.clear()


# --- A new repo ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", ["an open repo", "a hidden repo", "a folder"])
def test_where_the_hub_shows_it_all_the_same_nothing_is_written_and_the_repo_goes(
    hub: InHouse, name: str, hidden: str, folder: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    ignore_private(monkeypatch)
    source = {"an open repo": SOURCE, "a hidden repo": hidden, "a folder": str(folder)}[of]
    with pytest.raises(DestinationError, match=f"made {name} public, although this tool asked for a private repo"):
        shard(hub, source, name, private=True if of == "an open repo" else None)
    assert not hub.asked(WRITES) and hub.asked("POST /api/repos/create") == 1
    assert not exists(hub, name)


def test_one_that_stays_is_named(hub: InHouse, name: str, hidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ignore_private(monkeypatch)
    with hub.failing("status:403@DELETE /api/repos/delete"), pytest.raises(DestinationError, match="public") as refusal:
        shard(hub, hidden, name)
    assert f"{hub.address}/{name}/settings" in refusal.value.hint
    assert not hub.asked(WRITES)


def test_a_repo_that_is_public_is_refused_where_the_copy_is_to_be_private(hub: InHouse, name: str) -> None:
    hub.api().create_repo(name)
    hub.log.clear()
    for ask in (
        lambda: shard(hub, SOURCE, name, private=True),
        lambda: job.check(Request(SOURCE, name, private=True), endpoint=hub.address, token=TOKEN),
    ):
        with pytest.raises(DestinationError, match=f"{name} exists and is public") as refusal:
            ask()
        assert f"{hub.address}/{name}/settings" in refusal.value.hint and "--public" in refusal.value.hint
    assert not hub.asked(WRITES)


@promise("docs/security.md#get-a-model-published-without-a")
@pytest.mark.parametrize("missing", ["private", "gated"])
def test_what_may_be_private_is_not_shown(
    hub: InHouse, name: str, hidden: str, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    usual = repos.describe

    def describe(*given: Any, **more: Any) -> Any:
        answer = usual(*given, **more)
        return {key: value for key, value in answer.items() if key != missing or answer["id"] != hidden}

    monkeypatch.setattr(repos, "describe", describe)
    if missing == "gated":
        show(hub, hidden)
    shard(hub, hidden, name)
    assert is_private(hub, name)
    with pytest.raises(DestinationError, match="its Hub does not say"):
        shard(hub, hidden, f"{name}-other", private=False)
    hub.api().create_repo(f"{name}-seen")
    with pytest.raises(DestinationError, match=f"{name}-seen exists and is public"):
        shard(hub, hidden, f"{name}-seen", overwrite=True)


# --- A repo that somebody shows meanwhile -------------------------------------------------------------


@promise("docs/security.md#get-a-private-model-published-in")
@pytest.mark.parametrize("of", ["a folder with a private base", "a gated repo"])
def test_a_repo_that_is_made_public_between_two_staging_commits_gets_no_more(
    hub: InHouse, name: str, hidden: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    source, options = hidden, Options("9kB")
    if of == "a gated repo":
        hub.api().update_repo_settings(hidden, gated="auto")
        show(hub, hidden)
    else:
        source, options = str(write_ranks(tmp_path / "run")), Options("60kB", base=hidden)
    after_commits(monkeypatch, 2, lambda: show(hub, name))  # the first says which job it is of
    with pytest.raises(DestinationError, match=f"{name} is public now, but the copy must be private") as refusal:
        shard(hub, source, name, options)
    assert f"{hub.address}/{name}/settings" in refusal.value.hint and "discard" in refusal.value.hint
    assert not hub.asked(STAGED) and not hub.asked("/commit/main")
    staged = files_of(hub, name, "shard-my-repo-staging")
    assert len([file for file in staged if file.endswith(".safetensors")]) == 1
    hide(hub, name)
    assert shard(hub, source, name, options).verification.identical
    assert is_private(hub, name)


@pytest.mark.parametrize("moment", [Planned, Verified])
def test_one_shown_before_it_is_published_stays_empty(hub: InHouse, name: str, hidden: str, moment: type) -> None:
    hub.api().create_repo(name, private=True)
    events = start(hub, name, moment, source=hidden)
    show(hub, name)
    with pytest.raises(DestinationError, match="is public now"):
        finish(events)
    assert not hub.asked("/commit/") and files_of(hub, name) == {".gitattributes"}


# --- A source that is hidden meanwhile ----------------------------------------------------------------


@pytest.mark.parametrize("closed", ["private", "renamed", "private base"])
def test_a_copy_of_what_is_not_public_any_more_is_not_shown(
    hub: InHouse, own: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: str
) -> None:
    usual = HubRepo.branches

    def branches(repo: HubRepo) -> dict[str, str]:
        """What is asked after the result is published: before that the source is closed."""
        monkeypatch.setattr(HubRepo, "branches", usual)
        hub.api().move_repo(own, f"{own}-now") if closed == "renamed" else hide(hub, own)
        return usual(repo)

    source, options = own, Options("9kB")
    if closed == "private base":
        source, options = push(hub, write_ranks(tmp_path / "run"), f"{name}-run"), Options("1GB", base=own)
    events = job.shard(source, name, options, endpoint=hub.address, token=TOKEN)
    next(event for event in events if isinstance(event, Verified))
    monkeypatch.setattr(HubRepo, "branches", branches)
    remark = remark_of(events)
    assert f"stays private, because {own} was public when the job started" in remark
    assert f"{hub.address}/{name}/settings" in remark
    assert is_private(hub, name)


@pytest.mark.parametrize("has_base", [False, True])
def test_a_source_that_is_hidden_meanwhile_goes_into_no_public_repo(
    hub: InHouse, own: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_base: bool
) -> None:
    source = push(hub, write_ranks(tmp_path / "run"), f"{name}-run") if has_base else own
    base, sizes = own if has_base else "", ("60kB", "70kB") if has_base else ("20kB", "9kB")
    shard(hub, source, name, Options(sizes[0], base=base))
    assert not is_private(hub, name)
    after_commits(monkeypatch, 2, lambda: hide(hub, own))
    with pytest.raises(DestinationError, match=f"{own} was public when the job started and may not be public now"):
        shard(hub, source, name, Options(sizes[1], base=base))
    assert not hub.asked("/commit/")
