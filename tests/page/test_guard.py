"""No other site acts for a visitor, or for whoever runs the page: tried over HTTP, and in a browser with two origins."""

import http.client
import json
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.hubs import exists
from tests.localhub.conftest import Server
from tests.page.conftest import Site, copy_name, sign_in

EVIL = "https://evil.example"
Headers = Mapping[str, str]


def ask(site: Site, method: str, path: str, headers: Headers, body: Any = None) -> http.client.HTTPResponse:
    """Ask as no browser would let one: any header, `Host` among them."""
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=60)
    text = json.dumps(body) if body is not None else None
    sent = {"Host": f"127.0.0.1:{site.port}", "Content-Type": "application/json"} | headers
    connection.putrequest(method, path, skip_host=True)
    for name, value in (sent | ({"Content-Length": str(len(text))} if text else {})).items():
        connection.putheader(name, value)
    connection.endheaders(text.encode() if text else None)
    return connection.getresponse()


def call(site: Site, endpoint: str, arguments: list[Any], headers: Headers) -> tuple[int, str]:
    """Call an endpoint as any page could; return the status, and what it answered in the end."""
    began = ask(site, "POST", f"/gradio_api/call/{endpoint}", headers, {"data": arguments})
    text = began.read().decode()
    if began.status != 200:
        return began.status, text
    followed = ask(site, "GET", f"/gradio_api/call/{endpoint}/{json.loads(text)['event_id']}", headers)
    return followed.status, followed.read().decode()


def sharded(small: str, name: str) -> list[Any]:
    return [small, f"alice/{name}", "1GB"]


# --- On somebody's machine ------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["evil.example", "evil.example:7860", "127.0.0.1.evil.example", "", "[", "10.0.0.1"])
@pytest.mark.parametrize("path", ["/", "/config", "/gradio_api/info", "/gradio_api/mcp/", "/login/huggingface"])
def test_at_home_no_other_name_of_the_page_is_answered(home: Site, host: str, path: str) -> None:
    answer = ask(home, "GET", path, {"Host": host})
    assert answer.status in (400, 421)
    assert b"gradio" not in answer.read().lower()


def test_a_rebound_name_starts_no_job(home: Site, hub: Server, small: str) -> None:
    name = copy_name()
    status, said = call(home, "shard", sharded(small, name), {"Host": "evil.example"})
    assert (status, "SHARD_HOSTS" in said) == (421, True)
    assert not exists(hub, f"alice/{name}")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3", "[::1]", "LOCALHOST"])
def test_this_machines_own_names_are_answered(home: Site, host: str) -> None:
    assert ask(home, "GET", "/config", {"Host": f"{host}:{home.port}"}).status == 200


def test_names_that_the_environment_gives_are_answered(serve: Callable[..., Site]) -> None:
    site = serve(HF_TOKEN="hf_alice", SHARD_HOSTS="models.lan, gpu-box")
    for host in ("models.lan", "gpu-box:7860"):
        assert ask(site, "GET", "/config", {"Host": host}).status == 200
    assert ask(site, "GET", "/config", {"Host": "evil.example"}).status == 421
    own = {"Host": "models.lan", "Origin": "http://models.lan"}
    assert call(site, "inspect", ["bob/small"], own)[0] == 200
    assert call(site, "inspect", ["bob/small"], {"Host": "models.lan", "Origin": EVIL})[0] == 403


FOREIGN: list[Headers] = [
    {"Origin": EVIL},
    {"Origin": "null"},
    {"Origin": "http://localhost:1"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors", "Origin": EVIL},
    {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors", "Origin": "http://127.0.0.1:1"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Origin": EVIL},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_at_home_another_site_starts_nothing_and_reads_nothing(
    home: Site, hub: Server, small: str, headers: Headers
) -> None:
    name = copy_name()
    for path in ("call/shard", "queue/join", "run/shard", "upload", "mcp/", "cancel", "reset"):
        answer = ask(home, "POST", f"/gradio_api/{path}", headers, {"data": sharded(small, name)})
        assert answer.status == 403, path
        assert answer.headers["Access-Control-Allow-Credentials"] is None
    assert not exists(hub, f"alice/{name}")


def test_at_home_requests_that_no_browser_sends_work_as_ever(home: Site, hub: Server, small: str) -> None:
    status, said = call(home, "inspect", [small], {})
    assert status == 200 and "event: complete" in said


def test_a_token_of_ones_own_works_from_anywhere_and_is_all_that_counts(home: Site, hub: Server, small: str) -> None:
    private = "alice/hidden-from-bob"
    hub.api("hf_alice").create_repo(private, private=True, exist_ok=True)
    anywhere = {"Origin": EVIL, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}
    status, said = call(home, "inspect", [small], {**anywhere, "Authorization": "Bearer hf_bob"})
    assert status == 200 and "event: complete" in said
    for sent in ("Bearer hf_bob", "Bearer hf_nobody", "Basic YTpi", "Bearer ", "x"):
        for headers in (anywhere, {}):  # this machine's login is not lent to who shows another one
            _, said = call(home, "inspect", [private], {**headers, "Authorization": sent})
            assert "event: error" in said and "hold" not in said, sent


# --- On a Space -------------------------------------------------------------------------------------------


@pytest.fixture
def cookie(browser: Browser, space: Site) -> Iterator[str]:
    """The cookie of alice, who has signed in on the Space."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(space.address)
    sign_in(page, "alice")
    yield next(f"session={found['value']}" for found in context.cookies() if found["name"] == "session")
    context.close()


def greeting(site: Site, headers: Headers) -> str:
    """What the page says to who asks with `headers`: it greets those it knows."""
    config = json.loads(ask(site, "GET", "/config", {}).read())
    arrive = next(fn["id"] for fn in config["dependencies"] if fn["targets"] and fn["targets"][0][1] == "load")
    asked = {"data": [], "fn_index": arrive, "session_hash": copy_name("session"), "trigger_id": None}
    joined = ask(site, "POST", "/gradio_api/queue/join", headers, asked)
    if joined.status != 200:
        return f"status {joined.status}"
    answer = ask(site, "GET", f"/gradio_api/queue/data?session_hash={asked['session_hash']}", headers)
    return "".join(line for line in iter(lambda: answer.readline().decode(), "") if "process_completed" in line)


def test_on_a_space_the_cookie_counts_for_the_page_itself_only(space: Site, cookie: str) -> None:
    host = f"127.0.0.1:{space.port}"
    own: list[Headers] = [
        {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"},
        {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"},
        {"Origin": f"http://{host}"},
    ]
    for headers in own:
        assert "Signed in as" in greeting(space, {**headers, "Cookie": cookie}), headers
    for headers in (*FOREIGN, {}):
        said = greeting(space, {**headers, "Cookie": cookie})
        assert "Signed in as" not in said and "Sign in" in said, headers


def test_no_answer_lets_another_origin_read_with_credentials_or_frames_the_page(home: Site, space: Site) -> None:
    for site, policy in ((home, "frame-ancestors 'self'"), (space, "frame-ancestors 'self' https://huggingface.co")):
        for origin in (EVIL, "null", f"http://localhost:{site.port}", site.address):
            for method, path in (("GET", "/"), ("GET", "/config"), ("OPTIONS", "/gradio_api/call/shard")):
                preflight = {"Access-Control-Request-Method": "POST"} if method == "OPTIONS" else {}
                answer = ask(site, method, path, {"Origin": origin, **preflight})
                assert answer.headers["Access-Control-Allow-Credentials"] is None
                assert policy in answer.headers.get_all("Content-Security-Policy", [])
                answer.read()


def test_another_site_neither_signs_a_visitor_out_nor_changes_their_session(space: Site, cookie: str) -> None:
    for headers in FOREIGN:
        for path in ("/logout", "/login/huggingface"):
            answer = ask(space, "GET", path, {**headers, "Cookie": cookie})
            is_way_in = path != "/logout" and headers.get("Sec-Fetch-Mode") == "navigate"
            assert is_way_in or answer.headers["Set-Cookie"] is None, (headers, path)


# --- In a browser -----------------------------------------------------------------------------------------


class _Evil(BaseHTTPRequestHandler):
    """Another site: a page that does what its address says."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>Evil</title><body>")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def evil() -> Iterator[int]:
    """The port of another site on this machine: one origin as 127.0.0.1, which is the same site, another as localhost."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Evil)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


_TRY = """async ([address, data]) => {
  const tried = {};
  for (const path of ["call/shard", "run/shard"]) {
    for (const [mode, credentials] of [["cors", "include"], ["no-cors", "include"], ["cors", "omit"]]) {
      const headers = mode === "cors" ? { "Content-Type": "application/json" } : { "Content-Type": "text/plain" };
      try {
        const answer = await fetch(`${address}/gradio_api/${path}`,
          { method: "POST", mode, credentials, headers, body: JSON.stringify({ data }) });
        tried[`${path} ${mode} ${credentials}`] = answer.type === "opaque" ? "sent" : answer.status;
      } catch (error) {
        tried[`${path} ${mode} ${credentials}`] = "blocked";
      }
    }
  }
  return tried;
}"""


@pytest.mark.parametrize("as_host", ["localhost", "127.0.0.1"])
@pytest.mark.parametrize("where", ["home", "space"])
def test_in_a_browser_another_origin_makes_no_copy(
    where: str, as_host: str, request: pytest.FixtureRequest, visit: Callable[..., Page], hub: Server, evil: int
) -> None:
    site: Site = request.getfixturevalue(where)
    private = "alice/private-of-hers"
    if not exists(hub, private):
        hub.api("hf_alice").create_repo(private, private=True)
        hub.api("hf_alice").upload_file(
            path_or_fileobj=hub.ask("GET", "/bob/small/resolve/main/model-00001-of-00002.safetensors").body,
            path_in_repo="model.safetensors", repo_id=private,
        )  # fmt: skip
    page = visit(site)
    if where == "space":
        sign_in(page, "alice")
    name = copy_name("stolen")
    other = page.context.new_page()
    other.goto(f"http://{as_host}:{evil}/")
    arguments = [private, f"alice/{name}", "1GB", "size", "natural", "keep", False, False, True]
    tried = other.evaluate(_TRY, [site.address, arguments])
    assert set(tried.values()) <= {"blocked", "sent", 403, 422}, tried
    expect(page.locator("#account")).to_contain_text("Signed in as alice")
    page.reload()
    expect(page.locator("#account")).to_contain_text("Signed in as alice")
    assert not exists(hub, f"alice/{name}")


@pytest.mark.parametrize("where", ["home", "space"])
def test_in_a_browser_the_page_does_not_show_in_the_frame_of_another_site(
    where: str, request: pytest.FixtureRequest, browser: Browser, evil: int
) -> None:
    site: Site = request.getfixturevalue(where)
    context: BrowserContext = browser.new_context()
    try:
        page = context.new_page()
        page.goto(f"http://localhost:{evil}/")
        page.evaluate(
            "address => { const frame = document.createElement('iframe'); frame.src = address;"
            "document.body.append(frame); return new Promise((done) => { frame.onload = done; }).then(() => 0); }",
            f"{site.address}/?repo=bob/small",
        )
        frame = page.frames[-1]
        assert frame.url.startswith("chrome-error://") or "Shard" not in frame.content()
    finally:
        context.close()


def test_a_visitor_signs_in_and_out_on_a_space(space: Site, visit: Callable[..., Page]) -> None:
    page = visit(space, "?repo=bob/small&size=50kB")
    sign_in(page, "bob")
    expect(page).to_have_url(f"{space.address}/?repo=bob/small&size=50kB")
    page.locator("#sign-in").click()
    expect(page.locator("#account")).to_contain_text("Sign in to see")
    sign_in(page, "alice")
