"""Answer requests for the badge of a result, or for its picture in link previews.

Both are for other sites, so both show only what a visitor without a login can see.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import anyio
from starlette.datastructures import QueryParams
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sharding.core.errors import Refused, ShardingError
from sharding.core.limits import CACHED_SECONDS, PICTURE_SECONDS
from sharding.core.text import count, format_bytes, source_name
from sharding.desk.patience import patient
from sharding.desk.questions import Questions
from sharding.drawing.certificate import Certificate, Step, draw_badge, paint_certificate
from sharding.page.links import read_wish
from sharding.page.result_panels import CLAIMED, FITS, READ, rung_of
from sharding.page.serving.preview import name_in
from sharding.page.site import BADGE, CERTIFICATE
from sharding.report.fetch import Result
from sharding.verify.trust import Trust

Judge = Callable[[str, str | None], tuple[Result, Trust]]
"""Returns the result in a repo as the owner of a token may see it, and how far you can trust it."""

_TITLES = ("Claimed", "Structure matches", "Every byte read")
_VERDICTS = {CLAIMED: "only claimed", FITS: "structure matches", READ: "every byte read"}
_SENTENCES = {CLAIMED: "Claims to be a copy of", FITS: "Matches the structure of", READ: "A copy of"}
_NOTE = "Code, configuration and tokenizer are not checked."
_ALWAYS = {"X-Content-Type-Options": "nosniff"}
_KEPT = {**_ALWAYS, "Cache-Control": f"public, max-age={CACHED_SECONDS}"}
_NOT_KEPT = {**_ALWAYS, "Cache-Control": "no-store"}
_NO_SCRIPTS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox"}


@dataclass(frozen=True, slots=True)
class _Drawn:
    badge: bytes
    certificate: bytes


class Pictures:
    """An ASGI application around the page's own. It asks the Hub as nobody, whoever sends the request.

    It judges one result at a time, and keeps what it drew for ten minutes. It answers 404 for all that a visitor
    without a login cannot see, and 503 if too many results wait.
    """

    def __init__(self, app: ASGIApp, judge: Judge) -> None:
        """Pass other requests on to `app`."""
        self._app, self._judge = app, judge
        self._questions = Questions()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for a picture, and pass any other on."""
        wanted = scope["type"] == "http" and scope["path"] in (BADGE, CERTIFICATE)
        if not wanted or scope["method"] not in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
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
                drawn = await patient(self._ask)(place) if place else None
        except (Refused, TimeoutError):
            again = {"Retry-After": f"{PICTURE_SECONDS:.0f}"}
            return PlainTextResponse("This page is busy. Try again later.\n", 503, _NOT_KEPT | again)
        if drawn is None:
            return PlainTextResponse("No result can be seen here without a login.\n", 404, _NOT_KEPT)
        if path == BADGE:
            return Response(drawn.badge, headers=_KEPT | _NO_SCRIPTS, media_type="image/svg+xml")
        return Response(drawn.certificate, headers=_KEPT, media_type="image/png")

    def _ask(self, place: str) -> _Drawn | None:
        # All who ask for one result wait for the same answer, so the place itself is the caller.
        return self._questions.ask(place, place, partial(self._draw, place))

    def _draw(self, place: str) -> _Drawn | None:
        """Return both pictures of a result, None if nobody can see it. Answers are kept, so no error is one."""
        try:
            certificate = certificate_of(*self._judge(place, None))
        except ShardingError:
            return None
        return _Drawn(draw_badge(certificate).encode(), paint_certificate(certificate))


def certificate_of(result: Result, trust: Trust) -> Certificate:
    """Return what badge and picture say of a result. Of a report that is contradicted they repeat nothing."""
    report = result.report
    if trust.level == "contradicted" or not report.verification.identical:
        sentence = "This copy does not match its report, or its source."
        return Certificate(result.repo_id, "does not match", "bad", sentence)
    rung, source = rung_of(trust), report.source
    is_good = rung.reached == READ and not report.verification.unstated and not trust.caveats
    state = "at" if source.kind == "hub" else "in the state"
    cast = f", cast to {report.plan.dtype}" if report.plan.dtype != "keep" else ""
    cast = f", dequantized to {report.plan.dtype}" if report.plan.dequantized else cast
    name = f"{source_name(source.kind, source.repo_id)} {state} {source.revision[:12]}{cast}"
    size = format_bytes(max(shard.bytes for shard in report.shards))
    files = f"{count(len(report.shards), 'file')} of {'at most ' if len(report.shards) > 1 else ''}{size}"
    # Headers and files were compared with these numbers, unlike with most others of a report.
    tensors = count(len(report.plan.weight_map), "tensor")
    reached = [number <= rung.reached for number in (CLAIMED, FITS, READ)]
    same = "names, shapes and dtypes" if report.plan.dtype == "keep" else "names and shapes"
    steps = zip(_TITLES, ("its report says so", same, "by this page"), reached, strict=True)
    return Certificate(
        result.repo_id,
        _VERDICTS[rung.reached],
        "good" if is_good else "plain",
        f"{_SENTENCES[rung.reached]} {name}.",
        (files, tensors, format_bytes(report.plan.total_bytes)),
        tuple(Step(title, words if is_there else "not yet", is_there) for title, words, is_there in steps),
        _NOTE,
    )
