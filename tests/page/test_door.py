"""Only what the page, its clients and MCP need can be asked of it, in bounds, over HTTP."""

import asyncio
import json
from http.client import HTTPConnection

import httpx
import psutil
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from sharding.core.limits import MAX_TOOL_CALLS
from sharding.page.serving.door import Door
from tests.conftest import LONGEST_SECONDS, in_a_loop
from tests.page.conftest import PATIENTLY, Site, ask, call
from tests.promises import promise


@promise("docs/security.md#upload-a-file-or-download-one")
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/gradio_api/upload"),
        ("GET", "/gradio_api/upload_progress?upload_id=1"),
        ("GET", "/gradio_api/file=/etc/passwd"),
        ("GET", "/gradio_api/file=app.py"),
        ("GET", "/gradio_api/file/etc/passwd"),
        ("GET", "/gradio_api/proxy=https://huggingface.co/"),
        ("GET", "/monitoring"),
        ("GET", "/monitoring/summary"),
        ("GET", "/gradio_api/runs"),
        ("POST", "/gradio_api/run-history/connect"),
        ("POST", "/gradio_api/component_server"),
        ("POST", "/gradio_api/stream/1"),
        ("POST", "/gradio_api/process_recording"),
        ("POST", "/gradio_api/vibe-edit"),
        ("GET", "/gradio_api/deep_link"),
        ("POST", "/gradio_api/run/plan"),
        ("POST", "/login"),
        ("GET", "/openapi.json"),
        ("GET", "/docs"),
        ("GET", "/gradio_api/mcp/../upload"),
    ],
)
def test_what_the_page_does_not_need_is_not_there(space: Site, method: str, path: str) -> None:
    assert ask(space, method, path, {}).status_code == 404


@pytest.mark.parametrize("path", ["/", "/config", "/gradio_api/info", "/gradio_api/openapi.json", "/theme.css"])
def test_what_is_read_takes_no_other_method(space: Site, path: str) -> None:
    assert ask(space, "GET", path, {}).status_code == 200
    assert ask(space, "POST", path, {}).status_code == 405


@pytest.mark.parametrize("path", ["/badge.svg", "/certificate.png"])
def test_badge_and_picture_of_a_result_are_there_to_be_read(space: Site, genuine: str, path: str) -> None:
    address = f"{path}?result={genuine}"
    read = ask(space, "GET", address, {})
    assert (read.status_code, read.headers["Content-Type"].partition("/")[0]) == (200, "image")
    assert ask(space, "GET", f"{path}?result=nobody/nothing", {}).status_code == 404
    assert ask(space, "POST", address, {}).status_code == 405


@promise("docs/security.md#reach-a-second-port-where-gradio")
def test_the_page_listens_at_its_own_address_and_at_no_other(space: Site) -> None:
    assert space.process
    process = psutil.Process(space.process.pid)
    sockets = [socket for each in (process, *process.children(True)) for socket in each.net_connections("inet")]
    listening = {(*socket.laddr,) for socket in sockets if socket.status == psutil.CONN_LISTEN}
    assert listening == {("127.0.0.1", space.port)}
    # The second port would come a little later; this it says as soon as it prepares it.
    assert "GRADIO_HOT_RELOAD" not in space.log


@promise("docs/security.md#upload-a-file-or-download-one")
def test_a_file_that_is_sent_is_nowhere(space: Site) -> None:
    answer = httpx.post(f"{space.address}/gradio_api/upload", files={"files": b"x" * 100_000}, **PATIENTLY)
    assert answer.status_code == 404
    assert "path" not in answer.text


@promise("docs/security.md#fill-the-memory-with-long-requests")
def test_a_long_body_is_refused_before_it_comes(space: Site) -> None:
    connection = HTTPConnection("127.0.0.1", space.port, timeout=LONGEST_SECONDS)
    connection.putrequest("POST", "/gradio_api/call/plan")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", "200000000")
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


@promise("docs/security.md#get-a-long-argument-repeated-in")
def test_an_error_does_not_repeat_a_long_argument(space: Site) -> None:
    long = "a" * 900_000
    usual = ["bob/small", "1GB", "size", "natural", "keep", "", "", False, ""]
    for place, wrong in [*((place, long) for place in range(7)), (0, {"a": long}), (1, [long]), (7, long)]:
        status, said = call(space, "plan", [*usual[:place], wrong, *usual[place + 1 :]], {})
        assert (status, "aaaaa" * 500 in said) == (200, False)
        assert len(said) < 3000


def test_a_request_of_another_form_is_not_repeated(space: Site) -> None:
    for body in ({"data": "a" * 900_000}, {"wrong": "a" * 900_000}, ["a" * 900_000], "a" * 900_000):
        for path in ("/gradio_api/call/plan", "/gradio_api/queue/join", "/gradio_api/cancel"):
            answer = ask(space, "POST", path, {}, body)
            assert (answer.status_code, len(answer.text) < 500) == (422, True)


@promise("docs/security.md#make-the-page-download-a-file")
def test_what_describes_a_file_in_place_of_a_text_has_nothing_fetched(space: Site) -> None:
    before = len(space.log)
    file = {"path": "https://example.com/large", "meta": {"_type": "gradio.FileData"}}
    _, said = call(space, "plan", [file, "1GB", "size", "natural", "keep", "", "", False, ""], {})
    assert "must be text" in said or "repo" in said
    assert "Traceback" not in space.log[before:]


def test_a_call_by_the_names_of_its_arguments_is_taken(space: Site, small: str) -> None:
    began = ask(space, "POST", "/gradio_api/call/v2/inspect", {}, {"source": small})
    assert began.status_code == 200
    told = ask(space, "GET", f"/gradio_api/call/v2/inspect/{began.json()['event_id']}", {}).text
    assert '"tensors"' in told


@promise("docs/security.md#block-the-page-by-watching-one")
def test_only_so_many_tools_are_called_at_a_time() -> None:
    go, statuses = asyncio.Event(), list[int]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await go.wait()
        await PlainTextResponse("done")(scope, receive, send)

    async def ask_at(door: Door, path: str) -> None:
        async def receive() -> Message:
            return {"type": "http.request", "body": b"{}", "more_body": False}

        async def send(message: Message) -> None:
            statuses.extend([message["status"]] if message["type"] == "http.response.start" else [])

        await door({"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": []}, receive, send)

    async def crowd() -> None:
        door = Door(app)
        calls = [asyncio.create_task(ask_at(door, "/gradio_api/mcp/")) for _ in range(MAX_TOOL_CALLS + 3)]
        calls.append(asyncio.create_task(ask_at(door, "/gradio_api/queue/join")))
        while len(statuses) < 3:
            await asyncio.sleep(0)
        assert statuses == [503] * 3
        go.set()
        await asyncio.gather(*calls)
        assert statuses[3:] == [200] * (MAX_TOOL_CALLS + 1)
        await ask_at(door, "/gradio_api/mcp/")
        assert statuses[-1] == 200

    in_a_loop(crowd())


def test_the_log_says_where_a_request_broke_and_not_what_it_held(space: Site) -> None:
    before = len(space.log)
    assert ask(space, "POST", "/gradio_api/call/v2/inspect/", {}, {"secret": "hf_secret"}).status_code == 422
    said = space.log[before:]
    assert "Refused as malformed: TypeError in " in said
    assert "secret" not in said


def test_a_wrong_choice_in_the_form_is_not_repeated(space: Site) -> None:
    config = ask(space, "GET", "/config", {}).json()
    draw = next(call for call in config["dependencies"] if len(call["inputs"]) > 8)
    parts = {part["id"]: part for part in config["components"]}
    values = [parts[number]["props"].get("value") for number in draw["inputs"]]
    choices = [n for n, number in enumerate(draw["inputs"]) if parts[number]["type"] == "radio"]
    values[choices[0]] = "a" * 900_000
    before = len(space.log)
    wish = {"data": values, "fn_index": draw["id"], "session_hash": "longchoice"}
    assert ask(space, "POST", "/gradio_api/queue/join", {}, wish).status_code == 200
    told = ask(space, "GET", "/gradio_api/queue/data?session_hash=longchoice", {}).text
    last = [json.loads(line[6:]) for line in told.splitlines() if line.startswith("data: ")][-2]
    assert (last["msg"], last["success"]) == ("process_completed", False)
    assert len(told) < 10_000
    assert "Traceback" in space.log[before:] and len(space.log) - before < 50_000


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/gradio_api/queue/join", {"data": [], "fn_index": -1, "session_hash": "s"}),
        ("/gradio_api/queue/join", {"data": [], "fn_index": 10**30, "session_hash": "s"}),
        ("/gradio_api/call/nothing", {"data": []}),
        ("/gradio_api/call/v2/nothing", {}),
        ("/gradio_api/call/v2/inspect", {}),
        ("/gradio_api/call/v2/inspect/", {"data": [], "fn_index": 0, "session_hash": "s"}),
        ("/gradio_api/call/plan", {"data": {"a": "\ud800"}}),
        ("/gradio_api/call/plan", {"data": {"a": float("nan")}}),
        ("/gradio_api/call/plan", b"\x80"),
        ("/gradio_api/mcp/", b"\x80"),
        ("/gradio_api/mcp/", b"\0" * 13),
        ("/gradio_api/mcp/", b"[" * 10_000),
    ],
)
def test_what_calls_for_nothing_that_is_there_is_refused(space: Site, path: str, body: object) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    answer = httpx.post(f"{space.address}{path}", content=content, headers=headers, **PATIENTLY)
    assert 400 <= answer.status_code < 500


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/?" + "a" * 20_000, 414),
        ("/assets/" + "x" * 600, 404),
        ("/pwa_icon/9", 404),
        ("/logout?_target_url=http://[", 422),
    ],
)
def test_an_address_that_makes_no_sense_is_refused(space: Site, path: str, status: int) -> None:
    assert ask(space, "GET", path, {}).status_code == status
