"""What a visitor asks of the Hub before a job."""

from collections.abc import Iterator

import pytest

from sharding.core.errors import DestinationError, ShardingError, SourceError, UsageError
from sharding.core.limits import CACHED_SECONDS
from sharding.core.options import SINGLE_FILE, Options
from sharding.storage.hub.answers import Person, person_of
from sharding.storage.hub.client import Hub
from sharding.storage.hub.lookup import ANSWERS_TIMED, Lookup, propose_name
from tests.localhub.conftest import Server

ALICE = Person("alice", ("alice", "acme"))
CARD = b"---\nlicense: apache-2.0\n---\n# A model\n"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = ("--org", "acme=alice,bob", "--org", "zoo=alice", "--page", "4")
    server = Server(tmp_path_factory.mktemp("hub"), options).start()
    for name in ("apple-1", "apple-2", "pear"):
        server.api().create_repo(f"alice/{name}")
    server.api().upload_file(path_or_fileobj=CARD, path_in_repo="README.md", repo_id="alice/pear")
    server.api().create_repo("alice/hidden-apple", private=True)
    server.api("hf_bob").create_repo("bob/gated")
    server.api("hf_bob").update_repo_settings("bob/gated", gated="manual")
    yield server
    server.stop()


@pytest.fixture
def lookup(hub: Server) -> Lookup:
    return Lookup(hub.address)


def test_a_search_finds_what_the_visitor_may_see(lookup: Lookup) -> None:
    assert set(lookup.search("apple")) == {"alice/apple-1", "alice/apple-2"}
    assert set(lookup.search("apple", "hf_alice")) == {"alice/apple-1", "alice/apple-2", "alice/hidden-apple"}
    assert lookup.search("no-such-thing") == []


def test_who_signed_in_is_known_with_his_namespaces(lookup: Lookup) -> None:
    assert lookup.who("hf_alice") == Person("alice", ("alice", "acme", "zoo"))
    with pytest.raises(DestinationError, match="not valid or has expired"):
        lookup.who("hf_nobody")


def test_the_hub_is_asked_once_a_minute_who_somebody_is(lookup: Lookup, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    now = [0.0]
    monkeypatch.setattr("sharding.storage.hub.lookup.time.monotonic", lambda: now[0])
    monkeypatch.setattr(
        "sharding.storage.hub.lookup.Hub", lambda endpoint, token: asked.append(token) or Hub(endpoint, token)
    )
    for seconds, token in ((0, "hf_alice"), (30, "hf_bob"), (60, "hf_alice"), (61, "hf_alice"), (62, "hf_bob")):
        now[0] = seconds
        assert lookup.who(token).name == token.removeprefix("hf_")
    assert asked == ["hf_alice", "hf_bob", "hf_alice"]
    assert "hf_alice" not in repr(vars(lookup))


def test_a_card_says_license_gate_and_privacy(hub: Server, lookup: Lookup) -> None:
    pear = lookup.card("alice/pear")
    assert (pear.license, pear.gated, pear.private) == ("apache-2.0", False, False)
    assert (pear.page, pear.revision) == (f"{hub.address}/alice/pear", hub.api().model_info("alice/pear").sha)
    assert lookup.card("bob/gated").gated is True
    assert lookup.card("alice/hidden-apple", "hf_alice").private is True
    with pytest.raises(SourceError, match="alice/hidden-apple does not exist, or you have no access to it"):
        lookup.card("alice/hidden-apple", "hf_bob")
    with pytest.raises(SourceError, match="has no revision '"):
        lookup.card("alice/pear@v9")


def test_a_free_name_is_proposed_where_one_is_taken(lookup: Lookup) -> None:
    assert lookup.free_name("alice/plum", "hf_alice") == "alice/plum"
    assert lookup.free_name("alice/pear", "hf_alice") == "alice/pear-2"
    assert lookup.free_name("alice/apple", "hf_alice") == "alice/apple"


@pytest.mark.parametrize(
    ("text", "link"),
    [
        ("owner/name", "owner/name"),
        (" owner/name@v2 ", "owner/name/tree/v2"),
        ("owner/name@refs/pr/7", "owner/name/tree/refs%2Fpr%2F7"),
        ("owner/name@feature%2Fx", "owner/name/tree/feature%2Fx"),
        ("https://hf.co/owner/name", "owner/name"),
        ("HTTPS://HuggingFace.co/owner/name", "owner/name"),
        ("http://www.huggingface.co/owner/name", "owner/name"),
        ("hf.co/owner/name/tree/main", "owner/name/tree/main"),
        ("https://huggingface.co/owner/name/", "owner/name"),
        ("https://huggingface.co/owner/name?library=transformers", "owner/name"),
        ("https://huggingface.co/owner/name#usage", "owner/name"),
        ("https://huggingface.co/owner/name/tree/main?not-for-all-audiences=true", "owner/name/tree/main"),
        ("https://huggingface.co/owner/name/blob/v2/config.json", "owner/name/tree/v2"),
        ("https://huggingface.co/owner/name/resolve/v2/model.safetensors?download=true", "owner/name/tree/v2"),
        ("https://huggingface.co/owner/name/tree/refs%2Fpr%2F7", "owner/name/tree/refs%2Fpr%2F7"),
        ("https://huggingface.co/owner/name/tree/feature%2Fx", "owner/name/tree/feature%2Fx"),
        ("https://huggingface.co/owner/name/commit/0123456789abcdef", "owner/name/tree/0123456789abcdef"),
        ("hf://owner/name", "owner/name"),
        ("hf://models/owner/name@v2", "owner/name/tree/v2"),
        ("HF://owner/name@feature%2Fx", "owner/name/tree/feature%2Fx"),
        ("gpt2", "gpt2"),
        ("https://huggingface.co/gpt2", "gpt2"),
        ("some.name/with.dots", "some.name/with.dots"),
    ],
)
def test_what_was_typed_or_pasted_becomes_a_link(lookup: Lookup, hub: Server, text: str, link: str) -> None:
    assert lookup.link(text) == f"{hub.address}/{link}"
    assert lookup.link(lookup.link(text)) == lookup.link(text)


@pytest.mark.parametrize(
    ("text", "link"),
    [
        ("owner/name", "owner/name"),
        (" owner/name@v2 ", "owner/name/tree/v2"),
        ("owner/name@v2/lora/small", "owner/name/tree/v2/lora/small"),
        ("owner/name/lora/", "owner/name/tree/main/lora"),
        ("owner/name@refs/pr/7/lora", "owner/name/tree/refs%2Fpr%2F7/lora"),
        ("https://huggingface.co/owner/name/tree/main", "owner/name/tree/main"),
        ("huggingface.co/owner/name/tree/v2/lora", "owner/name/tree/v2/lora"),
        ("https://hf.co/owner/name/tree/feature%2Fx/my%20lora", "owner/name/tree/feature%2Fx/my%20lora"),
    ],
)
def test_a_folder_in_a_repo_becomes_a_link(lookup: Lookup, hub: Server, text: str, link: str) -> None:
    assert lookup.link(text) == f"{hub.address}/{link}"
    assert lookup.link(lookup.link(text)) == lookup.link(text)


@pytest.mark.parametrize("text", ["/etc/lora", "./lora", "~/lora", "owner/name/../../etc", "s3://owner/name/lora"])
def test_a_folder_of_a_machine_is_no_folder_in_a_repo(lookup: Lookup, text: str) -> None:
    with pytest.raises(SourceError):
        lookup.link(text)


@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_an_empty_name_is_wrong_usage(lookup: Lookup, text: str) -> None:
    for ask in (lookup.link, lookup.card, lambda text: lookup.repo_id(text, ALICE)):
        with pytest.raises(UsageError, match="is empty") as refusal:
            ask(text)
        assert refusal.value.hint


@pytest.mark.parametrize(
    ("text", "scheme"),
    [
        ("s3://alice/copy", "s3://"),
        ("S3://alice/copy", "S3://"),
        ("gs://alice/copy", "gs://"),
        ("az://alice/copy", "az://"),
        ("ftp://alice/copy", "ftp://"),
        ("ssh://alice/copy", "ssh://"),
        ("file:///alice", "file:///"),
        ("file:/alice/copy", "file:/"),
        ("git@github.com:alice/copy", "git@github.com:"),
        ("git@hf.co:alice/copy", "git@hf.co:"),
        ("git+ssh://git@hf.co/alice/copy", "git+ssh://"),
        ("s3://bucket.of.mine/alice/copy", "s3://"),
        (f"{'x' * 99_999}://alice/copy", "xxx"),
    ],
)
def test_an_address_of_another_kind_is_refused_by_its_scheme_and_is_never_the_repo_in_it(
    lookup: Lookup, text: str, scheme: str
) -> None:
    for ask in (lookup.link, lookup.card, lambda text: lookup.repo_id(text, ALICE)):
        with pytest.raises((SourceError, DestinationError)) as refusal:
            ask(text)
        assert scheme in refusal.value.message and len(refusal.value.message) < 300
        assert "owner/name" in refusal.value.hint


def test_a_bucket_of_the_hub_is_no_model(lookup: Lookup) -> None:
    with pytest.raises(SourceError, match="is a bucket, not a model"):
        lookup.link("hf://buckets/alice/copy")


@pytest.mark.parametrize("text", ["./here", "/etc", "~", "../up", "two words", "a/b/../c", "a@b@c", "\0"])
def test_what_is_no_repo_is_refused_with_a_hint(lookup: Lookup, text: str) -> None:
    for ask in (lookup.link, lambda text: lookup.repo_id(text, ALICE)):
        with pytest.raises(ShardingError) as refusal:
            ask(text)
        assert refusal.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "https://github.com/owner/name",
        "github.com/owner/name",
        "http://127.0.0.1:1@example.org/owner/name",
        "https://huggingface.co.example.org/owner/name",
        "https://example.org/https://huggingface.co/owner/name",
    ],
)
def test_a_link_to_another_host_is_refused_by_name(lookup: Lookup, text: str) -> None:
    for ask in (lookup.link, lambda text: lookup.repo_id(text, ALICE)):
        with pytest.raises(ShardingError, match=r"^(github\.com|(huggingface\.co\.)?example\.org) is not the Hub\.$"):
            ask(text)


@pytest.mark.parametrize("kind", ["dataset", "space"])
def test_a_link_to_what_is_no_model_is_refused_by_its_kind(lookup: Lookup, kind: str) -> None:
    for text in (f"https://huggingface.co/{kind}s/owner/name", f"hf://{kind}s/owner/name"):
        with pytest.raises(SourceError, match=f"is a {kind}, not a model"):
            lookup.link(text)


def test_a_bare_destination_is_in_ones_own_namespace(lookup: Lookup) -> None:
    assert lookup.repo_id("copy", ALICE) == "alice/copy"
    assert lookup.repo_id("acme/copy", ALICE) == "acme/copy"


def test_a_destination_may_be_pasted_as_well(lookup: Lookup, hub: Server) -> None:
    for link in (f"{hub.address}/acme/copy", "https://huggingface.co/acme/copy", "hf://acme/copy"):
        assert lookup.repo_id(link, ALICE) == "acme/copy"


def test_a_namespace_that_is_not_ones_own_is_for_the_hub_to_refuse(lookup: Lookup) -> None:
    assert lookup.repo_id("demo/out", ALICE) == "demo/out"


@pytest.mark.parametrize("text", ["alice/", "/alice", "alice/x@main", "alice/x--y", "alice/x.git", f"a/{'x' * 97}"])
def test_what_the_hub_takes_as_no_name_is_refused(lookup: Lookup, text: str) -> None:
    with pytest.raises(DestinationError) as refusal:
        lookup.repo_id(text, ALICE)
    assert refusal.value.hint


def test_organisations_where_one_may_only_read_are_not_offered() -> None:
    orgs = [
        {"name": role or "none", "roleInOrg": role} for role in ("read", "no_access", "write", "contributor", "admin")
    ]
    answer = {"name": "alice", "orgs": [*orgs, {"name": "untold"}], "auth": {"type": "access_token"}}
    assert person_of(answer).namespaces == ("alice", "write", "contributor", "admin", "untold")


def test_a_hub_that_cannot_be_reached_is_an_answer_in_plain_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sharding.storage.hub.retry.NETWORK_TRIES", 1)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # the client waits between its own attempts as well
    nowhere = Lookup("http://127.0.0.1:9")
    for ask in (nowhere.search, nowhere.card, nowhere.who):
        with pytest.raises(ShardingError, match="cannot be reached") as refusal:
            ask("name")
        assert refusal.value.hint


def test_a_proposed_name_is_one_that_a_hub_accepts() -> None:
    assert propose_name("me", "hf.co/mistralai/Mistral-7B-v0.1", Options("200MB")) == "me/Mistral-7B-v0.1-sharded-200MB"
    assert propose_name("me", "gpt2@v1", Options("1 GB")) == "me/gpt2-sharded-1GB"
    assert propose_name("me", "gpt2", Options(SINGLE_FILE, dtype="bf16")) == "me/gpt2-bf16-single-file"
    assert propose_name("me", "gpt2", Options("1GB", variant="fp16")) == "me/gpt2-fp16-sharded-1GB"
    assert propose_name("me", "gpt2", Options("1GB", dtype="fp16", variant="fp16")) == "me/gpt2-fp16-sharded-1GB"
    assert (
        propose_name("me", "gpt2", Options("1GB", dtype="bf16", variant="non_ema"))
        == "me/gpt2-non_ema-bf16-sharded-1GB"
    )
    assert propose_name("me", "gpt2", Options("1GB", variant="-x, é")) == "me/gpt2-sharded-1GB"
    assert len(propose_name("me", f"a/{'x' * 200}", Options("1GB"))) == 96


def test_a_hubs_time_to_answer_is_the_shortest_of_a_few(lookup: Lookup, monkeypatch: pytest.MonkeyPatch) -> None:
    spent = iter((9.0, 0.25, 5.0))
    now = [100.0]

    def refs(hub: Hub, repo_id: str) -> None:
        now[0] += next(spent)

    monkeypatch.setattr("sharding.storage.hub.lookup.time.monotonic", lambda: now[0])
    monkeypatch.setattr(Hub, "refs", refs)
    assert lookup.answer_seconds("alice/pear") == 0.25


def test_the_time_of_an_answer_is_kept_for_some_minutes(lookup: Lookup, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    now = [100.0]
    monkeypatch.setattr("sharding.storage.hub.lookup.time.monotonic", lambda: now[0])
    monkeypatch.setattr(Hub, "refs", lambda _, repo_id: asked.append(repo_id))
    for seconds, times in ((0, 1), (CACHED_SECONDS, 1), (CACHED_SECONDS + 1, 2)):
        now[0] = 100 + seconds
        lookup.answer_seconds("alice/pear")
        assert len(asked) == times * ANSWERS_TIMED


def test_a_refusal_is_an_answer_and_a_hub_that_is_away_has_no_time(lookup: Lookup) -> None:
    assert lookup.answer_seconds("alice/hidden-apple") is not None
    assert Lookup("http://127.0.0.1:9").answer_seconds("alice/pear") is None
