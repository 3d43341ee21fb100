"""The page's API and MCP tools, used as programs use them."""

import re
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.conftest import LONGEST_SECONDS, ROOT, in_a_loop
from tests.inhouse import InHouse
from tests.page.conftest import held_job
from tests.page.site import Site, copy_name, event, follow

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what they import
    from gradio_client import Client
    from gradio_client.exceptions import AppError
    from mcp import ClientSession
    from mcp.client.streamable_http import streamablehttp_client

pytestmark = [pytest.mark.filterwarnings("ignore")]

ENDPOINTS = {"/inspect", "/plan", "/shard", "/status", "/result", "/compare"}
Connect = Callable[..., Client]


@pytest.fixture(scope="module")
def connect(space: Site) -> Iterator[Connect]:
    """A client of the page that sends the header `Authorization` with a token, or none; one for each."""
    clients: dict[str | None, Client] = {}

    def connect(token: str | None = None) -> Client:
        if token not in clients:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            clients[token] = Client(
                space.address,
                token=False,  # type: ignore[arg-type]
                headers=headers,
                verbose=False,
                analytics_enabled=False,
                ssl_verify=False,
                httpx_kwargs={"timeout": LONGEST_SECONDS},
            )
        return clients[token]

    yield connect
    with ThreadPoolExecutor() as pool:  # each waits for a second
        list(pool.map(Client.close, clients.values()))


def finish(client: Client, job: str) -> dict[str, Any]:
    while True:
        status: dict[str, Any] = client.predict(job=job, api_name="/status")
        if status["state"] not in ("queued", "running", "cancelling"):
            return status


def test_the_endpoints_are_six_and_take_no_token(connect: Connect) -> None:
    described = connect().view_api(return_format="dict", print_info=False)["named_endpoints"]  # type: ignore[index]
    assert set(described) == ENDPOINTS
    names = {parameter["parameter_name"] for endpoint in described.values() for parameter in endpoint["parameters"]}
    assert not [name for name in names if "token" in name or "auth" in name]
    assert {"source", "destination", "max_shard_size", "strategy", "order", "dtype", "job", "repo"} <= names


NONSENSE: list[tuple[dict[str, object], str]] = [
    ({"max_shard_size": "9" * 5000}, "size"),
    ({"max_shard_size": ""}, "is not a size"),
    ({"strategy": "pp:99999999999999999999"}, "There is no strategy"),
    ({"strategy": None}, "must be text"),
    ({"source": "https://example.org/a/b"}, "example.org is not the Hub"),
    ({"source": ""}, "The name of a repo or a folder is empty"),
    ({"source": None}, "must be text"),
    ({"source": "bob/small@.."}, "does not name a valid revision"),
]


def test_what_makes_no_sense_is_a_sentence(connect: Connect, small: str) -> None:
    for wrong, says in NONSENSE:
        with pytest.raises(AppError) as refusal:
            connect().predict(**{"source": small, **wrong}, api_name="/plan")
        assert says in str(refusal.value) and len(str(refusal.value)) < 700, wrong


def test_nobody_reads_or_cancels_the_job_of_another(connect: Connect, space: Site, hub: InHouse, long: str) -> None:
    alice, bob = connect("hf_alice"), connect("hf_bob")
    name = copy_name("held")
    wish = {"source": long, "destination": f"alice/{name}", "max_shard_size": "200kB"}
    with held_job(hub, name):
        job = alice.predict(**wish, api_name="/shard")["job"]
        with pytest.raises(AppError, match="no job with this id"):
            bob.predict(job=job, api_name="/status")
        with pytest.raises(AppError, match="Jobs need a login"):
            connect().predict(job=job, api_name="/status")
        # Nor do the handlers behind the page.
        for headers in ({}, {"Authorization": "Bearer hf_bob"}):
            follow(space, event(space, "cancel", job), headers)
    ended = finish(alice, job)
    assert (ended["state"], ended["owner"]) == ("done", "alice")  # not cancelled


def test_the_tools_of_mcp_read_well(space: Site, small: str) -> None:
    async def ask() -> tuple[dict[str, Any], str]:
        async with (
            streamablehttp_client(f"{space.address}/gradio_api/mcp/") as (read, write, _),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            tools = {tool.name: tool for tool in (await session.list_tools()).tools}
            name = next(name for name in tools if name.endswith("plan"))
            answer = await session.call_tool(name, {"source": small, "max_shard_size": "70kB"})
            return tools, answer.content[0].text  # type: ignore[union-attr]

    tools, answer = in_a_loop(ask())
    assert {re.sub(".*_", "", name) for name in tools} == {name[1:] for name in ENDPOINTS}
    assert "model-00001-of-00004.safetensors" in answer
    for tool in tools.values():
        assert len(tool.description or "") > 60
        assert all(field.get("description") for field in tool.inputSchema["properties"].values())
        assert "request" not in tool.inputSchema["properties"]


def test_the_example_of_the_docs_runs(space: Site, small: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs/page-and-api.md").read_text()
    example, of_tools = re.findall(r"^```python\n(.*?)^```$", text, flags=re.M | re.S)
    ours = {"http://127.0.0.1:7860": space.address, "hf_...": "hf_alice", "samples/mistral-60m": small}
    for shown, here in {**ours, "alice/mine": f"alice/{copy_name()}"}.items():
        assert shown in example
        example = example.replace(shown, here)
    told: dict[str, Any] = {}
    exec(example, told)
    shown, of_tools_shown = re.findall(r"^It prints:\n\n```text\n(.*?)^```$", text, flags=re.M | re.S)
    *shards, state = (re.sub(r"\d+", "N", line) for line in capsys.readouterr().out.splitlines())
    assert [*shards, "running"] == [re.sub(r"\d+", "N", line) for line in shown.splitlines()]
    assert state in ("queued", "running", "done")
    assert len(told["plan"]["shards"]) == 1
    assert finish(told["client"], told["job"])["state"] == "done"
    told["client"].close()
    for there, here in ours.items():
        of_tools = of_tools.replace(there, here)
    with ThreadPoolExecutor(1) as pool:  # it runs an event loop, and tests with a browser have one in this thread
        pool.submit(exec, of_tools, {}).result()
    assert capsys.readouterr().out == of_tools_shown
