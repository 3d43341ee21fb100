"""Nothing here rests on a private part of huggingface_hub, httpx2 or hf-xet, or on a setting that a version may lack."""

import ast
import re
from collections.abc import Iterator
from typing import Any

import hf_xet
import httpx2
import pytest
from hf_xet import XetConfig
from huggingface_hub import close_session, get_session, set_client_factory

from sharding.core.errors import DestinationError
from sharding.core.limits import ANSWER_TIMEOUT_SECONDS
from sharding.storage.hub.client import XET_SETTINGS, Hub, xet_session
from tests.conftest import ROOT

LIBRARIES = ("huggingface_hub", "hf_xet", "httpx2", "httpcore2")


def test_hf_xet_has_every_setting_and_would_take_no_less_by_itself() -> None:
    usual = XetConfig()
    for name, value in XET_SETTINGS.items():
        assert usual.with_config(name, value)[name] == value
        assert usual[name] >= value
    assert xet_session().status() is not None


def test_a_setting_that_hf_xet_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    known = dict(XET_SETTINGS)
    monkeypatch.setitem(XET_SETTINGS, "client.of_the_next_version", 1)
    configs: list[Any] = []
    monkeypatch.setattr(hf_xet, "XetSession", configs.append)
    xet_session()
    assert {name: configs[0][name] for name in known} == known


@pytest.fixture
def own_client() -> Iterator[list[dict[str, float | None]]]:
    """A client that the user of this process has made for huggingface_hub; gives the timeouts of its requests."""
    waits: list[dict[str, float | None]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        waits.append(request.extensions["timeout"])
        return httpx2.Response(200, json={"branches": [], "tags": [], "converts": []})

    hooks, seconds = get_session().event_hooks, iter((None, 3.0, None))
    set_client_factory(lambda: httpx2.Client(transport=httpx2.MockTransport(answer), timeout=next(seconds)))
    yield waits
    set_client_factory(lambda: httpx2.Client(follow_redirects=True, timeout=None, event_hooks=hooks))


def test_a_client_that_would_wait_for_ever_gets_a_bound_and_any_other_keeps_its_own(own_client: list[Any]) -> None:
    hub = Hub("http://hub.example", None)
    for seconds in (ANSWER_TIMEOUT_SECONDS, 3.0):
        for _ in range(2):
            hub.ask("a/b", DestinationError, lambda: hub.refs("a/b"))
            assert own_client[-1]["read"] == seconds
        assert len(get_session().event_hooks["request"]) == 1
        close_session()  # the library makes a new client at any time
    hub.ask("a/b", DestinationError, lambda: hub.api.list_repo_refs("a/b"))
    assert own_client[-1]["read"] == ANSWER_TIMEOUT_SECONDS


def test_no_room_uses_a_private_part() -> None:
    """Neither a module nor a name that begins with "_", nor an attribute like that of what a library gives."""
    seen, given = list[str](), ("api", "client", "transport", "operation", "session", "commit", "response")
    for path in (ROOT / "sharding").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                of = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
                names = [f"{of}{alias.name}" for alias in node.names]
                seen += [name for name in names if name.partition(".")[0] in LIBRARIES and "._" in name]
            elif isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr):
                of = ast.unparse(node.value)
                seen += [f"{path.name}: {of}.{node.attr}"] if of.rpartition(".")[2] in given else []
    assert seen == []
