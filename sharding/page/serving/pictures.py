"""Answer requests for the badge of a result, or for its picture in link previews.

Both are for other sites, so both show only what a visitor without a login can see.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Generic, TypeVar

import anyio
from starlette.datastructures import QueryParams
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sharding.core.errors import DamagedError, ShardingError, SourceError, UsageError
from sharding.core.limits import CACHED_ANSWERS, CACHED_SECONDS
from sharding.core.text import count, format_bytes, source_name, unreached_sentence
from sharding.desk.patience import patient
from sharding.desk.questions import Questions
from sharding.drawing.certificate import Certificate, Step, draw_badge, paint_certificate
from sharding.page.links import read_wish
from sharding.page.result_panels import CLAIMED, FITS, READ, adapter_name, is_proved, rung_of
from sharding.page.serving.preview import name_in
from sharding.page.site import BADGE, CERTIFICATE
from sharding.report.files import Result
from sharding.storage.hub.retry import UNREADABLE, OddAnswer, may_pass
from sharding.verify.trust import Trust

PICTURE_SECONDS = 20.0
"""Longest time that a request waits for the badge or the picture of a result. What is drawn later is for the next."""


_T = TypeVar("_T")

Judge = Callable[[str, str | None], tuple[Result, Trust]]
"""Returns the result in a repo as the owner of a token may see it, and how far you can trust it."""

_TITLES = ("Claimed", "Structure matches", "Every byte read")
_VERDICTS = {CLAIMED: "only claimed", FITS: "structure matches", READ: "every byte read"}
_SENTENCES = {CLAIMED: "Claims to be a copy of", FITS: "Matches the structure of", READ: "A copy of"}
_UNSURE = "read, with caveats", "Matches what was read from", "read, but not all is known"
"""The verdict, the sentence and the words of the last step if every byte was read, but there are caveats."""
_NOTE = "Code, configuration and tokenizer are not checked."
_UNSTATED = "The Hub states no hash for some of the files that were read."
_UNSEEN_SECONDS = 60
_UNSEEN_PLACES = 256
"""The page remembers for this time, and for this number of places, that it found no result there."""
_ALWAYS = {"X-Content-Type-Options": "nosniff"}
_NOT_KEPT = {**_ALWAYS, "Cache-Control": "no-store"}
_NO_SCRIPTS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox"}


@dataclass(frozen=True, slots=True)
class _Drawn:
    badge: bytes
    certificate: bytes


class Pictures:
    """An ASGI application around the page's own. It asks the Hub as nobody, whoever sends the request.

    It judges one result at a time, and keeps what it drew for ten minutes. It answers 404 for commits that may not be
    the repo's, and for all that a visitor without a login cannot see. It remembers the latter for a minute. If too many
    results wait or the Hub fails, it answers 503 and remembers nothing.
    """

    def __init__(self, app: ASGIApp, judge: Judge, clock: Callable[[], float] = time.monotonic) -> None:
        """Pass other requests on to `app`. `clock` returns seconds."""
        self._app, self._judge, self._clock = app, judge, clock
        self._questions = Questions()
        self._seen = _Memory[_Drawn](CACHED_SECONDS, CACHED_ANSWERS, clock)
        self._unseen = _Memory[None](_UNSEEN_SECONDS, _UNSEEN_PLACES, clock)  # apart: no junk drives a picture out

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
            return Response(kept.answer.badge, headers=headers | _NO_SCRIPTS, media_type="image/svg+xml")
        return Response(kept.answer.certificate, headers=headers, media_type="image/png")

    def _ask(self, place: str) -> "_Kept[_Drawn] | None":
        if kept := self._seen.get(place):
            return kept
        if self._unseen.get(place):
            return None
        # All who ask for one result wait for the same answer, so the place itself is the caller.
        return self._questions.ask(place, place, partial(self._draw, place), weight=None)

    def _draw(self, place: str) -> "_Kept[_Drawn] | None":
        """Keep and return both pictures of a result, None if nobody can see it.

        Raises ShardingError, and keeps nothing, if that may be otherwise a moment later.
        """
        try:
            certificate = self._certificate(place)
        except ShardingError as error:
            if not _is_lasting(error):
                raise
            certificate = None
        if certificate is None:
            self._unseen.keep(place, None)
            return None
        drawn = _Drawn(draw_badge(certificate).encode(), paint_certificate(certificate))
        return self._seen.keep(place, drawn)

    def _certificate(self, place: str) -> Certificate | None:
        """Return what can be said of the repo at `place`, None if its commit may not be the repo's. Raises as `judge`.

        Anybody can open a pull request in a repo of somebody else, and its commits have ids like all others.
        """
        revision = place.partition("@")[2]
        if revision.startswith("refs/pr/"):
            return None
        result, trust = self._judge(place, None)
        if revision in ("", "main"):
            return certificate_of(result, trust, revision)
        is_shortened = revision != result.revision and result.revision.startswith(revision.lower())
        # `lowered` keeps "contradicted", so nothing shows whether a branch leads to such a commit.
        is_strange = trust.level == "contradicted" or _is_unreached(result, trust)
        return None if is_shortened or is_strange else certificate_of(result, trust, revision)


@dataclass(frozen=True, slots=True)
class _Kept(Generic[_T]):
    answer: _T
    until: float


class _Memory(Generic[_T]):
    """The last `most` answers, each for `seconds`. One thread keeps them, any thread gets them."""

    def __init__(self, seconds: float, most: int, clock: Callable[[], float]) -> None:
        self._seconds, self._most, self._clock = seconds, most, clock
        self._kept = dict[str, _Kept[_T]]()

    def get(self, place: str) -> _Kept[_T] | None:
        kept = self._kept.get(place)
        return kept if kept and self._clock() < kept.until else None

    def keep(self, place: str, answer: _T) -> _Kept[_T]:
        self._kept.pop(place, None)
        while len(self._kept) >= self._most:
            del self._kept[next(iter(self._kept))]
        kept = self._kept[place] = _Kept(answer, self._clock() + self._seconds)
        return kept


def _is_lasting(error: ShardingError) -> bool:
    """Return whether there is nothing to see, rather than a Hub or a machine that fails at the moment."""
    if not isinstance(error, SourceError | UsageError) or isinstance(error, DamagedError):
        return False
    cause = error.__cause__
    may_end = isinstance(cause, Exception) and not isinstance(cause, UNREADABLE) and may_pass(cause)
    return not may_end and not isinstance(cause, OddAnswer)


def _is_unreached(result: Result, trust: Trust) -> bool:
    return unreached_sentence(f"{result.repo_id}@{result.revision}") in trust.reasons


def certificate_of(result: Result, trust: Trust, revision: str = "") -> Certificate:
    """Return what badge and picture say of a result. Of a report that is contradicted they repeat nothing.

    `revision` is the one that was asked for, "" for main.
    """
    report = result.report
    if trust.level == "contradicted" or not report.verification.holds:
        sentence = "This copy does not match its report, or its source."
        return Certificate(result.repo_id, "does not match", "bad", sentence, revision=revision)
    rung, source = rung_of(trust), report.source
    is_good = is_proved(report, trust)
    is_unsure = rung.reached == READ and not is_good
    verdict, relation, _ = _UNSURE if is_unsure else (_VERDICTS[rung.reached], _SENTENCES[rung.reached], "")
    state = "at" if source.kind == "hub" else "in the state"
    cast = f", cast to {report.plan.dtype}" if report.plan.dtype != "keep" else ""
    cast = f", dequantized to {report.plan.dtype}" if report.plan.dequantized else cast
    cast = f" merged with {adapter_name(report.plan.merged)}{cast}" if report.plan.merged else cast
    name = f"{source_name(source.kind, source.ref.name)} {state} {source.revision[:12]}{cast}"
    size = format_bytes(max(shard.bytes for shard in report.shards))
    files = f"{count(len(report.shards), 'file')} of {'at most ' if len(report.shards) > 1 else ''}{size}"
    # Headers and files were compared with these numbers, unlike with most others of a report.
    tensors = count(len(report.plan.weight_map), "tensor")
    climbed = FITS if is_unsure else rung.reached
    reached = [number <= climbed for number in (CLAIMED, FITS, READ)]
    missing = _UNSURE[2] if is_unsure else "not yet"
    same = "names, shapes and dtypes" if report.plan.dtype == "keep" else "names and shapes"
    steps = zip(_TITLES, ("its report says so", same, "by this page"), reached, strict=True)
    return Certificate(
        result.repo_id,
        verdict,
        "good" if is_good else "plain",
        f"{relation} {name}.",
        (files, tensors, format_bytes(report.plan.total_bytes)),
        tuple(Step(title, words if is_there else missing, is_there) for title, words, is_there in steps),
        (*trust.caveats, _UNSTATED)[0] if is_unsure else _NOTE,
        revision,
    )
