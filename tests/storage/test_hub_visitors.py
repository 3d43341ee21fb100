"""What a visitor is told before a job: of themselves as it is now, of few repos, of empty ones, and of free names."""

import json
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sharding.core.errors import DestinationError
from sharding.core.options import SINGLE_FILE, Options
from sharding.storage.hub import lookup as hub_lookup
from sharding.storage.hub.answers import Person
from sharding.storage.hub.lookup import PERSON_SECONDS, Lookup, propose_name
from tests.hubs import TOKEN
from tests.inhouse import InHouse
from tests.storage.test_hub_hostile import served_by_hand

ALICE = Person("alice", ("alice", "acme"))
EMPTY = "The empty repo {} is still there"


def test_a_bare_name_is_in_ones_own_namespace_and_any_other_is_taken_as_it_is() -> None:
    names = ("copy", "alice/copy", "acme/copy", "bob/copy")
    assert [ALICE.own_id(name) for name in names] == ["alice/copy", "alice/copy", "acme/copy", "bob/copy"]


def test_who_somebody_is_is_never_older_than_a_minute(hub: InHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    lookup, now, said = Lookup(hub.address), [0.0], []
    monkeypatch.setattr(hub_lookup, "time", SimpleNamespace(monotonic=lambda: now[0]))
    for seconds, token in (
        (0, "hf_alice"),
        (1, "hf_bob"),
        (1 + PERSON_SECONDS, "hf_bob"),  # a minute old, and asked for at once: both of the first are over by the next
        (2 + PERSON_SECONDS, "hf_bob"),
        (3 + PERSON_SECONDS, "hf_alice"),
        (500, "hf_bob"),
        (500, "hf_bob"),
        (501, "hf_alice"),
    ):
        now[0], before = seconds, hub.asked("whoami")
        assert lookup.who(token).name == token.removeprefix("hf_")
        said.append(hub.asked("whoami") - before)
    assert said == [1, 1, 0, 1, 1, 1, 0, 1]


def test_a_login_that_has_ended_is_somebody_for_a_minute_at_most(hub: InHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    lookup, now = Lookup(hub.address), [0.0]
    monkeypatch.setattr(hub_lookup, "time", SimpleNamespace(monotonic=lambda: now[0]))
    for token in ("hf_alice", "hf_bob"):
        lookup.who(token)
    now[0] = PERSON_SECONDS + 1
    with hub.failing("status:401@GET /api/whoami"):
        for token in ("hf_bob", "hf_alice"):
            with pytest.raises(DestinationError, match="not valid or has expired"):
                lookup.who(token)


def test_of_a_repo_that_holds_nothing_of_anybody_it_is_said_that_it_is_there(hub: InHouse, name: str) -> None:
    lookup = Lookup(hub.address)
    assert lookup.remark_on_empty(name, TOKEN) == ""
    hub.api().create_repo(name, private=True)
    said = f"The empty repo {name} is still there. You can delete it at {hub.address}/{name}/settings."
    assert lookup.remark_on_empty(name, TOKEN) == said
    assert lookup.remark_on_empty(name, "hf_bob") == "", "who may not see it is not told of it"
    hub.api().delete_file(".gitattributes", name)
    assert lookup.remark_on_empty(name, TOKEN) == said
    for path in (".gitattributes", "notes.txt"):
        hub.api().upload_file(path_or_fileobj=b"x", path_in_repo=path, repo_id=name)
    assert lookup.remark_on_empty(name, TOKEN) == ""
    with hub.failing("status:403@.*"):
        assert lookup.remark_on_empty(name, TOKEN) == ""


def test_a_search_gives_a_few_the_most_popular_first() -> None:
    asked_for = {"id": "x", "downloads": 0}
    models = [{**asked_for, "id": f"owner/model-{number}"} for number in (3, 1, 2, *range(4, 40))]
    body = json.dumps(models).encode()

    def answer(connection: socket.socket) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        connection.sendall(head % len(body) + body)
        raise OSError

    with served_by_hand(answer) as (address, asked):
        found = Lookup(address).search("some words")
    assert found == [model["id"] for model in models[: len(found)]] and 5 <= len(found) <= 20
    (request,) = asked
    line = request.split(b"\r\n")[0]
    assert b"search=some" in line and b"sort=downloads" in line and f"limit={len(found)}".encode() in line


def test_a_search_of_a_hub_with_many_gives_a_few(hub: InHouse, name: str) -> None:
    for number in range(14):
        hub.api().create_repo(f"{name}-many-{number}")
    found = Lookup(hub.address).search(f"{name.partition('/')[2]}-many")
    assert len(found) == len(set(found)) == 12


def test_a_proposed_name_is_as_long_as_a_hub_takes_and_says_all_but_the_end_of_the_model() -> None:
    for options, end in (
        (Options("1GB"), "-sharded-1GB"),
        (Options(SINGLE_FILE, dtype="bf16", variant="ema"), "-ema-bf16-single-file"),
    ):
        for namespace in ("me", "somebody-with-a-long-name"):
            for length in (1, 40, 96 - len(namespace) - len(end) - 1, 96):
                name = propose_name(namespace, f"a/{'x' * length}", options)
                assert name == f"{namespace}/{'x' * min(length, 96 - len(namespace) - len(end) - 1)}{end}"
                assert len(name) <= 96


def test_the_lookup_keeps_no_token(hub: InHouse) -> None:
    lookup: Any = Lookup(hub.address)
    lookup.who(TOKEN)
    assert TOKEN not in repr(vars(lookup))


def test_nobody_looks_into_a_folder_for_somebody_on_a_page(
    hub: InHouse, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    assert Lookup(hub.address).link(folder.name) == f"{hub.address}/{folder.name}"
    assert Lookup(hub.address).repo_id(folder.name, ALICE) == f"alice/{folder.name}"
