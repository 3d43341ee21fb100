"""What a Hub calls a commit is 40 hexadecimal digits, or the job ends in a sentence with nothing shown."""

from typing import Any

import pytest

from sharding import job
from sharding.core.errors import DestinationError, SourceError
from tests.hubs import SOURCE, TOKEN, exists, files_of, shard
from tests.inhouse import InHouse
from tests.storage.steps import change_answers

ODD: list[object] = ["main", "../../" + "0" * 34, "0" * 39, "0" * 41, "A" * 40, "a" * 40 + "\n", "a" * 64, "", 7, None]

Changed = dict[str, object]


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> Changed:
    """What the Hub says in the place of a commit, by the key under which it does."""
    changed: Changed = {}
    change_answers(monkeypatch, lambda content: _with(content, changed))
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


def test_a_source_is_at_a_commit_or_it_is_not_read(hub: InHouse, changed: Changed) -> None:
    for odd in ODD:
        changed["sha"] = odd
        hub.log.clear()
        with pytest.raises(SourceError) as refusal:
            job.inspect(SOURCE, endpoint=hub.address, token=TOKEN)
        assert refusal.value.message and refusal.value.hint, odd
        assert hub.asked("/resolve/|/tree/|/raw/") == 0, odd


@pytest.mark.parametrize("key", ["targetCommit", "commitOid"])
def test_a_destination_is_at_a_commit_or_nothing_is_shown(hub: InHouse, name: str, changed: Changed, key: str) -> None:
    for odd in ("0" * 39, None):
        changed[key] = odd
        with pytest.raises((DestinationError, SourceError)) as refusal:
            shard(hub, SOURCE, name)
        assert refusal.value.message and refusal.value.hint
        changed.clear()
        assert not exists(hub, name) or files_of(hub, name) <= {".gitattributes"}
    shard(hub, SOURCE, name)
    assert "sharding_report.json" in files_of(hub, name)


def test_a_history_is_one_of_commits_or_weights_are_not_the_repos(hub: InHouse, own: str, changed: Changed) -> None:
    place = f"{own}@{hub.api().model_info(own).sha}"
    hub.put(own, "more.txt")
    assert job.inspect(place, endpoint=hub.address, token=TOKEN).unreached == ()
    for odd in ("main", "0" * 39, None):
        changed["commits"] = odd
        with pytest.raises(SourceError) as refusal:
            job.inspect(place, endpoint=hub.address, token=TOKEN)
        assert refusal.value.hint
