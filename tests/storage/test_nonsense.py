"""An answer that makes no sense ends a job at once, and says which request it was; an empty field is an empty list."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse

from sharding import job
from sharding.core.errors import ShardingError, SourceError
from sharding.core.events import Planned
from sharding.report.schema import Report
from sharding.storage.hub import repo as hub_repo
from sharding.storage.hub import source as hub_source
from sharding.storage.hub.answers import NETWORK_TRIES
from sharding.storage.hub.client import Hub
from tests.conftest import in_two_files
from tests.hubs import TOKEN, exists, files_of, push, shard
from tests.inhouse import InHouse, hub_in_house

SOURCE, MADE = "alice/source", "alice/made"
MODEL = f"/api/models/{SOURCE}"
REQUESTS = {
    "the login": "GET /api/whoami-v2",
    "the source": f"GET {MODEL}/revision/v1",
    "its branches": f"GET {MODEL}/refs",
    "its files": f"GET {MODEL}/tree/",
    "a new repo": "POST /api/repos/create",
    "its visibility": f"GET /api/models/{MADE}",
    "its own branches": f"GET /api/models/{MADE}/refs",
    "the staging branch": f"POST /api/models/{MADE}/preupload/",
    "a commit": f"POST /api/models/{MADE}/commit/",
    "the store": f"GET /api/models/{MADE}/xet-write-token/",
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InHouse]:
    monkeypatch.setattr("sharding.storage.hub.answers.NETWORK_WAIT_SECONDS", 0.0001)
    with hub_in_house(tmp_path / "hub", orgs={"acme": ("alice",)}) as hub:
        push(hub, in_two_files(tmp_path / "in"), SOURCE)
        hub.api().create_tag(SOURCE, tag="v1")
        hub.log.clear()
        yield hub


def refused(hub: InHouse, revision: str = "v1") -> ShardingError:
    """How a copy of the source is refused."""
    with pytest.raises(ShardingError) as refusal:
        shard(hub, f"{SOURCE}@{revision}", MADE)
    assert refusal.value.exit_status == 3
    return refusal.value


@pytest.mark.parametrize(
    ("request_line", "odd"),
    [*((line, "null") for line in REQUESTS.values()), (REQUESTS["its files"], "text"), (REQUESTS["a commit"], "text")],
)
def test_nonsense_is_asked_for_once_and_the_request_is_named(hub: InHouse, request_line: str, odd: str) -> None:
    pattern = request_line if request_line.endswith("/") else f"{request_line}$"
    with hub.failing(f"{odd}@{pattern}"):
        error = refused(hub)
    asked = [line for line in hub.log if line.startswith(request_line.rstrip("$"))]
    assert any(line in error.message for line in asked), error.message
    assert "makes no sense" in error.message
    assert "later" not in error.hint and "proxy" not in error.hint
    assert not exists(hub, MADE) or files_of(hub, MADE) <= {".gitattributes"}
    if odd == "null":
        assert hub.asked(pattern) <= 2  # once, and where it is cleaned up


@pytest.mark.parametrize("odd", ["html", "empty"])
def test_what_is_no_answer_of_the_hub_is_asked_for_again_and_its_request_named(hub: InHouse, odd: str) -> None:
    with hub.failing(f"{odd}@GET {MODEL}/refs"):
        error = refused(hub)
    assert hub.asked(f"GET {MODEL}/refs") == NETWORK_TRIES
    assert f"GET {MODEL}/refs" in error.message and "proxy" in error.hint and "later" in error.hint
    with hub.failing(f"{odd}@GET {MODEL}/refs#{NETWORK_TRIES - 1}"):
        assert shard(hub, f"{SOURCE}@v1", MADE).verification.identical


def test_a_commit_of_which_the_answer_is_nonsense_is_looked_for(hub: InHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = hub_repo.HubRepo.commit

    def commit(repo: hub_repo.HubRepo, branch: str, *rest: Any) -> str:
        made = usual(repo, branch, *rest)
        return made if branch != "main" else hub_repo.checked_commit(f"{made}0")

    monkeypatch.setattr(hub_repo.HubRepo, "commit", commit)
    assert shard(hub, SOURCE, MADE).verification.identical
    assert "sharding_report.json" in files_of(hub, MADE)


# --- Empty fields ------------------------------------------------------------------------------------------


def without_empty_lists(content: Any) -> Any:
    """An answer as Hubs give it that write `null` for an empty list."""
    if isinstance(content, list):
        return [without_empty_lists(item) for item in content]
    if not isinstance(content, dict):
        return content
    return {key: None if value == [] else without_empty_lists(value) for key, value in content.items()}


def test_a_field_that_holds_a_list_may_be_null(hub: InHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    class Nulls(JSONResponse):
        def render(self, content: Any) -> bytes:
            return super().render(without_empty_lists(content))

    monkeypatch.setattr("sharding.localhub.web.JSONResponse", Nulls)
    assert b'"converts":null' in hub.ask("GET", f"{MODEL}/refs", token="hf_bob").body.replace(b" ", b"")
    for place in (SOURCE, f"{SOURCE}@v1"):
        assert shard(hub, place, MADE, private=False, confirmed=True).verification.identical
    assert job.discard(MADE, endpoint=hub.address, token=TOKEN).found is False


# --- Faults of our own -------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [TypeError, KeyError, ValueError])
def test_a_fault_of_our_own_is_not_called_an_answer_of_the_hub(
    hub: InHouse, monkeypatch: pytest.MonkeyPatch, fault: type[Exception]
) -> None:
    def broken(*_: Any) -> None:
        raise fault("ours")

    monkeypatch.setattr(hub_source, "listed_files", broken)
    with pytest.raises(fault, match="ours"):
        job.inspect(SOURCE, endpoint=hub.address, token=TOKEN)
    assert hub.asked(f"GET {MODEL}$") == 1


# --- Namespaces --------------------------------------------------------------------------------------------


@pytest.fixture
def silent(hub: InHouse, monkeypatch: pytest.MonkeyPatch) -> InHouse:
    """A Hub that lists no organisations, as for a token of one repo."""

    class NoOrgs(JSONResponse):
        def render(self, content: Any) -> bytes:
            return super().render(
                {**content, "orgs": []} if isinstance(content, dict) and "orgs" in content else content
            )

    monkeypatch.setattr("sharding.localhub.web.JSONResponse", NoOrgs)
    return hub


def test_a_namespace_that_the_hub_does_not_list_is_warned_of_and_tried(silent: InHouse) -> None:
    planned, *_, report = job.shard(SOURCE, "acme/made", endpoint=silent.address, token=TOKEN)
    assert isinstance(planned, Planned) and isinstance(report, Report)
    (finding,) = [one for one in planned.checkpoint.findings if one.code == "namespace"]
    assert finding.level == "warning" and "acme" in finding.message
    assert "The Hub lists alice. To write to a folder, name it ./acme/made." in finding.hint
    assert report.verification.identical and "sharding_report.json" in files_of(silent, "acme/made")
    assert not [one for one in report.plan.findings if one.code == "namespace"], "nobody else's business"


def test_a_namespace_that_is_listed_is_not_warned_of(hub: InHouse) -> None:
    for destination in ("acme/made", MADE, "bare"):
        planned, *_ = job.shard(SOURCE, destination, endpoint=hub.address, token=TOKEN)
        assert isinstance(planned, Planned)
        assert not [one for one in planned.checkpoint.findings if one.code == "namespace"]


def test_an_answer_on_the_store_that_is_cut_while_a_file_is_read_ends_in_a_sentence(
    hub: InHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hub, "least_xet_bytes", 0)
    for rule, says in (("short:1", "an unreadable answer"), ("null", "an answer that makes no sense")):
        with hub.failing(f"{rule}@xet-read-token"), pytest.raises(SourceError, match=says) as refusal:
            shard(hub, SOURCE, MADE)
        assert f"GET {MODEL}/xet-read-token/" in refusal.value.message
