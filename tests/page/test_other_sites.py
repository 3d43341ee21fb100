"""Whose request it is, told from its headers: asked of the guard in this process, around a page that notes all."""

from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from sharding.page.serving.guard import guarded
from sharding.page.site import Site
from tests.conftest import in_a_loop
from tests.promises import promise

SPACE = "carol-shard-my-repo.hf.space"
EVIL = "https://evil.example"
COOKIES = ["session=alice; Path=/", "other=1; Path=/"]
Ask = Callable[..., httpx.Response]


class Inside:
    """What the guard stands around: it notes what reaches it, sets cookies, and lets anybody read with credentials."""

    def __init__(self) -> None:
        self.reached: list[Headers] = []

    async def answer(self, request: Request) -> Response:
        self.reached.append(request.headers)
        answer = PlainTextResponse("the page")
        answer.raw_headers += [(b"set-cookie", cookie.encode()) for cookie in COOKIES]
        answer.headers["Access-Control-Allow-Credentials"] = "true"
        return answer


@pytest.fixture
def inside() -> Inside:
    return Inside()


@pytest.fixture
def ask(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Ask a page at home, or a Space, which has a proxy and two names."""
    monkeypatch.setenv("SPACE_HOST", f"{SPACE}, models.example")
    monkeypatch.setenv("SHARD_HOSTS", "Models.LAN, gpu-box.example")

    def ask(on_space: bool, method: str, path: str, headers: Mapping[str, str]) -> httpx.Response:
        async def answered() -> httpx.Response:
            app = Starlette(routes=[Route("/{path:path}", inside.answer, methods=[method])])
            app.middleware_stack = app.build_middleware_stack()
            site = Site("https://huggingface.co", "carol/shard-my-repo" if on_space else None)
            host = SPACE if on_space else "127.0.0.1:7860"
            body: Any = {"json": {}} if method == "POST" else {}
            async with (
                guarded(site, judge=lambda *_: pytest.fail("Nothing is judged."))(app),
                httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://page") as client,
            ):
                return await client.request(method, path, headers={"Host": host, **headers}, **body)

        return in_a_loop(answered())  # type: ignore[no-any-return]

    return ask


JOIN = ("POST", "/gradio_api/queue/join")
FETCH = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}
GOES = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
SISTER = {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}
PAGE, CONFIG, WAY_OUT = ("GET", "/"), ("GET", "/config"), ("GET", "/logout")
Asked = tuple[tuple[str, str], dict[str, str]]
OWN: dict[str, Asked] = {
    "fetch-own": (JOIN, {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors", "Origin": EVIL}),
    "typed": (PAGE, {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}),
    "way-out": (WAY_OUT, {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "navigate"}),
    "link-to-the-page": (PAGE, GOES),
    "link-head": (("HEAD", "/config"), GOES),
    "link-to-the-way-in": (("GET", "/login/huggingface"), GOES),
    "origin-own": (JOIN, {"Origin": f"https://{SPACE}"}),
    "origin-other-name": (JOIN, {"Origin": "https://models.example"}),
    "old-browser-reads": (CONFIG, {}),
    "old-way-out": (WAY_OUT, {"Referer": f"https://{SPACE}/?repo=a/b"}),
}
OTHER: dict[str, Asked] = {
    "fetch": (JOIN, FETCH),
    "sister": (JOIN, SISTER),
    "fetch-metadata-before-origin": (JOIN, {**FETCH, "Origin": f"https://{SPACE}"}),
    "form-that-is-sent": (JOIN, GOES),
    "fetch-reads": (CONFIG, FETCH),
    "picture": (PAGE, {**FETCH, "Sec-Fetch-Mode": "no-cors"}),
    "link-out": (WAY_OUT, GOES),
    "link-out-head": (("HEAD", "/logout"), GOES),
    "fetch-out": (WAY_OUT, FETCH),
    "origin": (JOIN, {"Origin": EVIL}),
    "origin-null": (JOIN, {"Origin": "null"}),
    "origin-none": (JOIN, {"Origin": "http://["}),
    "origin-reads": (CONFIG, {"Origin": EVIL}),
    "old-browser-sends-a-form": (JOIN, {}),
    "old-out": (WAY_OUT, {}),
    "old-out-from-elsewhere": (WAY_OUT, {"Referer": f"{EVIL}/"}),
}


@pytest.mark.parametrize("kind", [*OWN, *OTHER])
def test_on_a_space_the_page_itself_acts_for_its_visitor_and_another_site_is_nobody_and_changes_no_session(
    ask: Ask, inside: Inside, kind: str
) -> None:
    asked, headers = (OWN | OTHER)[kind]
    answer = ask(True, *asked, {**headers, "Cookie": "session=alice"})
    assert answer.status_code == 200
    assert inside.reached[0].get("cookie") == ("session=alice" if kind in OWN else None)
    assert answer.headers.get_list("Set-Cookie") == (COOKIES if kind in OWN else [])
    assert "Access-Control-Allow-Credentials" not in answer.headers


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_at_home_who_sends_no_headers_of_a_browser_is_whoever_runs_the_page(
    ask: Ask, inside: Inside, method: str
) -> None:
    path = "/config" if method == "GET" else JOIN[1]
    assert ask(False, method, path, {"Cookie": "a=1"}).status_code == 200
    assert inside.reached[0]["cookie"] == "a=1"
    own = {"Origin": "http://localhost:7860", "Host": "localhost:7860"}
    assert ask(False, method, path, own).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [FETCH, SISTER, {"Origin": EVIL}, {"Origin": "null"}, {"Origin": "http://127.0.0.1:1"}, {**GOES, "Origin": EVIL}],
    ids=str,
)
def test_at_home_what_another_site_asks_does_not_reach_the_page_unless_it_has_a_token(
    ask: Ask, inside: Inside, headers: Mapping[str, str]
) -> None:
    refused = ask(False, *JOIN, headers)
    assert (refused.status_code, inside.reached) == (403, [])
    assert refused.headers["Content-Security-Policy"] == "frame-ancestors 'self'"
    assert ask(False, *JOIN, {**headers, "Authorization": "Bearer hf_bob"}).status_code == 200


def test_at_home_only_names_of_this_machine_and_those_that_were_given_are_answered(ask: Ask, inside: Inside) -> None:
    for host in ("127.0.0.1:7860", "localhost", "[::1]:7860", "models.lan", "MODELS.lan:7860", "gpu-box.example"):
        assert ask(False, "GET", "/", {"Host": host}).status_code == 200, host
    reached = len(inside.reached)
    for host in ("evil.example", "models.lan.evil.example", "lan", "10.0.0.1", "127.0.0.1.evil.example", SPACE, "["):
        assert ask(False, "GET", "/", {"Host": host}).status_code == 421, host
    assert len(inside.reached) == reached


@promise("docs/security.md#make-links-lead-to-a-host")
def test_no_link_leads_to_a_name_that_a_visitor_says_the_page_has(ask: Ask, inside: Inside) -> None:
    """Gradio puts what a proxy says in `X-Forwarded-Host` before its links."""
    believed = {
        True: (SPACE, SPACE.upper(), "models.example", "models.example:443"),
        False: ("models.lan", "127.0.0.1:7860", "localhost"),
    }
    others = ("evil.example", "[::1", f"{SPACE}.evil.example", "10.0.0.1")
    refused = {True: (*others, "127.0.0.1:7860", "localhost", "[::1]", "models.lan"), False: (*others, SPACE)}
    for on_space in (True, False):
        for host in (*believed[on_space], *refused[on_space]):
            assert ask(on_space, "GET", "/", {"X-Forwarded-Host": host}).status_code == 200
            told = inside.reached[-1].get("x-forwarded-host")
            assert told == (host if host in believed[on_space] else None), (on_space, host)


def test_only_the_hub_may_show_a_space_in_a_frame_and_nobody_the_page_at_home(ask: Ask) -> None:
    for on_space, others in ((True, " https://huggingface.co"), (False, "")):
        for path in ("/", "/nothing"):
            policies = ask(on_space, "GET", path, {}).headers.get_list("Content-Security-Policy")
            assert policies == [f"frame-ancestors 'self'{others}"]
