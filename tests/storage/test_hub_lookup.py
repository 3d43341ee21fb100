"""What a visitor asks of the Hub before a job."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sharding.core.errors import DestinationError, ShardingError, SourceError
from sharding.core.limits import CACHED_SECONDS
from sharding.core.options import SINGLE_FILE, Options
from sharding.storage.hub import lookup as hub_lookup
from sharding.storage.hub.answers import OddAnswer, Person, person_of
from sharding.storage.hub.client import Hub
from sharding.storage.hub.lookup import ANSWERS_TIMED, PERSON_SECONDS, Lookup, propose_name
from tests.hubs import TOKEN
from tests.inhouse import InHouse, hub_in_house
from tests.storage.steps import answering, served_by_hand

ALICE = Person("alice", ("alice", "acme"))
CARD = b"---\nlicense: apache-2.0\n---\n# A model\n"


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InHouse]:
    """A Hub with a few repos, which lists four at once."""
    orgs = {"acme": ("alice", "bob"), "zoo": ("alice",)}
    with hub_in_house(tmp_path_factory.mktemp("hub"), orgs=orgs, page_items=4) as server:
        for name in ("apple-1", "apple-2", "pear", "hidden-apple"):
            server.api().create_repo(f"alice/{name}", private=name == "hidden-apple")
        server.put("alice/pear", "README.md", CARD)
        server.api("hf_bob").create_repo("bob/gated")
        server.api("hf_bob").update_repo_settings("bob/gated", gated="manual")
        yield server


@pytest.fixture
def lookup(shelf: InHouse) -> Lookup:
    return Lookup(shelf.address)


def test_a_search_finds_what_the_visitor_may_see(lookup: Lookup) -> None:
    assert set(lookup.search("apple")) == {"alice/apple-1", "alice/apple-2"}
    assert set(lookup.search("apple", "hf_alice")) == {"alice/apple-1", "alice/apple-2", "alice/hidden-apple"}
    assert lookup.search("no-such-thing") == []


def test_who_signed_in_is_known_with_his_namespaces(lookup: Lookup) -> None:
    assert lookup.who("hf_alice") == Person("alice", ("alice", "acme", "zoo"))
    with pytest.raises(DestinationError, match="not valid or has expired"):
        lookup.who("hf_nobody")


def test_a_card_says_license_gate_and_privacy(shelf: InHouse, lookup: Lookup) -> None:
    pear = lookup.card("alice/pear")
    assert (pear.license, pear.gated, pear.private) == ("apache-2.0", False, False)
    assert (pear.page, pear.revision) == (f"{shelf.address}/alice/pear", shelf.api().model_info("alice/pear").sha)
    assert lookup.card("bob/gated").gated is True
    assert lookup.card("alice/hidden-apple", "hf_alice").private is True
    with pytest.raises(SourceError, match="alice/hidden-apple does not exist, or you have no access to it"):
        lookup.card("alice/hidden-apple", "hf_bob")
    with pytest.raises(SourceError, match="no repo 'pear'") as refusal:
        lookup.card("pear")
    assert refusal.value.hint.startswith("Write owner/name")
    with pytest.raises(SourceError, match="has no revision '"):
        lookup.card("alice/pear@v9")


def test_a_free_name_is_proposed_where_one_is_taken(lookup: Lookup) -> None:
    assert lookup.free_name("alice/plum", "hf_alice") == "alice/plum"
    assert lookup.free_name("alice/pear", "hf_alice") == "alice/pear-2"
    assert lookup.free_name("alice/apple", "hf_alice") == "alice/apple"


LINKS = {
    " owner/name ": "owner/name",
    "gpt2": "gpt2",
    "owner/name@refs/pr/7": "owner/name/tree/refs%2Fpr%2F7",
    "https://huggingface.co/owner/name/tree/main?not-for-all-audiences=true": "owner/name/tree/main",
    "https://huggingface.co/owner/name/commit/0123456789abcdef": "owner/name/tree/0123456789abcdef",
    "HF://models/owner/name@v2": "owner/name/tree/v2",
    "https://huggingface.co/gpt2": "gpt2",
    "some.name/with.dots": "some.name/with.dots",
    "owner/name/lora/": "owner/name/tree/main/lora",
}


def test_what_was_typed_or_pasted_becomes_a_link(lookup: Lookup, shelf: InHouse) -> None:
    for text, link in LINKS.items():
        assert lookup.link(text) == f"{shelf.address}/{link}"
        assert lookup.link(lookup.link(text)) == lookup.link(text)


@pytest.mark.parametrize(
    ("text", "scheme"),
    [
        ("s3://bucket.of.mine/alice/copy", "s3://"),
        ("file:/alice/copy", "file:/"),
        ("git@github.com:alice/copy", "git@github.com:"),
        ("git+ssh://git@hf.co/alice/copy", "git+ssh://"),
        (f"{'x' * 99_999}://alice/copy", "xxx"),
    ],
)
def test_an_address_of_another_kind_is_refused_and_never_the_repo_in_it(lookup: Lookup, text: str, scheme: str) -> None:
    for ask in (lookup.link, lookup.card, lambda text: lookup.repo_id(text, ALICE)):
        with pytest.raises((SourceError, DestinationError)) as refusal:
            ask(text)
        assert scheme in refusal.value.message and len(refusal.value.message) < 300
        assert "owner/name" in refusal.value.hint


@pytest.mark.parametrize("text", ["./here", "/etc/lora", "~", "../up", "two words", "a/b/../c", "a@b@c", "\0"])
def test_a_folder_of_a_machine_and_what_is_no_repo_is_refused_with_a_hint(lookup: Lookup, text: str) -> None:
    for ask in (lookup.link, lambda text: lookup.repo_id(text, ALICE)):
        with pytest.raises(ShardingError) as refusal:
            ask(text)
        assert refusal.value.hint


@pytest.mark.parametrize("kind", ["dataset", "space", "bucket"])
def test_a_link_to_what_is_no_model_is_refused_by_its_kind(lookup: Lookup, kind: str) -> None:
    for text in (f"https://huggingface.co/{kind}s/owner/name", f"hf://{kind}s/owner/name"):
        with pytest.raises(SourceError, match=f"is a {kind}, not a model"):
            lookup.link(text)


def test_a_destination_is_typed_or_pasted_and_a_bare_one_is_in_ones_namespace(lookup: Lookup, shelf: InHouse) -> None:
    for text in ("acme/copy", f"{shelf.address}/acme/copy", "https://huggingface.co/acme/copy", "hf://acme/copy"):
        assert lookup.repo_id(text, ALICE) == "acme/copy"
    assert lookup.repo_id("copy", ALICE) == "alice/copy"
    assert lookup.repo_id("demo/out", ALICE) == "demo/out", "who may write there is for the Hub to say"


def test_a_hub_that_cannot_be_reached_is_an_answer_in_plain_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sharding.storage.hub.answers.NETWORK_TRIES", 1)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # the client waits between its own attempts as well
    nowhere = Lookup("http://127.0.0.1:9")
    for ask in (nowhere.search, nowhere.card, nowhere.who):
        with pytest.raises(ShardingError, match="cannot be reached") as refusal:
            ask("name")
        assert refusal.value.hint


PROPOSED = {
    ("hf.co/mistralai/Mistral-7B-v0.1", Options("200MB")): "Mistral-7B-v0.1-sharded-200MB",
    ("gpt2@v1", Options("1 GB")): "gpt2-sharded-1GB",
    ("gpt2", Options(SINGLE_FILE, dtype="bf16")): "gpt2-bf16-single-file",
    ("gpt2", Options("1GB", variant="fp16")): "gpt2-fp16-sharded-1GB",
    ("gpt2", Options("1GB", dtype="fp16", variant="fp16")): "gpt2-fp16-sharded-1GB",
    ("gpt2", Options("1GB", dtype="bf16", variant="non_ema")): "gpt2-non_ema-bf16-sharded-1GB",
    ("gpt2", Options("1GB", variant="-x, é")): "gpt2-sharded-1GB",
}


def test_a_proposed_name_is_one_that_a_hub_accepts_and_says_all_but_the_end_of_the_model() -> None:
    for (source, options), name in PROPOSED.items():
        assert propose_name("me", source, options) == f"me/{name}"
    ends = {"-sharded-1GB": Options("1GB")}
    for end, options in (ends | {"-ema-bf16-single-file": Options(SINGLE_FILE, dtype="bf16", variant="ema")}).items():
        for namespace in ("me", "somebody-with-a-long-name"):
            longest = 96 - len(namespace) - len(end) - 1
            for length in (1, 40, longest, 96):
                name = propose_name(namespace, f"a/{'x' * length}", options)
                assert name == f"{namespace}/{'x' * min(length, longest)}{end}" and len(name) <= 96


def test_the_shortest_time_of_an_answer_is_kept_for_minutes(lookup: Lookup, monkeypatch: pytest.MonkeyPatch) -> None:
    spent, now, asked = iter((9.0, 0.25, 5.0, *[1.0] * ANSWERS_TIMED)), [100.0], []

    def refs(hub: Hub, repo_id: str) -> None:
        asked.append(repo_id)
        now[0] += next(spent)

    monkeypatch.setattr("sharding.storage.hub.lookup.time.monotonic", lambda: now[0])
    monkeypatch.setattr(Hub, "refs", refs)
    for seconds, times, answer in ((0, 1, 0.25), (CACHED_SECONDS, 1, 0.25), (CACHED_SECONDS + 1, 2, 1.0)):
        now[0] = 100 + seconds
        assert lookup.answer_seconds("alice/pear") == answer and len(asked) == times * ANSWERS_TIMED


def test_a_refusal_is_an_answer_and_a_hub_that_is_away_has_no_time(lookup: Lookup) -> None:
    assert lookup.answer_seconds("alice/hidden-apple") is not None
    assert Lookup("http://127.0.0.1:9").answer_seconds("alice/pear") is None


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
    assert TOKEN not in repr(vars(lookup)), "no token is kept"


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
        hub.put(name, path)
    assert lookup.remark_on_empty(name, TOKEN) == ""
    with hub.failing("status:403@.*"):
        assert lookup.remark_on_empty(name, TOKEN) == ""


def test_a_search_gives_a_few_the_most_popular_first() -> None:
    models = [{"id": f"owner/model-{number}", "downloads": 0} for number in (3, 1, 2, *range(4, 40))]
    body = json.dumps(models).encode()
    with served_by_hand(answering(body, "Content-Type: application/json")) as (address, asked):
        assert Lookup(address).search("some words") == [model["id"] for model in models[:12]]
    (request,) = asked
    line = request.split(b"\r\n")[0]
    assert b"search=some" in line and b"sort=downloads" in line and b"limit=12" in line


def test_no_folder_is_looked_into_for_a_page(hub: InHouse, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    assert Lookup(hub.address).link(folder.name) == f"{hub.address}/{folder.name}"
    assert Lookup(hub.address).repo_id(folder.name, ALICE) == f"alice/{folder.name}"


# --- Who somebody is ----------------------------------------------------------------------------------


def answer(**more: Any) -> dict[str, Any]:
    """What a Hub says to "who am I"."""
    return {"type": "user", "name": "alice", "auth": {"type": "access_token"}, **more}


def test_ones_own_namespace_is_open_and_an_organisation_where_one_may_write() -> None:
    assert all(person_of(answer(**orgs)).namespaces == ("alice",) for orgs in ({}, {"orgs": None}, {"orgs": []}))
    roles = {"admin": 1, "write": 1, "contributor": 1, "read": 0, "no_access": 0}
    orgs = [{"type": "org", "name": f"of-{role}", "roleInOrg": role} for role in roles] + [{"name": "of-none"}]
    open_to = [f"of-{role}" for role, may in roles.items() if may]
    assert person_of(answer(orgs=orgs)).namespaces == ("alice", *open_to, "of-none")


def test_an_application_shows_a_repo_later_only_with_the_scope_for_it() -> None:
    for auth in ({"type": "access_token"}, None, {"type": "oauth", "scopes": ["manage-repos"]}):
        assert person_of(answer(auth=auth)).may_show_later
    for scopes in ({"scopes": ["contribute-repos"]}, {}, {"scopes": None}):
        assert not person_of(answer(auth={"type": "oauth", **scopes})).may_show_later


@pytest.mark.parametrize(
    "odd", [{}, {"name": 3}, {"name": ""}, {"name": None}, {"name": "alice", "orgs": [{"name": None}]}, [], None]
)
def test_an_odd_answer_is_nobody(odd: Any) -> None:
    with pytest.raises(OddAnswer, match="makes no sense"):
        person_of(odd)
