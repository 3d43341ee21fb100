"""A link to the page has the title and preview of what it opens, and shows nothing else on its way."""

import re
from html.parser import HTMLParser

import pytest

from sharding.page.links import Wish
from sharding.page.serving.preview import opening
from tests.page.conftest import Site, ask

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
        (Wish(), "Shard My Repo", ""),
        (Wish(goal="one-file"), "One file · Shard My Repo", ""),
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


@pytest.mark.parametrize(
    "evil", ['"><script>alert(1)</script>', "You won! Call 123", "https://evil.example/a/b", 'a/b@"><b>']
)
@pytest.mark.parametrize("kind", ["result", "repo"])
def test_no_text_that_is_no_repo_becomes_a_title_or_markup(evil: str, kind: str) -> None:
    page = opening(PAGE, Wish(**{kind: evil})).decode()
    assert "<script" not in page and "<b>" not in page
    (title,) = Head(page).metas["og:title"]
    assert title in ("Shard My Repo", f"{evil} · Shard My Repo")
    assert title == "Shard My Repo" or evil.startswith("a/b@")


def test_the_served_page_has_the_preview_of_its_link_and_asks_no_hub(space: Site) -> None:
    """A repo that is private, or not there at all, has the same preview as any other."""
    for repo in ("alice/nothing-at-all", "bob/small"):
        answer = ask(space, "GET", f"/?result={repo}", {})
        head = Head(answer.text)
        assert int(answer.headers["content-length"]) == len(answer.content)
        assert head.metas["og:title"] == [f"{repo} · Shard My Repo"]
        assert "carol/shard-my-repo" in head.metas["og:image"][0]
        assert head.body == "opens-result"
        assert "Gradio" not in " ".join(value for values in head.metas.values() for value in values)
    assert re.match("text/plain|application/json", ask(space, "GET", "/config", {}).headers["content-type"])
    assert "content-length" in ask(space, "HEAD", "/?result=a/b", {}).headers
