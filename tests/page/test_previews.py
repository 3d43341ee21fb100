"""A link to the page has the title and preview of what it opens, and shows nothing else on its way."""

import re
from html.parser import HTMLParser

import httpx
import pytest
from starlette.responses import HTMLResponse
from starlette.types import Receive, Scope, Send

from sharding.page.links import Wish, read_wish
from sharding.page.serving.pictures import Preview, opening
from sharding.page.site import Site as Place
from tests.conftest import in_a_loop
from tests.page.site import Site, ask

SHARED = "https://huggingface.co/spaces/carol/shard-my-repo/resolve/main/assets/result.png"
PAGE = b'<html><head><meta\n property="og:title" content="Gradio" /><meta name="twitter:card" content="x"/></head><body\nstyle="a">'


class Head(HTMLParser):
    """The title and the metas of a page, and the classes of its body."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.metas: dict[str, list[str]] = {}
        self.title = self.body = ""
        self._tags: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = {name: value or "" for name, value in attrs}
        self._tags.append(tag)
        if tag == "meta" and (name := said.get("property") or said.get("name")):
            self.metas.setdefault(name, []).append(said["content"])
        if tag == "body":
            self.body = said.get("class", "")

    def handle_data(self, data: str) -> None:
        self.title += data if self._tags and self._tags[-1] == "title" and not self.title else ""


@pytest.mark.parametrize(
    ("wish", "title", "body"),
    [
        (Wish(), "Shard My Repo", "opens-home"),
        (Wish(goal="one-file"), "One file · Shard My Repo", "opens-goal"),
        (Wish(repo="me/model"), "me/model · Shard My Repo", "opens-repo"),
        (Wish(result="me/copy@v2"), "me/copy@v2 · Shard My Repo", "opens-result"),
        (Wish(job="x/me/copy"), "Shard My Repo", "opens-job"),  # the link of a job is its owner's own
    ],
)
def test_a_link_has_one_title_and_one_preview(wish: Wish, title: str, body: str) -> None:
    head = Head(opening(PAGE, wish, "https://host/picture.png").decode())
    assert (head.title, head.body) == (title, body)
    assert head.metas["og:title"] == [title]
    assert head.metas["og:image"] == ["https://host/picture.png"]
    assert head.metas["twitter:card"] == ["summary_large_image"]
    assert all(len(values) == 1 for values in head.metas.values())


def test_no_text_that_is_no_repo_becomes_a_title() -> None:
    for text in ("You won! Call 123", "https://evil.example/a/b", 'a/b@"><b>'):
        for wish in (Wish(result=text), Wish(repo=text)):
            (title,) = Head(opening(PAGE, wish).decode()).metas["og:title"]
            assert title in ("Shard My Repo", *([f"{text} · Shard My Repo"] * text.startswith("a/b@"))), text


@pytest.mark.parametrize(
    ("query", "on_space", "image"),
    [
        ("result=me/copy", True, "https://x.hf.space/certificate.png?result=me/copy"),
        ("result=me/copy@v2", True, "https://x.hf.space/certificate.png?result=me/copy@v2"),
        ("result=You+won!", True, SHARED),
        ("repo=me/model", True, SHARED),
        ("result=me/copy", False, None),
    ],
)
def test_the_link_of_a_result_shows_its_certificate_where_other_sites_can_open_it(
    query: str, on_space: bool, image: str | None
) -> None:
    site = Place("https://hub", "carol/shard-my-repo", "https://x.hf.space") if on_space else Place("https://hub")

    async def page(scope: Scope, receive: Receive, send: Send) -> None:
        await HTMLResponse(PAGE)(scope, receive, send)

    async def asked() -> str:
        transport = httpx.ASGITransport(Preview(page, site))
        async with httpx.AsyncClient(transport=transport, base_url="http://page") as client:
            return (await client.get(f"/?{query}")).text

    metas = Head(in_a_loop(asked())).metas
    assert metas.get("og:image") == ([image] if image else None)
    assert metas["twitter:card"] == ["summary_large_image" if image else "summary"]


def test_the_served_page_has_the_preview_of_its_link_and_asks_no_hub(space: Site) -> None:
    """A repo that is private, or not there at all, has the same preview as any other."""
    for repo in ("alice/nothing-at-all", "bob/small"):
        answer = ask(space, "GET", f"/?result={repo}")
        head = Head(answer.text)
        assert int(answer.headers["content-length"]) == len(answer.content)
        assert head.metas["og:title"] == [f"{repo} · Shard My Repo"]
        assert "carol/shard-my-repo" in head.metas["og:image"][0]
        assert head.body == "opens-result"
        assert "Gradio" not in " ".join(value for values in head.metas.values() for value in values)
    assert re.match("text/plain|application/json", ask(space, "GET", "/config").headers["content-type"])
    assert "content-length" in ask(space, "HEAD", "/?result=a/b").headers


def test_only_true_asks_for_a_private_copy() -> None:
    asked = {text: read_wish({"repo": "a/b", "private": text}).private for text in ("true", "false", "", "1", "True")}
    assert [text for text, private in asked.items() if private] == ["true"]
