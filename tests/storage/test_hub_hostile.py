"""What a Hub that means harm gets out of a command: no login, no memory, no time without end, and one sentence."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import Result
from huggingface_hub import constants
from starlette.responses import Response
from typer.testing import CliRunner

from sharding.cli.commands import app
from sharding.core.errors import SourceError
from sharding.core.protocols import Grant, LentFile, LentSource
from sharding.core.values import RepoRef
from sharding.fleet.worker import open_lent
from sharding.localhub import lfs, xet
from sharding.localhub.hub import Hub
from sharding.storage.hub import answers as hub_retry
from sharding.storage.hub import guard as hub_guard
from sharding.storage.hub import source as hub_source
from sharding.storage.hub.client import Hub as Client
from tests.conftest import in_two_files
from tests.hubs import TOKEN, push
from tests.inhouse import InHouse, hub_in_house
from tests.promises import promise

SOURCE = "alice/source"
Invoke = Callable[..., Result]
Answer = Callable[[socket.socket], None]

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
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    monkeypatch.setenv("HF_TOKEN", TOKEN)

    def invoke(*arguments: str, endpoint: str = "") -> Result:
        monkeypatch.setenv("HF_ENDPOINT", endpoint or hub.address)
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code in (0, 3), result.output
        assert "bug in the program" not in result.stderr
        assert TOKEN not in result.output + result.stderr
        return result

    return invoke


@contextmanager
def served_by_hand(answer: Answer) -> Iterator[tuple[str, list[bytes]]]:
    """Answer every connection with `answer`; give the address, and what was asked."""
    asked: list[bytes] = []
    ended = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection:
            asked.append(connection.recv(65536))
            try:
                while not ended.is_set():
                    answer(connection)
            except OSError:
                pass

    def listen() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=[connection], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
        ended.set()
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def empty_list(connection: socket.socket) -> None:
    connection.sendall(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: 2\r\n\r\n[]"
    )
    raise OSError


@promise("docs/security.md#get-the-login-sent-to-another")
@pytest.mark.parametrize("token", [TOKEN, ""])
def test_a_next_page_at_another_address_is_not_asked_for(
    hub: InHouse, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    port = hub.address.rpartition(":")[2]
    with served_by_hand(empty_list) as (elsewhere, asked):
        there = elsewhere.removeprefix("http:")
        for address in (f"{elsewhere}/api", f"{there}/api", f"http://localhost:{port}/api", f"http://a{there[1:]}"):
            with hub.failing(f"next={address.replace('@', '')}@/tree/#1"):
                result = invoke("inspect", SOURCE)
            assert result.exit_code == 3, address
            assert "next page at another address" in result.stderr, address
        assert asked == []


def test_a_next_page_is_followed_where_its_address_is_the_hubs_own_or_relative(hub: InHouse, invoke: Invoke) -> None:
    tree = f"/api/models/{SOURCE}/tree/main?recursive=true"
    for address in (tree, f"{hub.address}{tree}", f"//{hub.address.removeprefix('http://')}{tree}"):
        with hub.failing(f"next={address}@/tree/#1"):
            assert invoke("inspect", SOURCE).exit_code == 0, address


def test_a_redirect_to_another_address_goes_there_without_the_login(hub: InHouse, invoke: Invoke) -> None:
    with served_by_hand(empty_list) as (elsewhere, asked):
        for endpoint in ("/api/models/", "/tree/", "/resolve/"):
            with hub.failing(f"away={elsewhere}/there@{endpoint}"):
                assert invoke("inspect", SOURCE).exit_code == 3, endpoint
        assert asked
        assert not [request for request in asked if b"authorization" in request.lower()]
        assert not [request for request in asked if b"x-shard-my-repo" in request.lower()]


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
    with hub_in_house(tmp_path / "lfs", xet=False) as other, served_by_hand(empty_list) as (elsewhere, asked):
        result = invoke("shard", str(source), "alice/copy", "-s", "100kB", endpoint=other.address)
        assert not [request for request in asked if b"authorization" in request.lower()]
        assert result.exit_code == 3
        assert "asks for the login at another address" in result.stderr


@promise("docs/security.md#fill-the-memory-with-an-answer")
@pytest.mark.parametrize("endpoint", ["/api/models/", "/tree/", "/resolve/"])
def test_an_answer_without_end_is_given_up(
    hub: InHouse, invoke: Invoke, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if endpoint == "/tree/":
        monkeypatch.setattr(hub_guard, "MAX_ANSWER_BYTES", 1_000_000)
    with hub.failing(f"endless@{endpoint}"):
        assert invoke("inspect", SOURCE).exit_code == 3


@pytest.mark.parametrize(
    "endpoint", ["/whoami", "/refs", "/tree/", "/branch/", "/xet-write", "/preupload/", "/commit/"]
)
def test_an_answer_without_end_is_given_up_by_a_job(
    tmp_path: Path, hub: InHouse, invoke: Invoke, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_guard, "MAX_ANSWER_BYTES", 1_000_000)
    with hub.failing(f"endless@{endpoint}"):
        result = invoke("shard", SOURCE, "alice/endless", "-s", "100kB")
    assert result.exit_code == 3
    assert "1.0 MB" in result.stderr
    hub.api().delete_repo("alice/endless", missing_ok=True)


@promise("docs/security.md#fill-the-memory-with-an-answer")
def test_an_answer_that_unpacks_to_gigabytes_is_given_up(
    hub: InHouse, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_guard, "MAX_ANSWER_BYTES", 1_000_000)
    with hub.failing("bomb:8000000@/tree/"):
        result = invoke("inspect", SOURCE)
    assert result.exit_code == 3
    assert "1.0 MB" in result.stderr


@promise("docs/security.md#keep-a-job-waiting-for-ever")
def test_an_answer_that_drips_is_given_up(hub: InHouse, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_guard, "LONGEST_ANSWER_SECONDS", 0.3)
    with hub.failing("drip:0.02@/tree/"):
        result = invoke("inspect", SOURCE)
    assert result.exit_code == 3
    assert "does not finish its answer" in result.stderr


@promise("docs/security.md#keep-a-job-waiting-for-ever")
@pytest.mark.parametrize("endpoint", ["/api/models/", "/tree/", "/resolve/"])
def test_a_hub_that_says_nothing_is_given_up(
    hub: InHouse, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    monkeypatch.setattr(hub_guard, "ANSWER_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(hub_source, "READ_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(hub_retry, "NETWORK_TRIES", 1)
    with hub.failing(f"delay:2@{endpoint}"):
        result = invoke("inspect", SOURCE)
    assert result.exit_code == 3
    assert "cannot be reached" in result.stderr


def test_a_file_that_comes_packed_is_not_taken(hub: InHouse, invoke: Invoke) -> None:
    with hub.failing("bomb:8000000@/resolve/"):
        result = invoke("inspect", SOURCE)
    assert result.exit_code == 3
    assert "sends a file encoded as 'gzip', although this tool asked for plain bytes" in result.stderr


def test_a_file_that_drips_is_given_up(hub: InHouse, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_guard, "LEAST_SECONDS", 0.2)
    with hub.failing("trickle:0.01@/resolve/"):
        result = invoke("inspect", SOURCE)
    assert result.exit_code == 3
    assert "fewer than 64.0 kB" in result.stderr


def test_a_file_that_breaks_off_after_every_byte_is_given_up(
    hub: InHouse, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.log.clear()
    with hub.failing("cut:1@/resolve/"):
        assert invoke("inspect", SOURCE).exit_code == 3
    assert hub.asked("/resolve/") < 100


def test_an_answer_of_very_many_values_is_given_up(
    hub: InHouse, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes tens of bytes of memory, however few it has in JSON."""
    monkeypatch.setattr(hub_guard, "MAX_ANSWER_VALUES", 5)
    result = invoke("inspect", SOURCE)
    assert result.exit_code == 3
    assert "or 5 values" in result.stderr


def test_a_list_that_goes_on_for_too_long_is_given_up(
    hub: InHouse, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_guard, "LISTING_SECONDS", -1)
    result = invoke("inspect", SOURCE)
    assert result.exit_code == 3
    assert "sends a list of more than" in result.stderr


def test_a_list_without_end_is_given_up(hub: InHouse, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_guard, "MAX_PAGES", 20)
    hub.log.clear()
    again = f"{hub.address}/api/models/{SOURCE}/tree/main"
    with hub.failing(f"next={again}@/tree/"):
        result = invoke("inspect", SOURCE)
    assert result.exit_code == 3
    assert "sends a list of more than" in result.stderr
    assert hub.asked("/tree/") == 20


def test_a_redirect_without_end_is_given_up(hub: InHouse, invoke: Invoke) -> None:
    for endpoint in (".*", "/resolve/"):
        with hub.failing(f"away={hub.address}/{SOURCE}/resolve/main/x@{endpoint}"):
            result = invoke("inspect", SOURCE)
        assert result.exit_code == 3
        assert "redirects" in result.stderr, endpoint


@pytest.mark.parametrize("wish", [b"Retry-After: 99999999", b'Retry-After: 1\r\nRateLimit: "api";r=0;t=99999999'])
def test_a_hub_that_asks_to_wait_for_years_is_not_waited_for(
    hub: InHouse, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, wish: bytes
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", slept.append)

    def busy(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 429 Slow\r\n" + wish + b"\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        raise OSError

    with served_by_hand(busy) as (address, _):
        assert invoke("inspect", SOURCE, endpoint=address).exit_code == 3
        assert invoke("discard", "alice/made", endpoint=address).exit_code == 3
        client = Client(address, TOKEN)
        with pytest.raises(SourceError):  # a list, for which huggingface_hub waits by itself
            client.ask(SOURCE, SourceError, lambda: list(client.api.list_repo_tree(SOURCE)))
    assert not [seconds for seconds in slept if seconds > 300]


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


@promise("docs/security.md#grant-access-for-longer-than-a")
def test_a_grant_for_a_thousand_years_is_one_for_a_day() -> None:
    grant = hub_guard.checked_grant(Grant("https://cas.example", "xet_1", 10**30), "https://hub.example")
    assert grant.expires <= time.time() + 24 * 3600


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
    lent = LentSource(RepoRef("hub", SOURCE, "0" * 40), (LentFile("a", 9, "0" * 64),), "https://hub.example", grant)
    with pytest.raises(SourceError, match="not an address"):
        list(open_lent(lent).read("a", 0, 9))
    lent = LentSource(lent.ref, (LentFile("a", 9, place="/etc/passwd"),), lent.hub)
    with pytest.raises(SourceError, match="not an address"):
        list(open_lent(lent).read("a", 0, 9))
