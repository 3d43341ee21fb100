"""What a Hub calls a commit is 40 hexadecimal digits, or the job ends in a sentence with nothing shown."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse

from sharding import job
from sharding.core.errors import DestinationError, ShardingError, SourceError
from tests.conftest import in_two_files
from tests.hubs import TOKEN, exists, files_of, push, shard
from tests.inhouse import InHouse, hub_in_house

SOURCE, MADE = "alice/source", "alice/made"
ODD: list[object] = ["main", "../../" + "0" * 34, "0" * 39, "0" * 41, "A" * 40, "a" * 40 + "\n", "a" * 64, "", 7, None]

Changed = dict[str, object]


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> Changed:
    """What the Hub says in the place of a commit, by the key under which it does."""
    changed: Changed = {}

    class Odd(JSONResponse):
        def render(self, content: Any) -> bytes:
            return super().render(_with(content, changed))

    monkeypatch.setattr("sharding.localhub.web.JSONResponse", Odd)
    return changed


def _with(content: Any, changed: Changed) -> Any:
    if isinstance(content, list):
        return [_with(item, changed) for item in content]
    if not isinstance(content, dict):
        return content
    is_commit = "authors" in content and "id" in content  # of a list of commits
    return {
        key: changed["commits"] if is_commit and key == "id" and "commits" in changed
        else changed[key] if key in changed else _with(value, changed)
        for key, value in content.items()
    }  # fmt: skip


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InHouse]:
    monkeypatch.setattr("sharding.storage.hub.answers.NETWORK_WAIT_SECONDS", 0.001)
    with hub_in_house(tmp_path / "hub") as hub:
        push(hub, in_two_files(tmp_path / "in"), SOURCE)
        yield hub


def test_a_source_is_at_a_commit_or_it_is_not_read(hub: InHouse, changed: Changed) -> None:
    job.inspect(SOURCE, endpoint=hub.address, token=TOKEN)
    for odd in ODD:
        changed["sha"] = odd
        hub.log.clear()
        with pytest.raises(SourceError) as refusal:
            job.inspect(SOURCE, endpoint=hub.address, token=TOKEN)
        assert refusal.value.message and refusal.value.hint, odd
        assert hub.asked("/resolve/|/tree/|/raw/") == 0, odd


@pytest.mark.parametrize("key", ["targetCommit", "commitOid"])
def test_a_destination_is_at_a_commit_or_nothing_is_shown_there(hub: InHouse, changed: Changed, key: str) -> None:
    for odd in ("0" * 39, None):
        changed[key] = odd
        with pytest.raises(ShardingError) as refusal:
            shard(hub, SOURCE, MADE)
        assert refusal.value.message and refusal.value.hint
        assert isinstance(refusal.value, DestinationError | SourceError)
        changed.clear()
        assert not exists(hub, MADE) or files_of(hub, MADE) <= {".gitattributes"}
    shard(hub, SOURCE, MADE)
    assert "sharding_report.json" in files_of(hub, MADE)


def test_a_history_is_one_of_commits_or_the_weights_are_not_taken_for_the_repos(
    hub: InHouse, changed: Changed, tmp_path: Path
) -> None:
    commit = hub.api().model_info(SOURCE).sha
    hub.put(SOURCE, "more.txt")
    place = f"{SOURCE}@{commit}"
    assert job.inspect(place, endpoint=hub.address, token=TOKEN).unreached == ()
    for odd in ("main", "0" * 39, None):
        changed["commits"] = odd
        with pytest.raises(SourceError) as refusal:
            job.inspect(place, endpoint=hub.address, token=TOKEN)
        assert refusal.value.hint
