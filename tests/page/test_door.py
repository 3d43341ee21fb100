"""Only what the page, its clients and MCP need can be asked of it, in bounds, over HTTP."""

import json
from http.client import HTTPConnection

import httpx
import psutil

from tests.conftest import LONGEST_SECONDS
from tests.page.site import PATIENTLY, Site, ask, call, choices
from tests.promises import promise


@promise("docs/security.md#upload-a-file-or-download-one")
def test_what_the_page_does_not_need_is_not_there(space: Site) -> None:
    of_gradio = {
        "GET": "upload_progress?upload_id=1 file=/etc/passwd file=app.py file/etc/passwd proxy=https://huggingface.co/ "
        "runs deep_link mcp/../upload",
        "POST": "upload run-history/connect component_server stream/1 process_recording vibe-edit run/plan",
    }
    asked = [(method, f"/gradio_api/{path}") for method, paths in of_gradio.items() for path in paths.split()]
    asked += [("GET", path) for path in ("/monitoring", "/monitoring/summary", "/openapi.json", "/docs")]
    for method, path in (*asked, ("POST", "/login")):
        assert ask(space, method, path).status_code == 404, path


def test_what_is_read_takes_no_other_method(space: Site, genuine: str) -> None:
    pictures = [f"/badge.svg?result={genuine}", f"/certificate.png?result={genuine}"]
    for path in ("/", "/config", "/gradio_api/info", "/gradio_api/openapi.json", "/theme.css", *pictures):
        read = ask(space, "GET", path)
        assert (read.status_code, ask(space, "POST", path).status_code) == (200, 405), path
        assert path not in pictures or read.headers["Content-Type"].startswith("image/")
    assert ask(space, "GET", "/badge.svg?result=nobody/nothing").status_code == 404


@promise("docs/security.md#reach-a-second-port-where-gradio")
def test_the_page_listens_at_its_own_address_and_at_no_other(space: Site) -> None:
    assert space.process
    process = psutil.Process(space.process.pid)
    sockets = [socket for each in (process, *process.children(True)) for socket in each.net_connections("inet")]
    listening = {(*socket.laddr,) for socket in sockets if socket.status == psutil.CONN_LISTEN}
    assert listening == {("127.0.0.1", space.port)}
    # The second port would come a little later; this it says as soon as it prepares it.
    assert "GRADIO_HOT_RELOAD" not in space.log


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
    usual = ["bob/small", *choices("plan")]
    for place, wrong in [(0, long), (2, long), (0, {"a": long}), (1, [long]), (7, long)]:
        status, said = call(space, "plan", [*usual[:place], wrong, *usual[place + 1 :]])
        assert (status, "aaaaa" * 500 in said) == (200, False)
        assert len(said) < 3000


@promise("docs/security.md#make-the-page-download-a-file")
def test_what_describes_a_file_in_place_of_a_text_has_nothing_fetched(space: Site) -> None:
    before = len(space.log)
    file = {"path": "https://example.com/large", "meta": {"_type": "gradio.FileData"}}
    _, said = call(space, "plan", [file, *choices("plan")])
    assert "must be text" in said or "repo" in said
    assert "Traceback" not in space.log[before:]


def test_a_call_by_the_names_of_its_arguments_is_taken(space: Site, small: str) -> None:
    began = ask(space, "POST", "/gradio_api/call/v2/inspect", body={"source": small})
    assert began.status_code == 200
    told = ask(space, "GET", f"/gradio_api/call/v2/inspect/{began.json()['event_id']}").text
    assert '"tensors"' in told


def test_the_log_says_where_a_request_broke_and_not_what_it_held(space: Site) -> None:
    before = len(space.log)
    assert ask(space, "POST", "/gradio_api/call/v2/inspect/", body={"secret": "hf_secret"}).status_code == 422
    said = space.log[before:]
    assert "Refused as malformed: TypeError in " in said
    assert "secret" not in said


def test_a_wrong_choice_in_the_form_is_not_repeated(space: Site) -> None:
    config = ask(space, "GET", "/config").json()
    draw = next(call for call in config["dependencies"] if len(call["inputs"]) > 8)
    parts = {part["id"]: part for part in config["components"]}
    values = [parts[number]["props"].get("value") for number in draw["inputs"]]
    choices = [n for n, number in enumerate(draw["inputs"]) if parts[number]["type"] == "radio"]
    values[choices[0]] = "a" * 900_000
    before = len(space.log)
    wish = {"data": values, "fn_index": draw["id"], "session_hash": "longchoice"}
    assert ask(space, "POST", "/gradio_api/queue/join", body=wish).status_code == 200
    told = ask(space, "GET", "/gradio_api/queue/data?session_hash=longchoice").text
    last = [json.loads(line[6:]) for line in told.splitlines() if line.startswith("data: ")][-2]
    assert (last["msg"], last["success"]) == ("process_completed", False)
    assert len(told) < 10_000
    assert "Traceback" in space.log[before:] and len(space.log) - before < 50_000


def test_what_calls_for_nothing_that_is_there_and_an_address_that_makes_no_sense_are_refused(space: Site) -> None:
    plan, tools = "/gradio_api/call/plan", "/gradio_api/mcp/"
    for path, body in (
        ("/gradio_api/queue/join", {"data": [], "fn_index": -1, "session_hash": "s"}),
        ("/gradio_api/queue/join", {"data": [], "fn_index": 10**30, "session_hash": "s"}),
        ("/gradio_api/call/nothing", {"data": []}),
        ("/gradio_api/call/v2/nothing", {}),
        ("/gradio_api/call/v2/inspect", {}),
        ("/gradio_api/call/v2/inspect/", {"data": [], "fn_index": 0, "session_hash": "s"}),
        *((plan, {"data": {"a": odd}}) for odd in ("\ud800", float("nan"))),
        *((plan, b"\x80"), (tools, b"\x80"), (tools, b"\0" * 13), (tools, b"[" * 10_000)),
    ):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        answer = httpx.post(f"{space.address}{path}", content=content, headers=headers, **PATIENTLY)
        assert 400 <= answer.status_code < 500, (path, body)
    for path, status in (
        ("/?" + "a" * 20_000, 414),
        ("/assets/" + "x" * 600, 404),
        ("/pwa_icon/9", 404),
        ("/logout?_target_url=http://[", 422),
    ):
        assert ask(space, "GET", path).status_code == status, path
