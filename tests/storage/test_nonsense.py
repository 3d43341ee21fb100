"""An answer that makes no sense ends a job at once, and says which request it was; an empty field is an empty list."""

from typing import Any

import pytest

from sharding import job
from sharding.core.errors import ShardingError, SourceError
from sharding.core.events import Planned
from sharding.report.schema import Report
from sharding.storage.hub import repo as hub_repo
from sharding.storage.hub import source as hub_source
from sharding.storage.hub.answers import NETWORK_TRIES
from sharding.storage.hub.client import Hub
from tests.hubs import SOURCE, TOKEN, exists, files_of, shard
from tests.inhouse import InHouse
from tests.storage.steps import change_answers

REQUESTS = {
    "the login": "GET /api/whoami-v2",
    "the source": "GET /api/models/SOURCE/revision/v1",
    "its branches": "GET /api/models/SOURCE/refs",
    "its files": "GET /api/models/SOURCE/tree/",
    "a new repo": "POST /api/repos/create",
    "its visibility": "GET /api/models/MADE",
    "its own branches": "GET /api/models/MADE/refs",
    "the staging branch": "POST /api/models/MADE/preupload/",
    "a commit": "POST /api/models/MADE/commit/",
    "the store": "GET /api/models/MADE/xet-write-token/",
}


@pytest.fixture
def tagged(hub: InHouse, own: str) -> str:
    """A source that is named by a tag."""
    hub.api().create_tag(own, tag="v1")
    hub.log.clear()
    return f"{own}@v1"


def refused(hub: InHouse, source: str, name: str) -> ShardingError:
    """How a copy of the source is refused."""
    with pytest.raises(ShardingError) as refusal:
        shard(hub, source, name)
    assert refusal.value.exit_status == 3
    return refusal.value


@pytest.mark.parametrize(
    ("request_line", "odd"),
    [*((line, "null") for line in REQUESTS.values()), (REQUESTS["its files"], "text"), (REQUESTS["a commit"], "text")],
)
def test_nonsense_is_asked_for_once_and_the_request_is_named(
    hub: InHouse, own: str, tagged: str, name: str, request_line: str, odd: str
) -> None:
    request_line = request_line.replace("SOURCE", own).replace("MADE", name)
    pattern = request_line if request_line.endswith("/") else f"{request_line}$"
    with hub.failing(f"{odd}@{pattern}"):
        error = refused(hub, tagged, name)
    asked = [line for line in hub.log if line.startswith(request_line)]
    assert any(line in error.message for line in asked), error.message
    assert "makes no sense" in error.message
    assert "later" not in error.hint and "proxy" not in error.hint
    assert not exists(hub, name) or files_of(hub, name) <= {".gitattributes"}
    if odd == "null":
        assert hub.asked(pattern) <= 2  # once, and where it is cleaned up


@pytest.mark.parametrize("odd", ["html", "empty"])
def test_what_a_proxy_answers_is_asked_for_again(hub: InHouse, own: str, tagged: str, name: str, odd: str) -> None:
    refs = f"GET /api/models/{own}/refs"
    with hub.failing(f"{odd}@{refs}"):
        error = refused(hub, tagged, name)
    assert hub.asked(refs) == NETWORK_TRIES
    assert refs in error.message and "proxy" in error.hint and "later" in error.hint
    with hub.failing(f"{odd}@{refs}#{NETWORK_TRIES - 1}"):
        assert job.inspect(tagged, endpoint=hub.address, token=TOKEN).tensors


def test_a_commit_with_an_odd_answer_is_looked_for(hub: InHouse, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = hub_repo.HubRepo.commit

    def commit(repo: hub_repo.HubRepo, branch: str, *rest: Any) -> str:
        made = usual(repo, branch, *rest)
        return made if branch != "main" else hub_repo.parsed(hub_repo.SHA, f"{made}0")

    monkeypatch.setattr(hub_repo.HubRepo, "commit", commit)
    assert shard(hub, SOURCE, name).verification.identical
    assert "sharding_report.json" in files_of(hub, name)


# --- Empty fields ------------------------------------------------------------------------------------------


def without_empty_lists(content: Any) -> Any:
    """An answer as Hubs give it that write `null` for an empty list."""
    if isinstance(content, list):
        return [without_empty_lists(item) for item in content]
    if not isinstance(content, dict):
        return content
    return {key: None if value == [] else without_empty_lists(value) for key, value in content.items()}


def test_a_list_may_be_null(hub: InHouse, own: str, tagged: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change_answers(monkeypatch, without_empty_lists)
    assert b'"converts":null' in hub.ask("GET", f"/api/models/{own}/refs", token="hf_bob").body.replace(b" ", b"")
    for place in (own, tagged):
        assert shard(hub, place, name, private=False, confirmed=True).verification.identical
    assert job.discard(name, endpoint=hub.address, token=TOKEN).found is False


# --- Faults of our own -------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [TypeError, KeyError, ValueError])
def test_no_fault_of_our_own_is_the_hubs(hub: InHouse, monkeypatch: pytest.MonkeyPatch, fault: type[Exception]) -> None:
    def broken(*_: Any) -> None:
        raise fault("ours")

    monkeypatch.setattr(hub_source, "listed_files", broken)
    with pytest.raises(fault, match="ours"):
        job.inspect(SOURCE, endpoint=hub.address, token=TOKEN)
    assert hub.asked(f"GET /api/models/{SOURCE}$") == 1


# --- Namespaces --------------------------------------------------------------------------------------------


def without_orgs(content: Any) -> Any:
    """An answer of a Hub that lists no organisations, as for a token of one repo."""
    return {**content, "orgs": []} if isinstance(content, dict) and "orgs" in content else content


def test_an_unlisted_namespace_is_warned_of_and_tried(hub: InHouse, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, bare = name.replace("alice", "acme"), name.partition("/")[2]
    for destination in (made, name, bare):
        planned, *_ = job.shard(SOURCE, destination, endpoint=hub.address, token=TOKEN)
        assert not [one for one in planned.checkpoint.findings if one.code == "namespace"]
    change_answers(monkeypatch, without_orgs)
    planned, *_, report = job.shard(SOURCE, f"{made}-2", endpoint=hub.address, token=TOKEN)
    assert isinstance(planned, Planned) and isinstance(report, Report)
    (finding,) = [one for one in planned.checkpoint.findings if one.code == "namespace"]
    assert finding.level == "warning" and "acme" in finding.message
    assert f"The Hub lists alice. To write to a folder, name it ./{made}-2." in finding.hint
    assert report.verification.identical and "sharding_report.json" in files_of(hub, f"{made}-2")
    assert not [one for one in report.plan.findings if one.code == "namespace"], "nobody else's business"


def test_odd_answers_on_the_store_end_in_a_sentence(hub: InHouse, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hub, "least_xet_bytes", 0)
    for rule, says in (("short:1", "an unreadable answer"), ("null", "an answer that makes no sense")):
        with hub.failing(f"{rule}@xet-read-token"), pytest.raises(SourceError, match=says) as refusal:
            shard(hub, SOURCE, name)
        assert f"GET /api/models/{SOURCE}/xet-read-token/" in refusal.value.message
