"""What a Hub that means harm gets out of a command: no login, no memory, no time without end, and one sentence."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from huggingface_hub import constants
from starlette.responses import Response

from sharding.core.errors import SourceError
from sharding.core.origin import Place
from sharding.core.protocols import Grant, LentFile, LentSource
from sharding.fleet.worker import open_lent
from sharding.localhub import lfs, xet
from sharding.localhub.hub import Hub
from sharding.storage.hub import answers as hub_retry
from sharding.storage.hub import guard as hub_guard
from sharding.storage.hub.client import Hub as Client
from tests import commands
from tests.conftest import in_two_files
from tests.hubs import SOURCE, TOKEN, push
from tests.inhouse import InHouse, hub_in_house
from tests.promises import promise
from tests.storage.steps import answering, served_by_hand

Invoke = Callable[..., Result]
EMPTY_LIST = answering(b"[]", "Content-Type: application/json")

pytestmark = pytest.mark.usefixtures("nothing_stays_on_this_disk")


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InHouse]:
    with hub_in_house(tmp_path_factory.mktemp("hub"), page_items=1) as hub:
        push(hub, in_two_files(tmp_path_factory.mktemp("in") / "in"), SOURCE)
        yield hub


@pytest.fixture
def invoke(hub: InHouse, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Run a command as somebody who is signed in; it has to end with status 3 and a sentence, unless it is done."""
    monkeypatch.setattr(hub_retry, "NETWORK_WAIT_SECONDS", 0.0001)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    monkeypatch.setenv("HF_TOKEN", TOKEN)

    def invoke(*arguments: str, endpoint: str = "") -> Result:
        monkeypatch.setenv("HF_ENDPOINT", endpoint or hub.address)
        hub.log.clear()
        result = commands.invoke(*arguments)
        assert result.exit_code in (0, 3), result.output
        assert "bug in the program" not in result.stderr
        assert TOKEN not in result.output + result.stderr
        return result

    return invoke


# --- No login -----------------------------------------------------------------------------------------


@promise("docs/security.md#get-the-login-sent-to-another")
@pytest.mark.parametrize("token", [TOKEN, ""])
def test_a_next_page_at_another_address_is_not_asked_for(
    hub: InHouse, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    own_port = hub.address.rpartition(":")[2]
    with served_by_hand(EMPTY_LIST) as (elsewhere, asked):
        there = elsewhere.removeprefix("http:")
        addresses = [elsewhere, there, f"http://localhost:{own_port}", f"http://a{there[1:]}", f"https:{there}"]
        for address in (*addresses, f"https://127.0.0.1:{own_port}", "https://127.0.0.1:443"):
            with hub.failing(f"next={address}/api@/tree/#1"):
                result = invoke("inspect", SOURCE)
            assert result.exit_code == 3 and "next page at another address" in result.stderr, address
        assert asked == []


def test_a_next_page_is_followed_where_its_address_is_the_hubs_own_or_relative(hub: InHouse, invoke: Invoke) -> None:
    tree = f"/api/models/{SOURCE}/tree/main?recursive=true"
    for address in (tree, f"{hub.address}{tree}", f"//{hub.address.removeprefix('http://')}{tree}"):
        with hub.failing(f"next={address}@/tree/#1"):
            assert invoke("inspect", SOURCE).exit_code == 0, address


def test_a_redirect_to_another_address_goes_there_without_the_login(hub: InHouse, invoke: Invoke) -> None:
    with served_by_hand(EMPTY_LIST) as (elsewhere, asked):
        for endpoint in ("/api/models/", "/tree/", "/resolve/"):
            with hub.failing(f"away={elsewhere}/there@{endpoint}"):
                assert invoke("inspect", SOURCE).exit_code == 3, endpoint
    assert asked
    assert not [one for one in asked if b"authorization" in one.lower() or b"x-shard-my-repo" in one.lower()]


@promise("docs/security.md#get-the-login-sent-to-another")
def test_an_upload_is_not_confirmed_at_another_address(
    tmp_path: Path, hub: InHouse, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = lfs.link

    def link(hub: Hub, *parts: str) -> str:
        return f"{elsewhere}/verify" if parts[-1].endswith("verify") else usual(hub, *parts)

    source = in_two_files(tmp_path / "in")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(lfs, "link", link)
    with hub_in_house(tmp_path / "lfs", xet=False) as other, served_by_hand(EMPTY_LIST) as (elsewhere, asked):
        result = invoke("shard", str(source), "alice/copy", "-s", "100kB", endpoint=other.address)
        assert not [request for request in asked if b"authorization" in request.lower()]
        assert result.exit_code == 3 and "asks for the login at another address" in result.stderr


# --- No memory, and no time without end ---------------------------------------------------------------

SMALL = {"guard.MAX_ANSWER_BYTES": 1_000_000}
WAITS = {"guard.ANSWER_TIMEOUT_SECONDS": 0.2, "source.READ_TIMEOUT_SECONDS": 0.2, "answers.NETWORK_TRIES": 1}
WITHOUT_END: dict[str, tuple[str, dict[str, Any], str]] = {  # a fault, bounds that are lower here, and what is said
    "an answer on the model": ("endless@/api/models/", SMALL, "1.0 MB"),
    "a list": ("endless@/tree/", SMALL, "1.0 MB"),
    "files": ("endless@/resolve/", {}, ""),
    "a list that unpacks to gigabytes": ("bomb:8000000@/tree/", SMALL, "1.0 MB"),
    "a file that comes packed": ("bomb:8000000@/resolve/", {}, "encoded as 'gzip', although this tool asked for plain"),
    "a list that drips": ("drip:0.02@/tree/", {"guard.LONGEST_ANSWER_SECONDS": 0.3}, "does not finish its answer"),
    "a file that drips": ("trickle:0.01@/resolve/", {"guard.LEAST_SECONDS": 0.2}, "fewer than 64.0 kB"),
    "silence on the model": ("delay:2@/api/models/", WAITS, "cannot be reached"),
    "silence on the list": ("delay:2@/tree/", WAITS, "cannot be reached"),
    "silence on a file": ("delay:2@/resolve/", WAITS, "cannot be reached"),
    "very many values": ("", {"guard.MAX_ANSWER_VALUES": 5}, "or 5 values"),
    "a list that takes too long": ("", {"guard.LISTING_SECONDS": -1}, "sends a list of more than"),
    "pages": (f"next=HUB/api/models/{SOURCE}/tree/main@/tree/", {"guard.MAX_PAGES": 20}, "sends a list of more than"),
    "redirects": (f"away=HUB/{SOURCE}/resolve/main/x@.*", {}, "redirects"),
    "redirects of a file": (f"away=HUB/{SOURCE}/resolve/main/x@/resolve/", {}, "redirects"),
    "a file that breaks off after every byte": ("cut:1@/resolve/", {}, ""),
}


@promise("docs/security.md#fill-the-memory-with-an-answer", "docs/security.md#keep-a-job-waiting-for-ever")
@pytest.mark.parametrize("what", WITHOUT_END)
def test_what_has_no_end_is_given_up(hub: InHouse, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    rule, bounds, says = WITHOUT_END[what]
    for place, bound in bounds.items():
        monkeypatch.setattr(f"sharding.storage.hub.{place}", bound)
    with hub.failing(*filter(None, [rule.replace("HUB", hub.address)])):
        result = invoke("inspect", SOURCE)
    assert result.exit_code == 3 and says in result.stderr
    assert hub.asked("/resolve/") < 100 and hub.asked("/tree/") <= 20


@pytest.mark.parametrize(
    "endpoint", ["/whoami", "/refs", "/tree/", "/branch/", "/xet-write", "/preupload/", "/commit/"]
)
def test_an_answer_without_end_is_given_up_by_a_job(
    hub: InHouse, invoke: Invoke, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_guard, "MAX_ANSWER_BYTES", 1_000_000)
    with hub.failing(f"endless@{endpoint}"):
        result = invoke("shard", SOURCE, "alice/endless", "-s", "100kB")
    assert result.exit_code == 3 and "1.0 MB" in result.stderr
    hub.api().delete_repo("alice/endless", missing_ok=True)


@pytest.mark.parametrize("wish", [["Retry-After: 99999999"], ["Retry-After: 1", 'RateLimit: "api";r=0;t=99999999']])
def test_a_hub_that_asks_to_wait_for_years_is_not_waited_for(
    hub: InHouse, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, wish: list[str]
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", slept.append)
    with served_by_hand(answering(b"", *wish, status="429 Slow")) as (address, _):
        assert invoke("inspect", SOURCE, endpoint=address).exit_code == 3
        assert invoke("discard", "alice/made", endpoint=address).exit_code == 3
        client = Client(address, TOKEN)
        with pytest.raises(SourceError):  # a list, for which huggingface_hub waits by itself
            client.ask(SOURCE, SourceError, lambda: list(client.api.list_repo_tree(SOURCE)))
    assert not [seconds for seconds in slept if seconds > 300]


# --- Grants -------------------------------------------------------------------------------------------

ODD_GRANTS: dict[str, dict[str, object]] = {
    "a time that is over": {"exp": -1},
    "no number": {"exp": float("nan")},
    "no end": {"exp": float("inf")},
    "a word": {"exp": "tomorrow"},
    "yes": {"exp": True},
    "no token": {"accessToken": None},
    "a header": {"accessToken": "xet\r\nX-Other: y"},
    "no store": {"casUrl": 7},
}


@promise("docs/security.md#end-a-job-with-a-traceback")
@pytest.mark.parametrize("kind", ODD_GRANTS)
def test_an_odd_grant_is_refused_in_a_sentence(
    hub: InHouse, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, kind: str, tmp_path: Path
) -> None:
    def answer(endpoint: str, token: str, expires: int) -> Response:
        return Response(json.dumps({"casUrl": endpoint, "accessToken": token, "exp": expires} | ODD_GRANTS[kind]))

    monkeypatch.setattr(xet, "_answer", answer)
    monkeypatch.setattr(Client, "least_xet_bytes", 1000)
    for out in (str(tmp_path / "out"), "alice/odd-grant"):
        result = invoke("shard", SOURCE, out, "-s", "100kB")
        assert result.exit_code == 3
        assert len(result.stderr.strip().splitlines()) == 2, "a sentence and a hint"
    hub.api().delete_repo("alice/odd-grant", missing_ok=True)


@promise("docs/security.md#make-a-worker-read-or-write")
@pytest.mark.parametrize("place", ["/home/alice", "local:///home/alice", "file:///etc", "memory://", "https://", "cas"])
def test_a_store_in_a_folder_is_one_of_a_hub_on_this_machine(place: str) -> None:
    grant = Grant(place, "xet_1", 2_000_000_000)
    for here in ("http://127.0.0.1:8000", "http://localhost:8000", "http://[::1]:8000"):
        assert hub_guard.checked_grant(grant, here).endpoint == place
    for elsewhere in ("https://hub.example", "http://127.0.0.1.hub.example", "http://10.0.0.1", "http://0x7f000002"):
        with pytest.raises(hub_retry.OddAnswer, match="is not an address"):
            hub_guard.checked_grant(grant, elsewhere)


@promise("docs/security.md#make-a-worker-read-or-write")
def test_a_worker_takes_no_grant_that_the_job_would_not_take() -> None:
    grant = Grant("/home/alice", "xet_1", 2_000_000_000)
    lent = LentSource(Place("hub", SOURCE, "0" * 40), (LentFile("a", 9, "0" * 64),), "https://hub.example", grant)
    for one in (lent, LentSource(lent.ref, (LentFile("a", 9, place="/etc/passwd"),), lent.hub)):
        with pytest.raises(SourceError, match="not an address"):
            list(open_lent(one).read("a", 0, 9))
