"""What is to be private is private before its first byte goes up, or nothing goes up."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sharding import job
from sharding.core.errors import DestinationError
from sharding.core.events import Published, Verified
from sharding.localhub import repos
from sharding.storage.hub_repo import HubRepo
from tests.conftest import random_tensors, write_checkpoint
from tests.folders import finish
from tests.hubs import TOKEN, exists, push, shard
from tests.inhouse import InHouse, hub_in_house, ignore_private

WRITES = "^(POST|PUT) .*(commit|branch|preupload|info/lfs|xet-write|settings)"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[InHouse]:
    with hub_in_house(tmp_path / "hub") as hub:
        folder = write_checkpoint(tmp_path / "in", {"model.safetensors": random_tensors()}, False)
        push(hub, folder, "alice/open")
        push(hub, folder, "alice/hidden", private=True)
        hub.log.clear()
        yield hub


@pytest.mark.parametrize(("source", "private"), [("alice/open", True), ("alice/hidden", None), ("alice/hidden", True)])
def test_where_the_hub_shows_it_all_the_same_nothing_is_written_and_the_repo_goes(
    hub: InHouse, monkeypatch: pytest.MonkeyPatch, source: str, private: bool | None
) -> None:
    ignore_private(monkeypatch)
    with pytest.raises(DestinationError, match="The Hub made alice/copy public, although asked not to"):
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
        lambda: job.check("alice/open", "alice/copy", private=True, endpoint=hub.address, token=TOKEN),
    ):
        with pytest.raises(DestinationError, match="alice/copy exists and is public") as refusal:
            ask()
        assert f"{hub.address}/alice/copy/settings" in refusal.value.hint
    assert not hub.asked(WRITES)


def test_one_that_becomes_public_meanwhile_gets_nothing(hub: InHouse) -> None:
    hub.api().create_repo("alice/copy", private=True)
    events = job.shard("alice/open", "alice/copy", "60kB", private=True, endpoint=hub.address, token=TOKEN)
    next(events)  # planned
    hub.api().update_repo_settings("alice/copy", private=False)
    hub.log.clear()
    with pytest.raises(DestinationError, match="is public by now"):
        finish(events)
    assert not hub.asked(WRITES)


def remark_of(events: Iterator[job.Event]) -> str:
    return next(event.remark for event in events if isinstance(event, Published))


CLOSINGS: dict[str, Callable[[InHouse], object]] = {
    "private": lambda hub: hub.api().update_repo_settings("alice/open", private=True),
    "gated": lambda hub: hub.api().update_repo_settings("alice/open", gated="auto"),
    "renamed": lambda hub: hub.api().move_repo("alice/open", "alice/other"),
}


@pytest.mark.parametrize("what", CLOSINGS)
@pytest.mark.parametrize("private", [None, False])
def test_a_copy_of_what_is_not_public_any_more_is_not_shown(hub: InHouse, what: str, private: bool | None) -> None:
    events = job.shard("alice/open", "alice/copy", "1GB", private=private, endpoint=hub.address, token=TOKEN)
    next(event for event in events if isinstance(event, Verified))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HubRepo, "branches", closing(hub, CLOSINGS[what]))
        remark = remark_of(events)
    assert "stays private, because alice/open was public when the job began" in remark
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
