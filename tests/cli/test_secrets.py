"""Whatever goes wrong, the token is in nothing that a command prints, and in no traceback of the library."""

import traceback
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

from sharding import job
from sharding.core.errors import ShardingError
from sharding.storage.hub import answers as retry
from tests.commands import Result, invoke
from tests.conftest import write_checkpoint
from tests.hubs import TOKEN, exists, push
from tests.inhouse import InHouse, hub_in_house

SOURCE, MADE = "alice/source", "alice/made"
Attempt = Callable[..., Result]
COMMANDS = {
    "inspect": ["inspect", SOURCE],
    "plan": ["plan", SOURCE],
    "shard": ["shard", SOURCE, MADE, "-s", "300B"],
    "shard into a folder": ["shard", SOURCE, "./out", "-s", "300B"],
    "verify": ["verify", SOURCE, SOURCE],
    "discard": ["discard", MADE],
}
FAILING = [
    *[f"status:{status}@.*" for status in (400, 401, 403, 404, 409, 412, 413, 429, 500)],
    *[f"{kind}@.*" for kind in ("null", "list", "text", "empty", "html", "gone", "cut:0")],
]
ENDPOINTS = ["/whoami", "/tree/", "/resolve/", "/preupload/", "/commit/", "/branch/", "/refs", "/create", "/xet-"]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InHouse]:
    tensors = {f"layers.{n}.weight": np.full(50, n, np.float32) for n in range(3)}
    folder = write_checkpoint(tmp_path_factory.mktemp("in") / "in", {"model.safetensors": tensors}, index=False)
    with hub_in_house(tmp_path_factory.mktemp("hub")) as hub:
        push(hub, folder, SOURCE)
        yield hub


@pytest.fixture
def attempt(hub: InHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attempt:
    """Run a command as somebody who is signed in; say how it ended once it has shown no token."""
    monkeypatch.setattr(retry, "NETWORK_WAIT_SECONDS", 0.0001)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # the client waits between its own attempts as well
    monkeypatch.setattr(retry, "NETWORK_TRIES", 2)
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.chdir(tmp_path)

    def attempt(*arguments: str) -> Result:
        result = invoke(*arguments)
        assert TOKEN not in result.stdout + result.stderr
        assert result.exc_info
        assert not result.exit_code or TOKEN not in "".join(traceback.format_exception(*result.exc_info))
        return result

    return attempt


def ways(command: str) -> list[list[str]]:
    """A command as a person gives it, and as a program does."""
    arguments = COMMANDS[command]
    return [arguments, [*arguments, "--json"], [*arguments, "--events"]][: 3 if command == "shard" else 2]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_shows_no_token_whatever_the_hub_answers(hub: InHouse, attempt: Attempt, command: str) -> None:
    for rule, arguments in zip(FAILING, cycle(ways(command)), strict=False):
        with hub.failing(rule):
            result = attempt(*arguments)
        assert result.exit_code == 3, (rule, arguments, result.output)
        assert result.stderr.strip(), rule
    assert not exists(hub, MADE)


def test_a_job_shows_no_token_whichever_request_fails(hub: InHouse, attempt: Attempt) -> None:
    kinds = cycle(("status:401", "status:500", "html"))
    for endpoint, kind, arguments in zip(ENDPOINTS, kinds, cycle(ways("shard")), strict=False):
        hub.log.clear()
        with hub.failing(f"{kind}@.*{endpoint}"):
            assert attempt(*arguments).exit_code == 3, (kind, arguments)
        assert hub.asked(endpoint)
        hub.api().delete_repo(MADE, missing_ok=True)
    for arguments in ways("shard"):
        assert attempt(*arguments).exit_code == 0
        hub.api().delete_repo(MADE)


ASK: list[Callable[[dict[str, str]], object]] = [
    lambda at: job.inspect(SOURCE, **at),
    lambda at: list(job.shard(SOURCE, MADE, **at)),
    lambda at: list(job.shard(SOURCE, "./out", **at)),
    lambda at: job.discard(MADE, **at),
]


@pytest.mark.parametrize("odd", ["\n", "\r\nX-Other: y", "\0", "é", " ", "\x7f"])
def test_a_token_that_is_no_header_is_refused_without_being_shown(hub: InHouse, attempt: Attempt, odd: str) -> None:
    secret = "hf_a_secret"
    for ask in ASK if odd == "\n" else ASK[:1]:
        with pytest.raises(ShardingError) as refusal:
            ask({"endpoint": hub.address, "token": f"{secret}{odd}{secret}"})
        assert secret not in refusal.value.message + refusal.value.hint
        assert secret not in "".join(traceback.format_exception(refusal.value))
        assert refusal.value.hint
