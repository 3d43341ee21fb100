"""What is to be private is private before its first byte goes up, or nothing goes up."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sharding import job
from sharding.core.errors import DestinationError
from sharding.core.events import Published, Verified
from sharding.core.options import Options, Request
from sharding.localhub import repos
from sharding.storage.hub.repo import HubRepo
from tests.conftest import random_tensors, write_checkpoint
from tests.folders import finish, write_ranks
from tests.hubs import TOKEN, after_commits, exists, files_of, push, shard
from tests.inhouse import InHouse, hub_in_house, ignore_private
from tests.promises import promise

WRITES = "^(POST|PUT) .*(commit|branch|preupload|info/lfs|xet-write|settings)"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[InHouse]:
    with hub_in_house(tmp_path / "hub") as hub:
        folder = write_checkpoint(tmp_path / "in", {"model.safetensors": random_tensors()}, False)
        push(hub, folder, "alice/open")
        push(hub, folder, "alice/hidden", private=True)
        hub.log.clear()
        yield hub


@pytest.mark.parametrize(("source", "private"), [("alice/open", True), ("alice/hidden", None)])
def test_where_the_hub_shows_it_all_the_same_nothing_is_written_and_the_repo_goes(
    hub: InHouse, monkeypatch: pytest.MonkeyPatch, source: str, private: bool | None
) -> None:
    ignore_private(monkeypatch)
    with pytest.raises(
        DestinationError, match="The Hub made alice/copy public, although this tool asked for a private repo"
    ):
        shard(hub, source, "alice/copy", private=private)
    assert not hub.asked(WRITES)
    assert hub.asked("POST /api/repos/create") == 1
    assert not exists(hub, "alice/copy")


def test_where_that_repo_cannot_be_removed_it_is_named(hub: InHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    ignore_private(monkeypatch)
    with hub.failing("status:403@DELETE /api/repos/delete"), pytest.raises(DestinationError, match="public") as refusal:
        shard(hub, "alice/hidden", "alice/copy")
    assert f"{hub.address}/alice/copy/settings" in refusal.value.hint
    assert not hub.asked(WRITES)


def test_the_hub_is_asked_before_the_first_byte_goes_up(hub: InHouse) -> None:
    shard(hub, "alice/open", "alice/copy", private=True)
    made = next(n for n, line in enumerate(hub.log) if line == "POST /api/repos/create")
    asked = next(n for n, line in enumerate(hub.log) if n > made and line == "GET /api/models/alice/copy")
    assert asked < next(n for n, line in enumerate(hub.log) if "/branch/" in line or "/commit/" in line)
    assert hub.api().model_info("alice/copy").private


def test_a_repo_that_is_public_is_refused_where_the_copy_is_to_be_private(hub: InHouse) -> None:
    shard(hub, "alice/open", "alice/copy", private=False)
    hub.log.clear()
    for ask in (
        lambda: shard(hub, "alice/open", "alice/copy", "70kB", private=True),
        lambda: job.check(Request("alice/open", "alice/copy", private=True), endpoint=hub.address, token=TOKEN),
    ):
        with pytest.raises(DestinationError, match="alice/copy exists and is public") as refusal:
            ask()
        assert f"{hub.address}/alice/copy/settings" in refusal.value.hint
        assert "--public" in refusal.value.hint
    assert not hub.asked(WRITES)


def test_one_that_becomes_public_meanwhile_gets_nothing(hub: InHouse) -> None:
    hub.api().create_repo("alice/copy", private=True)
    events = job.shard("alice/open", "alice/copy", "60kB", private=True, endpoint=hub.address, token=TOKEN)
    next(events)  # planned
    hub.api().update_repo_settings("alice/copy", private=False)
    hub.log.clear()
    with pytest.raises(DestinationError, match="is public now"):
        finish(events)
    assert not hub.asked(WRITES)


def remark_of(events: Iterator[job.Event]) -> str:
    return next(event.remark for event in events if isinstance(event, Published))


CLOSINGS: dict[str, Callable[[InHouse], object]] = {
    "private": lambda hub: hub.api().update_repo_settings("alice/open", private=True),
    "gated": lambda hub: hub.api().update_repo_settings("alice/open", gated="auto"),
    "renamed": lambda hub: hub.api().move_repo("alice/open", "alice/other"),
}


@pytest.mark.parametrize(("what", "private"), [("private", None), ("gated", False), ("renamed", None)])
def test_a_copy_of_what_is_not_public_any_more_is_not_shown(hub: InHouse, what: str, private: bool | None) -> None:
    events = job.shard("alice/open", "alice/copy", "1GB", private=private, endpoint=hub.address, token=TOKEN)
    next(event for event in events if isinstance(event, Verified))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HubRepo, "branches", closing(hub, CLOSINGS[what]))
        remark = remark_of(events)
    assert "stays private, because alice/open was public when the job started" in remark
    assert f"{hub.address}/alice/copy/settings" in remark
    assert hub.api().model_info("alice/copy").private


def closing(hub: InHouse, close: Callable[[InHouse], object]) -> Callable[..., Any]:
    """`HubRepo.branches`, which is asked after the result is published: before that the source is closed."""
    usual, left = HubRepo.branches, [close]

    def branches(repo: HubRepo) -> dict[str, str]:
        while left:
            left.pop()(hub)
        return usual(repo)

    return branches


@promise("docs/security.md#get-a-model-published-without-a")
@pytest.mark.parametrize("missing", ["private", "gated"])
def test_a_copy_of_what_may_be_private_is_not_shown(
    hub: InHouse, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    usual = repos.describe

    def describe(*given: Any, **more: Any) -> Any:
        answer = usual(*given, **more)
        return {key: value for key, value in answer.items() if key != missing or answer["id"] != "alice/hidden"}

    monkeypatch.setattr(repos, "describe", describe)
    if missing == "gated":
        hub.api().update_repo_settings("alice/hidden", private=False)
    shard(hub, "alice/hidden", "alice/copy")
    assert hub.api().model_info("alice/copy").private
    with pytest.raises(DestinationError, match="its Hub does not say"):
        shard(hub, "alice/hidden", "alice/other", private=False)
    shard(hub, "alice/open", "alice/seen", private=False)
    with pytest.raises(DestinationError, match="alice/seen exists and is public"):
        shard(hub, "alice/hidden", "alice/seen", overwrite=True)


STAGED = "POST /api/models/alice/copy/commit/shard-my-repo-staging"


def show(hub: InHouse, repo_id: str = "alice/copy") -> None:
    hub.api().update_repo_settings(repo_id, private=False)
    hub.log.clear()


def hide(hub: InHouse, repo_id: str) -> None:
    hub.api().update_repo_settings(repo_id, private=True)
    hub.log.clear()


def with_base(hub: InHouse, folder: Path) -> dict[str, Any]:
    """A public run of a private model, and the options that name both."""
    push(hub, write_ranks(folder), "alice/run")
    return {"source": "alice/run", "options": Options("60kB", base="alice/hidden")}


SOURCES: dict[str, Callable[[InHouse, Path], dict[str, Any]]] = {
    "private": lambda hub, _: {"source": "alice/hidden", "options": Options("60kB")},
    "gated": lambda hub, _: (
        hub.api().update_repo_settings("alice/open", gated="auto")
        or {"source": "alice/open", "options": Options("60kB")}
    ),
    "private base": with_base,
    "private base of a folder": lambda hub, folder: {
        "source": str(write_ranks(folder)),
        "options": Options("60kB", base="alice/hidden"),
    },
}


@promise("docs/security.md#get-a-private-model-published-in")
@pytest.mark.parametrize("source", ["gated", "private base of a folder"])
def test_a_repo_that_is_made_public_between_two_staging_commits_gets_no_more(
    hub: InHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    given = SOURCES[source](hub, tmp_path / "run")
    after_commits(monkeypatch, 2, lambda: show(hub))  # the first says which job it is of
    with pytest.raises(DestinationError, match="alice/copy is public now, but the copy must be private") as refusal:
        shard(hub, destination="alice/copy", **given)
    assert f"{hub.address}/alice/copy/settings" in refusal.value.hint and "discard" in refusal.value.hint
    assert not hub.asked(STAGED) and not hub.asked("/commit/main")
    staged = files_of(hub, "alice/copy", "shard-my-repo-staging")
    assert len([file for file in staged if file.endswith(".safetensors")]) == 1
    hub.api().update_repo_settings("alice/copy", private=True)
    monkeypatch.undo()
    assert shard(hub, destination="alice/copy", **given).verification.identical
    assert hub.api().model_info("alice/copy").private


@pytest.mark.parametrize("source", ["private", "private base"])
def test_one_that_is_made_public_before_it_is_published_stays_empty(hub: InHouse, tmp_path: Path, source: str) -> None:
    given = SOURCES[source](hub, tmp_path / "run")
    events = job.shard(given["source"], "alice/copy", given["options"], private=None, endpoint=hub.address, token=TOKEN)
    next(event for event in events if isinstance(event, Verified))
    show(hub)
    with pytest.raises(DestinationError, match="is public now"):
        finish(events)
    assert not hub.asked("/commit/")
    assert files_of(hub, "alice/copy") == {".gitattributes"}


@pytest.mark.parametrize("source", ["alice/hidden", "alice/run"])
def test_a_source_that_is_hidden_meanwhile_goes_into_no_public_repo(
    hub: InHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    hub.api().update_repo_settings("alice/hidden", private=False)
    push(hub, write_ranks(tmp_path / "run"), "alice/run")
    base = "" if source == "alice/hidden" else "alice/hidden"
    shard(hub, source, "alice/copy", Options("60kB", base=base))
    assert not hub.api().model_info("alice/copy").private
    after_commits(monkeypatch, 2, lambda: hide(hub, "alice/hidden"))
    with pytest.raises(
        DestinationError, match="alice/hidden was public when the job started and may not be public now"
    ):
        shard(hub, source, "alice/copy", Options("70kB", base=base))
    assert not hub.asked("/commit/")


def test_what_is_of_a_base_that_is_hidden_meanwhile_is_not_shown(hub: InHouse, tmp_path: Path) -> None:
    hub.api().update_repo_settings("alice/hidden", private=False)
    push(hub, write_ranks(tmp_path / "run"), "alice/run")
    options = Options("1GB", base="alice/hidden")
    events = job.shard("alice/run", "alice/copy", options, endpoint=hub.address, token=TOKEN)
    next(event for event in events if isinstance(event, Verified))
    hide(hub, "alice/hidden")
    assert "because alice/hidden was public when the job started" in remark_of(events)
    assert hub.api().model_info("alice/copy").private


def test_a_public_copy_with_files_of_a_private_base_asks_for_a_word(hub: InHouse, tmp_path: Path) -> None:
    run, options = str(write_ranks(tmp_path / "run")), Options("60kB", base="alice/hidden")
    with pytest.raises(DestinationError, match="alice/hidden is private or gated, .* A public copy"):
        shard(hub, run, "alice/copy", options, private=False)
    shard(hub, run, "alice/copy", options, private=False, confirmed=True)
    assert not hub.api().model_info("alice/copy").private
