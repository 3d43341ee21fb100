"""Write into the page what its link opens: the title, the preview, and what to hide until it is laid out."""

import re
from collections.abc import Callable
from contextlib import suppress
from html import escape

from starlette.datastructures import MutableHeaders, QueryParams
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sharding.core.errors import ShardingError
from sharding.page.goals import GOALS
from sharding.page.links import Wish, read_wish
from sharding.page.site import Site
from sharding.storage.names import parse_address

NAME = "Shard My Repo"
_HOME = "Get a model in the form you need: smaller files, one file, another dtype. Every tensor is proved identical."
_OTHERS = re.compile(rb'<meta\s+(?:property="og:|name="twitter:)[^>]*>\s*', re.ASCII)
_NAME = re.compile(r"[\w./@-]{1,200}", re.ASCII)
_HEAD, _BODY = b"<head>", b"<body"


class Preview:
    """An ASGI application around the page's own. It changes nothing but the head of the page itself.

    A preview holds only what its link says. It asks no Hub, so it reveals nothing of a private repo.
    """

    def __init__(self, app: ASGIApp, site: Site) -> None:
        """Pass requests on to `app`, the page at `site`."""
        self._app = app
        self._site = site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and write the preview into the answer if that is the page."""
        if scope["type"] != "http" or scope["path"] != "/" or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        wish = read_wish(dict(QueryParams(scope["query_string"])))
        image = self._image_of(wish)
        await self._app(scope, receive, _rewriting(send, lambda page: opening(page, wish, image)))

    def _image_of(self, wish: Wish) -> str:
        """Return the address of the picture for `wish`, "" if the page has no address that other sites can open."""
        result = name_in(wish.result)
        return (result and self._site.certificate(result)) or self._site.picture


def preview_of(wish: Wish) -> tuple[str, str]:
    """Return the title and the description of what a link opens.

    >>> preview_of(Wish(result="me/model"))[0]
    'me/model · Shard My Repo'
    """
    if result := name_in(wish.result):
        return f"{result} · {NAME}", "A copy of a model. See what is proved of it, and have every byte checked."
    if (original := name_in(wish.compare)) and (copy := name_in(wish.against)):
        text = "Two models compared: names, shapes and dtypes of their tensors, and the hashes of their files."
        return f"{copy} and {original} · {NAME}", text
    if repo := name_in(wish.repo):
        return f"{repo} · {NAME}", "The plan for a copy: its files, what the job takes, and where the model fits."
    if wish.goal in GOALS:
        return f"{GOALS[wish.goal].title} · {NAME}", GOALS[wish.goal].words
    return NAME, _HOME


def name_in(place: str) -> str:
    """Return the repo that `place` names, with its revision if it names one, or "" for any other text.

    Only plain letters count. Whoever writes a link would otherwise write the title too.
    """
    with suppress(ShardingError):
        repo_id, revision, folder = parse_address(place, "")
        name = f"{repo_id}@{revision}" if revision else repo_id
        name += f"/{folder[:-1]}" if folder else ""
        return name if _NAME.fullmatch(name) else ""
    return ""


def opening(page: bytes, wish: Wish, image: str = "") -> bytes:
    """Return the HTML of the page for `wish`: with its preview instead of any other, and a class on the body.

    The class tells the styles what to hide until the page is laid out.
    """
    title, text = preview_of(wish)
    metas = {"og:type": "website", "og:site_name": NAME, "og:title": title, "og:description": text}
    metas |= {"og:image": image} if image else {}
    tags = "".join(f'<meta property="{name}" content="{escape(value)}" />' for name, value in metas.items())
    tags += f'<meta name="twitter:card" content="{"summary_large_image" if image else "summary"}" />'
    tags += f'<meta name="description" content="{escape(text)}" /><title>{escape(title)}</title>'
    before, head, after = page.partition(_HEAD)
    inside, body, rest = _OTHERS.sub(b"", after).rpartition(_BODY)
    kind = "job" if wish.job else "result" if wish.result else "repo" if wish.repo else ""
    marked = f'{_BODY.decode()} class="opens-{kind}"'.encode() if kind else _BODY
    return before + head + tags.encode() + inside + marked + rest if body else page


def _rewriting(send: Send, rewrite: Callable[[bytes], bytes]) -> Send:
    """Return a `send` that rewrites the body of a whole HTML answer, and passes on any other as it is."""
    start: Message | None = None
    body = bytearray()

    async def answer(message: Message) -> None:
        nonlocal start
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            is_page = message["status"] == 200 and headers.get("content-type", "").startswith("text/html")
            if is_page and "content-encoding" not in headers:
                start = message
                return
        if start is None:
            await send(message)
            return
        body.extend(message.get("body", b""))
        if message.get("more_body"):
            return
        rewritten = rewrite(bytes(body))
        MutableHeaders(scope=start)["content-length"] = str(len(rewritten))
        await send(start)
        await send({"type": "http.response.body", "body": rewritten})

    return answer
