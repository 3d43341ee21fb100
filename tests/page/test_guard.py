"""No other site acts for a visitor, or for whoever runs the page: tried over HTTP, and in a browser with two origins."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from tests.conftest import random_tensors
from tests.hubs import exists, push
from tests.localhub.conftest import Server
from tests.page.conftest import STYLE, Visit
from tests.page.site import Headers, Site, answer_in, ask, call, choices, copy_name, event, session_of
from tests.page.sources import save_one

EVIL = "https://evil.example"


def finish(site: Site, said: str) -> str:
    """Return how the job ended that `shard` has answered with."""
    job, state = answer_in(said)["job"], "queued"
    while state in ("queued", "running"):
        state = answer_in(call(site, "status", [job], {"Authorization": "Bearer hf_alice"})[1])["state"]
    return state


def public_copy(source: str, name: str) -> list[Any]:
    """The arguments of `shard` that make a public copy, also of what is private."""
    return [source, f"alice/{name}", *choices("shard", private=False, confirmed=True)]


FOREIGN: Headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors", "Origin": EVIL}


# --- On a Space -------------------------------------------------------------------------------------------


def test_only_the_page_itself_signs_a_visitor_out_and_who_declines_to_sign_in_is_led_back(
    space: Site,
) -> None:
    cookie = f"session={session_of(space, 'alice')}"
    own = {"Referer": f"{space.address}/?repo=bob/small"}
    for headers, leads in ((FOREIGN, False), ({}, False), ({"Referer": f"{EVIL}/"}, False), (own, True)):
        answer = ask(space, "GET", "/logout", {**headers, "Cookie": cookie})
        assert ("Set-Cookie" in answer.headers) is leads, headers
    assert "Set-Cookie" not in ask(space, "GET", "/login/huggingface", {**FOREIGN, "Cookie": cookie}).headers
    answer = ask(space, "GET", "/login/callback?error=access_denied")
    assert (answer.status_code, answer.headers["Location"]) == (307, "/")


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
  for (const [mode, credentials] of [["cors", "include"], ["no-cors", "include"], ["cors", "omit"]]) {
    const headers = { "Content-Type": mode === "cors" ? "application/json" : "text/plain" };
    const asked = { method: "POST", mode, credentials, headers, body: JSON.stringify({ data }) };
    const answer = fetch(`${address}/gradio_api/call/shard`, asked);
    tried[`${mode} ${credentials}`] = await answer.then((it) => it.status || "sent", () => "blocked");
  }
  return tried;
}"""

_FRAME = """(address) => {
  const frame = document.createElement("iframe");
  frame.src = address;
  document.body.append(frame);
  return new Promise((done) => { frame.onload = done; }).then(() => 0);
}"""

_CALL = """async (data) => {
  const began = await fetch("/gradio_api/call/shard",
    { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ data }) });
  return (await fetch(`/gradio_api/call/shard/${(await began.json()).event_id}`)).text();
}"""


@pytest.fixture(scope="module")
def hers(hub: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A private model of alice."""
    return push(hub, save_one(tmp_path_factory.mktemp("in"), random_tensors(2)), "alice/hers", private=True)


HOSTS = ("localhost", "127.0.0.1")


def test_in_a_browser_another_origin_makes_no_copy_which_the_page_itself_does_and_frames_nothing(
    home: Site, space: Site, visit: Visit, hub: Server, evil: int, hers: str
) -> None:
    page = visit(home, STYLE)
    stolen, own = copy_name("stolen"), copy_name("own")
    for host in HOSTS:
        other = page.context.new_page()
        other.goto(f"http://{host}:{evil}/")
        tried = other.evaluate(_TRY, [home.address, public_copy(hers, stolen)])
        assert tried == {"cors include": "blocked", "no-cors include": "sent", "cors omit": "blocked"}
        if host == "localhost":
            for site in (home, space):
                other.evaluate(_FRAME, f"{site.address}/?repo=bob/small")
                frame = other.frames[-1]
                assert frame.url.startswith("chrome-error://") or "Shard" not in frame.content()
            assert len(other.frames) == 3
        other.close()
    assert finish(home, page.evaluate(_CALL, public_copy(hers, own))) == "done"
    assert exists(hub, f"alice/{own}")
    assert not exists(hub, f"alice/{stolen}")


_GREET = """async ([address, asked, credentials]) => {
  const sent = { method: "POST", credentials, headers: { "Content-Type": "application/json" }, body: asked };
  try {
    await fetch(`${address}/gradio_api/queue/join`, sent);
    const said = await fetch(`${address}/gradio_api/queue/data?session_hash=${JSON.parse(asked).session_hash}`,
      { credentials });
    let heard = "";
    for (const reader = said.body.getReader(), words = new TextDecoder(); !heard.includes("process_completed");) {
      const { done, value } = await reader.read();
      if (done) break;
      heard += words.decode(value, { stream: true });
    }
    return heard;
  } catch {
    return "blocked";
  }
}"""


def test_in_a_browser_another_origin_is_nobody_to_a_space_that_knows_the_visitor(
    space: Site, visit: Visit, evil: int
) -> None:
    page = visit(space, STYLE, user="alice")
    assert "Signed in as" in page.evaluate(_GREET, ["", json.dumps(event(space, "greet")), "include"])
    for host in HOSTS:
        other = page.context.new_page()
        other.goto(f"http://{host}:{evil}/")
        assert other.evaluate(_GREET, [space.address, json.dumps(event(space, "greet")), "include"]) == "blocked"
        said = other.evaluate(_GREET, [space.address, json.dumps(event(space, "greet")), "omit"])
        assert "Signed in as" not in said and "Sign in" in said
        other.close()
    assert "Signed in as" in page.evaluate(_GREET, ["", json.dumps(event(space, "greet")), "include"])
