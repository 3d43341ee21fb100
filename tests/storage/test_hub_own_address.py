"""The login goes to the scheme, the host and the port of the Hub, or to that host over TLS; and to no other port."""

import socket
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from huggingface_hub.utils import get_session

from sharding import job
from sharding.core.errors import SourceError
from sharding.storage.hub.guard import mark
from sharding.storage.hub.retry import OddAnswer
from tests.conftest import in_two_files
from tests.hubs import TOKEN, push
from tests.inhouse import InHouse, hub_in_house

SOURCE = "alice/source"

OWN = {
    "http://hub.example": ["http://hub.example/api", "http://hub.example:80/api", "https://hub.example/api"],
    "https://hub.example": ["https://hub.example/api", "https://hub.example:443/api", "https://HUB.example/api"],
    "http://hub.example:8000": ["http://hub.example:8000/api"],
    "https://hub.example:8443/base": ["https://hub.example:8443/api"],
}
OTHER = {
    "http://hub.example": ["http://hub.example:8000", "https://hub.example:8443", "https://evil.example"],
    "https://hub.example": ["http://hub.example", "https://hub.example:8443", "https://hub.example.evil.example"],
    "http://hub.example:8000": [
        "https://hub.example:8000", "https://hub.example", "https://hub.example:8443", "http://hub.example:8001",
        "http://hub.example", "http://evil.example:8000",
    ],
    "https://hub.example:8443/base": ["https://hub.example", "http://hub.example:8443", "https://a.hub.example:8443"],
}  # fmt: skip


def ask(endpoint: str, url: str, login: str) -> httpx2.Request:
    """Return the request as the client would send it."""
    headers = {**mark(endpoint), **({"Authorization": login} if login else {})}
    client = get_session()
    request = client.build_request("GET", url, headers=headers)
    for hook in client.event_hooks["request"]:
        hook(request)
    return request


@pytest.mark.parametrize("endpoint", OWN)
def test_the_login_is_sent_to_the_hubs_own_address_and_to_no_other(endpoint: str) -> None:
    for url in OWN[endpoint]:
        assert ask(endpoint, url, "Bearer hf_a").headers["Authorization"] == "Bearer hf_a", url
    for url in OTHER[endpoint]:
        with pytest.raises(OddAnswer, match="asks for the login at another address"):
            ask(endpoint, f"{url}/api", "Bearer hf_a")
        assert "Authorization" not in ask(endpoint, f"{url}/api", "").headers


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[InHouse]:
    with hub_in_house(tmp_path / "hub") as hub:
        push(hub, in_two_files(tmp_path / "in"), SOURCE)
        yield hub


def test_a_next_page_over_tls_at_another_port_of_the_hubs_host_is_not_asked_for(hub: InHouse) -> None:
    own_port = hub.address.rpartition(":")[2]
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        for port in (elsewhere.getsockname()[1], own_port, "443"):
            with (
                hub.failing(f"next=https://127.0.0.1:{port}/api@/tree/#1"),
                pytest.raises(SourceError, match="names a next page at another address"),
            ):
                job.inspect(SOURCE, endpoint=hub.address, token=TOKEN)
        elsewhere.setblocking(False)
        with pytest.raises(BlockingIOError):
            elsewhere.accept()
