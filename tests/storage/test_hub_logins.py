"""Where a login goes, and what of a Hub's odd answers on repos, commits and access is not believed."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from huggingface_hub import constants

from sharding import job
from sharding.core.errors import DestinationError, SourceError
from sharding.localhub import repos
from sharding.storage.hub import guard as hub_guard
from sharding.storage.hub.answers import checked_commit
from sharding.storage.hub.client import Hub
from sharding.storage.hub.guard import LONGEST_GRANT_SECONDS
from sharding.storage.hub.lookup import Lookup
from sharding.storage.hub.retry import OddAnswer
from sharding.storage.hub.source import open_repo
from tests.hubs import TOKEN, exists, push, shard
from tests.inhouse import InHouse
from tests.storage.steps import SOURCE

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
    assert Lookup(hub.address).search("hidden") == []
    assert Lookup(hub.address).search("hidden", TOKEN) == [hidden]
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


def test_a_login_goes_where_scheme_host_and_port_are_the_hubs_or_to_its_host_over_tls() -> None:
    own = "https://hub.example"
    for endpoint, url, is_own in (
        (own, "https://hub.example/api", True),
        (own, "https://hub.example:443/api", True),
        (own, "https://hub.example:8443/api", False),
        (own, "http://hub.example/api", False),
        (own, "https://sub.hub.example/api", False),
        (own, "https://hub.example.org/api", False),
        ("http://hub.example", "https://hub.example/api", True),
        ("http://hub.example:8000", "https://hub.example/api", False),
        ("http://hub.example:8000", "http://hub.example:8001/api", False),
        ("http://hub.example:8000", "http://hub.example:8000/api", True),
    ):
        headers = {**Hub(endpoint, TOKEN).headers}
        asked = httpx2.Request("GET", url, headers=headers)
        hook = guarded_hook()
        if is_own:
            hook(asked)
        else:
            with pytest.raises(OddAnswer, match="which does not get it"):
                hook(asked)
        assert not [key for key in asked.headers if "shard-my-repo" in key.lower()]


def guarded_hook() -> Callable[[httpx2.Request], None]:
    """What every request of the client goes through before it is sent."""
    from huggingface_hub import get_session

    return get_session().event_hooks["request"][0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("seconds", [60, 3600, LONGEST_GRANT_SECONDS - 9, LONGEST_GRANT_SECONDS + 999, 10**12])
def test_a_grant_is_good_for_as_long_as_the_hub_says_and_for_a_day_at_most(seconds: int) -> None:
    import time

    now = int(time.time())
    grant = hub_guard.checked_grant(hub_guard.Grant("https://cas.example", "xet_1", now + seconds), "https://hub.x")
    assert 0 <= grant.expires - now - min(seconds, LONGEST_GRANT_SECONDS) <= 5


# --- Odd answers --------------------------------------------------------------------------------------


SHA = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    "odd", [None, 7, True, "", "main", SHA[:-1], f"{SHA}0", f"{SHA}\n", f" {SHA}", SHA.upper(), f"{SHA}/../x", [SHA]]
)
def test_what_is_no_sha1_in_hex_is_no_commit(odd: Any) -> None:
    assert checked_commit(SHA) == SHA
    with pytest.raises(OddAnswer, match="is not a commit"):
        checked_commit(odd)


@pytest.mark.parametrize("odd", [f"{SHA}0", "main", None])
def test_a_source_whose_hub_names_no_commit_is_refused(hub: InHouse, monkeypatch: pytest.MonkeyPatch, odd: Any) -> None:
    usual = repos.describe
    monkeypatch.setattr(repos, "describe", lambda *given, **more: {**usual(*given, **more), "sha": odd})
    with pytest.raises(SourceError, match="makes no sense"):
        open_repo(Hub(hub.address, TOKEN), SOURCE)
    assert hub.asked("/tree/|/resolve/") == 0


@pytest.mark.parametrize(
    ("rule", "says"), [("status:403", "does not allow it"), ("status:500", "internal problem"), ("html", "unreadable")]
)
def test_a_hub_that_fails_to_say_whether_it_has_xet_is_not_taken_for_one_without(
    hub: InHouse, folder: Path, name: str, rule: str, says: str
) -> None:
    with hub.failing(f"{rule}@GET .*/xet-write-token/"), pytest.raises(DestinationError, match=says):
        shard(hub, str(folder), name)
    assert hub.asked("/info/lfs/") == 0 and not exists(hub, name)


def test_a_gated_repo_is_refused_when_it_is_opened_before_anything_of_it_is_read(
    hub: InHouse, folder: Path, name: str
) -> None:
    gated = name.replace("alice/", "bob/")
    push(hub, folder, gated, "hf_bob")
    hub.api("hf_bob").update_repo_settings(gated, gated="manual")
    hub.log.clear()
    with pytest.raises(SourceError, match=f"{gated} is gated") as refusal:
        open_repo(Hub(hub.address, TOKEN), gated)
    assert f"{hub.address}/{gated}" in refusal.value.hint
    assert hub.asked("/tree/|/resolve/") == 0
    source = open_repo(Hub(hub.address, "hf_bob"), gated)
    assert source.is_private and "model.safetensors" in {file.path for file in source.files}
    with hub.failing("gone@GET .*/auth-check"):  # it says so later
        assert open_repo(Hub(hub.address, TOKEN), gated).is_private
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
