"""Answer what other sites ask for: the preview of a link, the badge and the picture of a result."""

import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from html import escape
from math import ceil
from typing import Any

import anyio
from starlette.datastructures import QueryParams
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from typing_extensions import override

from sharding.core.errors import DamagedError, ShardingError, SourceError, UsageError
from sharding.core.limits import CACHED_ANSWERS, CACHED_SECONDS
from sharding.core.made import keeps_sizes
from sharding.core.text import count, format_bytes, unreached_sentence
from sharding.desk.questions import Questions, patient
from sharding.drawing.certificate import Certificate, Step, draw_badge, paint_certificate
from sharding.page.form import first_view
from sharding.page.goals import GOALS, SAME
from sharding.page.links import Wish, read_wish
from sharding.page.result_panels import CLAIMED, FITS, READ, STATED, TITLES, change_of, is_proved, is_told, rung_of
from sharding.page.site import BADGE, CERTIFICATE, Site
from sharding.report.files import Result
from sharding.storage.hub.answers import UNREADABLE, OddAnswer, may_pass
from sharding.storage.names import parse_address
from sharding.verify.trust import Trust

NAME = "Shard My Repo"
_HOME = "Get a model in the form you need: smaller files, one file, another dtype. Every tensor is proved identical."
_OTHERS = re.compile(rb'<meta\s+(?:property="og:|name="twitter:)[^>]*>\s*', re.ASCII)
_NAME = re.compile(r"[\w./@-]{1,200}", re.ASCII)
_HEAD, _BODY = b"<head>", b"<body"


class Preview(BaseHTTPMiddleware):
    """Writes previews into the page. They say only what the link says, so they reveal no private repo."""

    def __init__(self, app: ASGIApp, site: Site) -> None:
        super().__init__(app)
        self._site = site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and write the preview into the answer if that is the page."""
        is_page = scope["type"] == "http" and scope["path"] == "/" and scope["method"] == "GET"
        await (super().__call__ if is_page else self.app)(scope, receive, send)

    @override
    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        answer = await call_next(request)
        is_html = answer.status_code == 200 and answer.headers.get("content-type", "").startswith("text/html")
        if not is_html or "content-encoding" in answer.headers:
            return answer
        wish = read_wish(request.query_params)
        result = name_in(wish.result)
        image = (result and self._site.drawn(CERTIFICATE, result)) or self._site.picture
        page = b"".join([part async for part in answer.body_iterator])  # type: ignore[attr-defined]
        rewritten = Response(opening(page, wish, image), headers=answer.headers)
        rewritten.headers["content-length"] = str(len(rewritten.body))
        return rewritten


def preview_of(wish: Wish) -> tuple[str, str]:
    """Return the title and the description of what a link opens."""
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
    """Return the repo that `place` names in plain letters, or "": whoever writes a link would write the title too."""
    with suppress(ShardingError):
        name = parse_address(place, "").text
        return name if _NAME.fullmatch(name) else ""
    return ""


def opening(page: bytes, wish: Wish, image: str = "") -> bytes:
    """Return the page with the preview of `wish`, a class for what it opens, and a first view."""
    title, text = preview_of(wish)
    metas = {"og:type": "website", "og:site_name": NAME, "og:title": title, "og:description": text}
    metas |= {"og:image": image} if image else {}
    tags = "".join(f'<meta property="{name}" content="{escape(value)}" />' for name, value in metas.items())
    tags += f'<meta name="twitter:card" content="{"summary_large_image" if image else "summary"}" />'
    tags += f'<meta name="description" content="{escape(text)}" /><title>{escape(title)}</title>'
    before, head, after = page.partition(_HEAD)
    inside, body, rest = _OTHERS.sub(b"", after).rpartition(_BODY)
    kind = "job" if wish.job else "result" if wish.result else "repo" if wish.repo else ""
    kind = kind or ("same" if wish.goal == SAME or wish.compare or wish.against else "goal" if wish.goal else "home")
    first = first_view(wish.goal, is_home=kind in ("home", "goal"))
    attributes, _, rest = rest.partition(b">")
    marked = f'{_BODY.decode()} class="opens-{kind}"'.encode() + attributes + b">" + first.encode()
    return before + head + tags.encode() + inside + marked + rest if body else page


PICTURE_SECONDS = 20.0  # Longest wait for a badge or picture. What is drawn later is for the next.

Judge = Callable[[str, str | None], tuple[Result, Trust]]  # The result in a repo as a token shows it, and its trust.
_SAID = {
    CLAIMED: ("only claimed", "Claims to be a copy of"),
    FITS: ("structure matches", "Matches the structure of"),
    STATED: ("hashes match", "By the Hub's hashes, a copy of"),
    READ: ("every byte read", "A copy of"),
}
_UNSURE, _MISSING = ("read, with caveats", "Matches what was read from"), "read, but not all is known"
"""The verdict, the sentence and the words of the last step if every byte was read, but there are caveats."""
_NOTE = "Code, configuration and tokenizer are not checked."
_UNSTATED = "The Hub states no hash for some of the files that were read."
_UNSEEN_SECONDS = 60
_UNSEEN_PLACES = 256  # The page remembers for this time, and for this number of places, that it found no result there.
_ALWAYS = {"X-Content-Type-Options": "nosniff"}
_NOT_KEPT = {**_ALWAYS, "Cache-Control": "no-store"}
_NO_SCRIPTS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox"}


@dataclass(frozen=True, slots=True)
class _Drawn:
    badge: bytes
    certificate: bytes
    until: float


class Pictures:
    """An ASGI application around the page's own. It asks the Hub as nobody, whoever sends the request. It answers 404
    for what nobody can see without a login, and 503 while the Hub fails or too many wait."""

    def __init__(self, app: ASGIApp, judge: Judge, clock: Callable[[], float] = time.monotonic) -> None:
        self._app, self._judge, self._clock = app, judge, clock
        self._questions = Questions()
        self._seen: dict[str, _Drawn] = {}
        self._unseen: dict[str, float] = {}  # until when. Apart: no junk drives a picture out

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for a picture, and pass any other on."""
        wanted = scope["type"] == "http" and scope["path"] in (BADGE, CERTIFICATE)
        if not wanted or scope["method"] not in ("GET", "HEAD"):
            return await self._app(scope, receive, send)
        wish = read_wish(dict(QueryParams(scope["query_string"])))
        response = await self._answer(scope["path"], name_in(wish.result))
        if scope["method"] == "HEAD":
            response.body = b""
        await response(scope, receive, send)

    def close(self) -> None:
        """Judge no more results."""
        self._questions.close()

    async def _answer(self, path: str, place: str) -> Response:
        try:
            with anyio.fail_after(PICTURE_SECONDS):
                kept = await patient(self._ask)(place) if place else None
        except (ShardingError, TimeoutError):
            again = {"Retry-After": f"{PICTURE_SECONDS:.0f}"}
            return PlainTextResponse("This page is busy. Try again later.\n", 503, _NOT_KEPT | again)
        if kept is None:
            return PlainTextResponse("No result can be seen here without a login.\n", 404, _NOT_KEPT)
        # What is left of the ten minutes, so that other caches do not make them twenty.
        left = max(ceil(kept.until - self._clock()), 0)
        headers = {**_ALWAYS, "Cache-Control": f"public, max-age={left}"}
        if path == BADGE:
            return Response(kept.badge, headers=headers | _NO_SCRIPTS, media_type="image/svg+xml")
        return Response(kept.certificate, headers=headers, media_type="image/png")

    def _ask(self, place: str) -> _Drawn | None:
        now, kept = self._clock(), self._seen.get(place)
        if kept and now < kept.until:
            return kept
        if now < self._unseen.get(place, 0.0):
            return None
        # All who ask for one result wait for the same answer, so the place itself is the caller.
        return self._questions.ask(place, place, partial(self._draw, place), weight=None)

    def _draw(self, place: str) -> _Drawn | None:
        """Keep and return both pictures, None if nobody can see them. Raises ShardingError if that may pass."""
        try:
            certificate = self._certificate(place)
        except ShardingError as error:
            if not _is_lasting(error):
                raise
            certificate = None
        if certificate is None:
            _keep(self._unseen, _UNSEEN_PLACES, place, self._clock() + _UNSEEN_SECONDS)
            return None
        badge, picture = draw_badge(certificate).encode(), paint_certificate(certificate)
        drawn = _Drawn(badge, picture, self._clock() + CACHED_SECONDS)
        _keep(self._seen, CACHED_ANSWERS, place, drawn)
        return drawn

    def _certificate(self, place: str) -> Certificate | None:
        """Return what can be said of a repo, None if its commit may be a stranger's. Raises as `judge`."""
        revision = place.partition("@")[2]
        if revision.startswith("refs/pr/"):
            return None
        result, trust = self._judge(place, None)
        is_shortened = revision != result.revision and result.revision.startswith(revision.lower())
        # `lowered` keeps "contradicted", so nothing shows whether a branch leads to such a commit.
        unreached = unreached_sentence(f"{result.repo_id}@{result.revision}")
        is_strange = trust.level == "contradicted" or unreached in trust.reasons
        is_main = revision in ("", "main")
        return certificate_of(result, trust, revision) if is_main or not (is_shortened or is_strange) else None


def _keep(memory: dict[str, Any], most: int, place: str, answer: object) -> None:
    """Keep an answer, and at most `most` of the newest. One thread keeps them, any thread gets them."""
    memory.pop(place, None)
    while len(memory) >= most:
        del memory[next(iter(memory))]
    memory[place] = answer


def _is_lasting(error: ShardingError) -> bool:
    """Return whether there is nothing to see, rather than a Hub or a machine that fails at the moment."""
    if not isinstance(error, SourceError | UsageError) or isinstance(error, DamagedError):
        return False
    cause = error.__cause__
    may_end = isinstance(cause, Exception) and not isinstance(cause, UNREADABLE) and may_pass(cause)
    return not may_end and not isinstance(cause, OddAnswer)


def certificate_of(result: Result, trust: Trust, revision: str = "") -> Certificate:
    """Return what badge and picture say of a result. `revision` is the one that was asked for, "" for main."""
    report = result.report
    if trust.level == "contradicted" or not report.verification.holds:
        sentence = "This copy does not match its report, or its source."
        return Certificate(result.repo_id, "does not match", "bad", sentence, revision=revision)
    reached, source = rung_of(trust), report.source
    is_good = is_proved(report, trust)
    is_unsure = reached == READ and not is_good
    verdict, relation = _UNSURE if is_unsure else _SAID[reached]
    state = "at" if source.place.is_pinned else "in the state"
    relation = "Claims to be made from" if is_told(report, trust) else relation
    name = f"{source.place.words} {state} {source.revision[:12]}{change_of(report, trust)}"
    size = format_bytes(max(shard.bytes for shard in report.shards))
    files = f"{count(len(report.shards), 'file')} of {'at most ' if len(report.shards) > 1 else ''}{size}"
    # Headers and files were compared with these numbers, unlike with most others of a report.
    tensors = count(len(report.plan.weight_map), "tensor")
    climbed = FITS if is_unsure else reached
    missing = _MISSING if is_unsure else "not yet"
    same = "names, shapes and dtypes" if keeps_sizes(report.plan.made) else "names and shapes"
    sample = f"{report.verification.sample} read" if trust.level == "stated" else ""
    steps = zip(TITLES, ("which anyone could write", same, sample, "by this page"), _SAID, strict=True)
    return Certificate(
        result.repo_id,
        verdict,
        "good" if is_good else "plain",
        f"{relation} {name}.",
        (files, tensors, format_bytes(report.plan.total_bytes)),
        tuple(Step(title, words if n <= climbed else missing, n <= climbed) for title, words, n in steps if words),
        (*trust.caveats, _UNSTATED)[0] if is_unsure else _NOTE,
        revision,
    )
