"""The private parts of huggingface_hub and hf-xet do what this project relies on."""

import os
import re
from collections.abc import Iterator
from hashlib import sha256

import httpx2
import pytest
from hf_xet import XetConfig
from huggingface_hub import HfApi, close_session, get_session, set_client_factory
from huggingface_hub.utils import _http

from sharding.core.limits import ANSWER_TIMEOUT_SECONDS
from sharding.core.values import ShardRecord
from sharding.storage.hub.client import Hub
from sharding.storage.hub.private import XET_SETTINGS, small, uploaded, watch_connections, xet_session
from tests.conftest import ROOT
from tests.localhub.conftest import Server

REPO = "alice/model"
DATA = os.urandom(20_000)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HfApi]:
    server = Server(tmp_path_factory.mktemp("hub")).start()
    server.api().create_repo(REPO)
    server.api().upload_file(path_or_fileobj=DATA, path_in_repo="stored.safetensors", repo_id=REPO)
    yield server.api()
    server.stop()


@pytest.fixture
def asked() -> Iterator[list[str]]:
    """The requests of the client, as they are made."""
    requests: list[str] = []
    hooks = get_session().event_hooks
    get_session().event_hooks = {
        **hooks,
        "request": [*hooks["request"], lambda request: requests.append(f"{request.method} {request.url.path}")],
    }
    yield requests
    get_session().event_hooks = hooks


def test_what_the_store_has_and_what_is_small_goes_in_one_request(api: HfApi, asked: list[str]) -> None:
    shard = ShardRecord("copy.safetensors", len(DATA), sha256(DATA).hexdigest(), {})
    api.create_commit(REPO, [uploaded(shard), small("record.json", b"{}")], commit_message="m")
    assert asked == [f"POST /api/models/{REPO}/commit/main"]
    copy, record = api.get_paths_info(REPO, [shard.file, "record.json"])
    assert (copy.size, copy.lfs.sha256) == (shard.bytes, shard.sha256)
    assert (record.size, record.lfs) == (2, None)


def test_hf_xet_has_every_setting_and_would_take_no_less_by_itself() -> None:
    usual = XetConfig()
    for name, value in XET_SETTINGS.items():
        assert usual.with_config(name, value)[name] == value
        assert usual[name] >= value
    assert xet_session().status() is not None


def test_a_client_that_would_wait_for_ever_gets_a_bound_and_any_other_keeps_its_own() -> None:
    usual = _http._GLOBAL_CLIENT_FACTORY
    try:
        for seconds in (None, 3):
            set_client_factory(lambda seconds=seconds: httpx2.Client(timeout=seconds))
            for _ in range(2):
                assert Hub("http://127.0.0.1:9", None).headers
                assert get_session().timeout.read == (seconds or ANSWER_TIMEOUT_SECONDS)
                assert len(get_session().event_hooks["request"]) == 1
                close_session()  # the library makes a new client at any time
    finally:
        set_client_factory(usual)


def test_every_way_out_of_a_client_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    seen: list[object] = []
    with httpx2.Client() as client:
        watch_connections(client, lambda inner: seen.append(inner) or inner)
        assert len(seen) == 2


def test_no_other_room_uses_a_private_part() -> None:
    private = re.compile(r"huggingface_hub[\w.]*(\._| import _|\.lfs)|\bapi\._|operation\._")
    house = ROOT / "sharding"
    rooms = {str(path.relative_to(house)) for path in house.rglob("*.py") if private.search(path.read_text())}
    assert rooms == {"storage/hub/private.py"}
