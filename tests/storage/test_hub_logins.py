"""Where a login goes, and what of a Hub's odd answers on repos, commits and access is not believed."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from huggingface_hub import constants

from sharding import job
from sharding.core.errors import DestinationError, SourceError
from sharding.core.origin import Place
from sharding.storage.hub import guard as hub_guard
from sharding.storage.hub.answers import OddAnswer
from sharding.storage.hub.client import Hub
from sharding.storage.hub.guard import LONGEST_GRANT_SECONDS
from sharding.storage.hub.lookup import Lookup
from sharding.storage.hub.source import open_repo
from tests.hubs import SOURCE, TOKEN, exists, push, shard
from tests.inhouse import InHouse
from tests.promises import promise

HIDDEN = "alice/hidden"


@pytest.fixture
def hidden(hub: InHouse, folder: Path) -> str:
    if not exists(hub, HIDDEN):
        push(hub, folder, HIDDEN, private=True)
        hub.log.clear()
    return HIDDEN


# --- Logins -------------------------------------------------------------------------------------------


def test_without_a_token_a_hub_is_seen_as_anybody_sees_it_whatever_login_is_saved_here(
    hub: InHouse, hidden: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text(TOKEN)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    client = Hub(hub.address, None)
    assert not client.is_signed_in and "authorization" not in {key.lower() for key in client.headers}
    for ask in (
        lambda: job.inspect(hidden, endpoint=hub.address),
        lambda: client.ask(hidden, SourceError, lambda: client.get(hidden, "main", "config.json", 9)),
        lambda: client.ask(hidden, SourceError, lambda: client.grant("read", hidden, "main")),
    ):
        with pytest.raises(SourceError):
            ask()  # type: ignore[no-untyped-call]
    assert Lookup(hub.address).search(hidden) == []
    assert Lookup(hub.address).search(hidden, TOKEN) == [hidden]
    assert job.inspect(hidden, endpoint=hub.address, token=TOKEN).tensors


def test_the_login_goes_to_the_hub_and_never_to_its_store(hub: InHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []
    client = Hub(hub.address, TOKEN)
    client.xet = SimpleNamespace(  # type: ignore[misc]
        new_upload_commit=lambda **more: given.append(more), new_download_stream_group=lambda **more: given.append(more)
    )
    client.upload_to(SOURCE, "main")
    client.download_from(SOURCE, "main")
    for access in given:
        assert access.pop("token_refresh_url").startswith(f"{hub.address}/api/models/{SOURCE}/xet-")
        assert TOKEN in repr(access.pop("token_refresh_headers"))  # that address is the Hub's
        assert TOKEN not in repr(access) and "authorization" not in repr(access).lower()
        assert "x-shard-my-repo" not in repr(access).lower()
    assert len(given) == 2


@promise("docs/security.md#grant-access-for-longer-than-a")
@pytest.mark.parametrize("seconds", [60, LONGEST_GRANT_SECONDS - 9, LONGEST_GRANT_SECONDS + 999, 10**30])
def test_a_grant_is_good_for_as_long_as_the_hub_says_and_for_a_day_at_most(seconds: int) -> None:
    now = int(time.time())
    grant = hub_guard.checked_grant(hub_guard.Grant("https://cas.example", "xet_1", now + seconds), "https://hub.x")
    assert 0 <= grant.expires - now - min(seconds, LONGEST_GRANT_SECONDS) <= 5


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
    headers = {**hub_guard.mark(endpoint), **({"Authorization": login} if login else {})}
    client = hub_guard.session()
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


# --- Odd answers --------------------------------------------------------------------------------------


SHA = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("rule", "says"), [("status:403", "does not allow it"), ("status:500", "internal problem"), ("html", "unreadable")]
)
def test_a_hub_that_fails_to_say_may_have_xet(hub: InHouse, folder: Path, name: str, rule: str, says: str) -> None:
    with hub.failing(f"{rule}@GET .*/xet-write-token/"), pytest.raises(DestinationError, match=says):
        shard(hub, str(folder), name)
    assert hub.asked("/info/lfs/") == 0 and not exists(hub, name)


def test_a_gated_repo_is_refused_as_it_is_opened_and_nothing_is_read(hub: InHouse, folder: Path, name: str) -> None:
    gated = name.replace("alice/", "bob/")
    push(hub, folder, gated, "hf_bob")
    hub.api("hf_bob").update_repo_settings(gated, gated="manual")
    hub.log.clear()
    with pytest.raises(SourceError, match=f"{gated} is gated") as refusal:
        open_repo(Hub(hub.address, TOKEN), Place("hub", gated))
    assert f"{hub.address}/{gated}" in refusal.value.hint
    assert hub.asked("/tree/|/resolve/") == 0
    source = open_repo(Hub(hub.address, "hf_bob"), Place("hub", gated))
    assert source.is_private and "model.safetensors" in {file.path for file in source.files}
    with hub.failing("gone@GET .*/auth-check"):  # it says so later
        assert open_repo(Hub(hub.address, TOKEN), Place("hub", gated)).is_private
        with pytest.raises(SourceError, match="gated"):
            job.inspect(gated, endpoint=hub.address, token=TOKEN)


def test_a_hub_says_whether_it_would_take_a_card(hub: InHouse) -> None:
    client = Hub(hub.address, TOKEN)
    assert client.takes_card("---\nlicense: mit\n---\n# Model\n") is True
    assert client.takes_card("---\nlicense: [\n---\n# Model\n") is False
    for rule in ("status:500", "html", "status:403"):
        with hub.failing(f"{rule}@POST /api/validate-yaml"), pytest.raises(Exception) as failure:
            client.takes_card("# Model")
        assert not isinstance(failure.value, AssertionError)
