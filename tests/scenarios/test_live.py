"""What `make live` asks of a Hub: all of it holds on the loopback Hub, and each check finds what it is there for."""

import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sharding.core.events import ShardFinished
from sharding.localhub import commits, repos
from sharding.storage.hub.answers import person_of
from sharding.storage.hub.client import Hub
from sharding.storage.hub.repo import HubRepo
from sharding.storage.hub.source import HubSource
from tests.hubs import TOKEN
from tests.inhouse import InHouse, hub_in_house, ignore_private
from tests.scenarios import live

Patch = pytest.MonkeyPatch


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InHouse]:
    with hub_in_house(tmp_path_factory.mktemp("hub"), orgs={"acme": ("alice",)}) as hub:
        yield hub


@pytest.fixture(autouse=True)
def signed_in(hub: InHouse, monkeypatch: Patch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.log.clear()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict[str, str], str]]:
    def run(*arguments: str) -> tuple[int, dict[str, str], str]:
        status = live.main(arguments)
        said = capsys.readouterr()
        lines = [line.split(":")[0] for line in said.out.splitlines() if line.startswith(("holds ", "does not "))]
        return status, {line[10:]: line[:9].strip() for line in lines}, said.out + said.err

    return run


def left(hub: InHouse) -> list[str]:
    return [model.id for model in hub.api().list_models()]


def made(hub: InHouse) -> int:
    return hub.asked("POST /api/repos/create")


def test_everything_holds_on_the_loopback_hub_and_no_repo_is_left(hub: InHouse, run: Any) -> None:
    status, verdicts, said = run()
    assert verdicts == {check.__name__.replace("_", " "): "holds" for check in live.CHECKS}, said
    assert status == 0
    assert made(hub) >= 8
    assert left(hub) == []


def test_what_does_not_hold_is_said_and_the_repos_are_removed_all_the_same(
    hub: InHouse, run: Any, monkeypatch: Patch
) -> None:
    ignore_private(monkeypatch)
    monkeypatch.setattr(live, "CHECKS", (live.scopes, live.private_from_birth, live.discarding))
    status, verdicts, said = run()
    assert verdicts == {"scopes": "holds", "private from birth": "does not", "discarding": "holds"}, said
    assert "The Hub shows anybody that it is there, its files, the bytes of one." in said
    assert status == 1
    assert made(hub) >= 3
    assert left(hub) == []


def test_who_stops_it_in_the_middle_of_a_job_finds_nothing_left(hub: InHouse, run: Any, monkeypatch: Patch) -> None:
    def stop(live: live.Live) -> str:
        """Somebody stops it."""
        for event in live.shard(str(live.model), live.repo("stop").repo_id):
            if isinstance(event, ShardFinished):
                assert left(hub) == [live.repo("stop").repo_id]
                signal.raise_signal(signal.SIGINT)
        return ""

    monkeypatch.setattr(live, "CHECKS", (live.scopes, stop, live.verifying))
    status, verdicts, said = run("--namespace", "acme")
    assert (status, verdicts) == (130, {"scopes": "holds"})
    assert "Stopped." in said
    assert left(hub) == []


def test_a_token_that_may_not_remove_repos_makes_only_one_which_is_named(hub: InHouse, run: Any) -> None:
    with hub.failing("status:403@DELETE /api/repos/delete"):
        status, verdicts, said = run()
    assert (status, verdicts) == (1, {"scopes": "does not"})
    (repo_id,) = left(hub)
    assert f"{repo_id} could not be removed" in said and f"{hub.address}/{repo_id}/settings" in said
    hub.api().delete_repo(repo_id)


def test_a_token_that_only_reads_says_nothing_of_the_hub(hub: InHouse, run: Any, monkeypatch: Patch) -> None:
    monkeypatch.setenv("HF_TOKEN", f"{TOKEN}_read")
    status, verdicts, said = run()
    assert (status, verdicts) == (1, {"scopes": "does not"})
    assert "To make a repo, allowed by what is said, refused in fact" in said and "are not begun" in said
    assert left(hub) == []


@pytest.mark.parametrize(
    ("token", "arguments", "says"),
    [
        ("", (), "Nobody is signed in, so nothing can be made on "),
        ("hf_nobody", (), "not valid or has expired"),
        (TOKEN, ("--namespace", "bob"), "may not write to the namespace"),
    ],
)
def test_no_token_one_that_is_none_and_a_namespace_that_is_not_ones_own_are_refused(
    token: str, arguments: tuple[str, ...], says: str, hub: InHouse, run: Any, monkeypatch: Patch
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    status, verdicts, said = run(*arguments)
    assert (status, verdicts) == (3, {}) and says in said
    assert made(hub) == 0


# --- Every check of what only the Hub decides can fail ------------------------------------------------

WRITE, READ, PARSE = repos.write_commit, HubSource._xet, commits.parse_commit


def write_twice(db: Any, repo: Any, branch: str, parent: Any, *rest: Any) -> Any:
    return WRITE(db, repo, branch, WRITE(db, repo, branch, parent, *rest), *rest)


def read_a_byte_before(source: HubSource, entry: Any, start_byte: int, end_byte: int) -> Iterator[bytes]:
    return READ(source, entry, start_byte - 1, end_byte - 1)


def take_any_parent(*given: Any) -> Any:
    return replace(PARSE(*given), parent=None)


FAULTS: dict[live.Check, tuple[Any, str]] = {
    live.private_from_birth: (ignore_private, "The Hub shows anybody that it is there"),
    live.copies_on_the_server: ("corrupt@GET .*/resolve/main/tokenizer.model", "arrived with other bytes"),
    live.ranges_and_streams: ((HubSource, "_xet", read_a_byte_before), "Bytes 1 to 131074 are others; 131073 came."),
    live.staging: ("status:404@DELETE .*/branch/", "Branches are left behind"),
    live.commit_limits: ((repos, "write_commit", write_twice), "main has 3 commits"),
    live.stale_parents: ((commits, "parse_commit", take_any_parent), "status 200"),
    live.visibility: ((HubRepo, "is_private", lambda _: True), "It was accepted."),
}
"""A fault of the Hub's or a patch of the code, and what the check says then."""


@pytest.mark.parametrize("check", FAULTS, ids=lambda check: check.__name__)
def test_a_check_fails_where_what_it_asks_is_not_so(
    check: live.Check, hub: InHouse, tmp_path: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = Hub(hub.address, TOKEN)
    asked = live.Live(client, TOKEN, person_of(client.api.whoami()), "alice", tmp_path)
    fault, reason = FAULTS[check]
    with hub.failing(*([fault] if isinstance(fault, str) else [])):
        if callable(fault):
            fault(monkeypatch)
        elif not isinstance(fault, str):
            monkeypatch.setattr(*fault)
        assert not live.examine(asked, check)
    assert reason in capsys.readouterr().out
    assert asked.remove() == []
    assert left(hub) == []
