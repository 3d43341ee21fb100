"""The functions use the login that they are given and no other; the command line uses that of every tool."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from sharding import job
from sharding.core.errors import ShardingError
from sharding.core.options import Request
from tests import inhouse
from tests.commands import invoke
from tests.conftest import HOME, in_two_files
from tests.folders import finish
from tests.hubs import TOKEN, exists, push
from tests.inhouse import InHouse, hub_in_house

SECRET = "alice/secret"


class LoginsLog(inhouse._Log):
    """Notes the login of every request too."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            logins = [text.decode() for name, text in scope["headers"] if name == b"authorization"]
            self._log.append(f"LOGIN {' '.join(logins)}")
        await super().__call__(scope, receive, send)


@pytest.fixture(scope="module")
def one_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InHouse]:
    """A Hub with a private repo, which notes logins."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inhouse, "_Log", LoginsLog)
        with hub_in_house(tmp_path_factory.mktemp("hub")) as hub:
            push(hub, in_two_files(tmp_path_factory.mktemp("in") / "in"), SECRET, private=True)
            yield hub


@pytest.fixture
def hub(one_hub: InHouse, monkeypatch: pytest.MonkeyPatch) -> Iterator[InHouse]:
    """That Hub, and the login of the owner of the repo saved on this machine in every way."""
    one_hub.log.clear()
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HUGGING_FACE_HUB_TOKEN", TOKEN)
    (HOME / "token").write_text(TOKEN)
    yield one_hub
    (HOME / "token").unlink()


FUNCTIONS: dict[str, Callable[[str, dict[str, Any]], object]] = {
    "inspect": lambda out, at: job.inspect(SECRET, **at),
    "plan": lambda out, at: job.plan(SECRET, "60kB", **at),
    "shard": lambda out, at: finish(job.shard(SECRET, out, "60kB", **at)),
    "verify": lambda out, at: list(job.verify(SECRET, SECRET, **at)),
    "check": lambda out, at: job.check(Request(SECRET, out), **at),
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_uses_no_login_but_the_one_that_it_is_given(
    function: str, hub: InHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with pytest.raises(ShardingError):
        FUNCTIONS[function](str(out), {"endpoint": hub.address})
    assert not out.exists() and hub.asked("^GET")
    assert {line for line in hub.log if line.startswith("LOGIN")} == {"LOGIN "}
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name)
    (HOME / "token").write_text("hf_bob")
    hub.log.clear()
    FUNCTIONS[function](str(out), {"endpoint": hub.address, "token": TOKEN})
    assert f"LOGIN Bearer {TOKEN}" in hub.log and not hub.asked("hf_bob")


def test_a_function_writes_with_no_saved_login(hub: InHouse, tmp_path: Path) -> None:
    with pytest.raises(ShardingError):
        finish(job.shard(str(in_two_files(tmp_path / "in")), "alice/made", "60kB", endpoint=hub.address))
    with pytest.raises(ShardingError):
        job.discard("alice/made", endpoint=hub.address)
    assert not hub.asked("Bearer") and not exists(hub, "alice/made")


@pytest.mark.parametrize("saved", ["HF_TOKEN", "a file"])
def test_the_commands_use_the_login_of_every_tool(saved: str, hub: InHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN")
    if saved == "HF_TOKEN":
        (HOME / "token").write_text("hf_bob")
    else:
        monkeypatch.delenv("HF_TOKEN")
    done = invoke("inspect", SECRET)
    assert done.exit_code == 0, done.output
    assert f"LOGIN Bearer {TOKEN}" in hub.log and not hub.asked("hf_bob")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    (HOME / "token").write_text("")
    assert invoke("inspect", SECRET).exit_code == 3
