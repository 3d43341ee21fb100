"""Limit the size and time of a Hub's answers, and send a login only to its own Hub."""

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from ipaddress import ip_address
from threading import Lock
from typing import Any

import httpx2
from huggingface_hub.utils import get_session, hf_raise_for_status

from sharding.core.limits import (
    ANSWER_TIMEOUT_SECONDS,
    LEAST_BYTES,
    LONGEST_WAIT_SECONDS,
    MAX_ANSWER_BYTES,
    MAX_ANSWER_VALUES,
    MAX_PAGES,
)
from sharding.core.protocols import Grant
from sharding.core.text import duration, format_bytes
from sharding.storage.hub.answers import BUSY, UNREADABLE, GarbledAnswer, OddAnswer, seconds_asked, stumbles_over_answer
from sharding.storage.hub.refusals import unusable_variable

LONGEST_ANSWER_SECONDS = 300
"""Longest time that a Hub may take to send such an answer. 64 MB arrive in time at 1.7 Mbit/s."""

TOLD_WAIT_SECONDS = 2.0  # Shortest wait that is worth a word.
LISTING_SECONDS = 1800  # Longest time for all pages of a list.
LEAST_SECONDS = 60
"""Time in which at least `LEAST_BYTES` of a file must arrive. If fewer arrive, they are requested again."""

LONGEST_GRANT_SECONDS = 24 * 3600
"""Longest time that a grant is used, even if it states a longer one. The Hub's own are valid for minutes or hours."""

_MARK = "X-Shard-My-Repo-Hub"  # Names the Hub of a request. The caller sets this header, and the hook below removes it.
_OF_HUB, _OF_FILE = "shard_my_repo_hub", "shard_my_repo_file"
"""The marks of a request here: the endpoint of its Hub, and whether its answer is a file. Redirects keep both."""


@dataclass(slots=True)
class _Spent:
    """The cost of the answers to one question, such as all pages of a listing."""

    count: int = 0
    values: int = 0
    pages: int = 0
    request: str = ""  # the one that was answered last
    began: float = field(default_factory=time.monotonic)

    def take(self, chunk: bytes) -> None:
        self.count += len(chunk)
        self.values += chunk.count(b",") + chunk.count(b"[") + chunk.count(b"{")
        if self.count > MAX_ANSWER_BYTES or self.values > MAX_ANSWER_VALUES:
            raise OddAnswer(f"sends more than {format_bytes(MAX_ANSWER_BYTES)} or {MAX_ANSWER_VALUES:,} values")

    def turn_page(self) -> None:
        self.pages += 1
        if self.pages >= MAX_PAGES or time.monotonic() - self.began > LISTING_SECONDS:
            raise OddAnswer(f"sends a list of more than {MAX_PAGES:,} pages, or for more than {LISTING_SECONDS} s")


_SPENT: ContextVar[_Spent | None] = ContextVar("_SPENT", default=None)
_INSTALLING = Lock()
_LOG = logging.getLogger("sharding")
_WAITS: dict[str, float] = {}  # By endpoint: until when its Hub asks to wait, by the steady clock.


def session() -> httpx2.Client:
    """Return the client that huggingface_hub shares, with limits. It is a new one after an error of the network."""
    with _INSTALLING:
        try:
            client = get_session()
        except (OSError, ImportError, ValueError, httpx2.InvalidURL) as error:
            raise unusable_variable(error) from error
        hooks = client.event_hooks
        if _ask not in hooks["request"]:
            client.event_hooks = {"request": [_ask, *hooks["request"]], "response": [_hear, *hooks["response"]]}
    return client


@contextmanager
def one_question() -> Iterator[None]:
    """Count all answers in this block as answers to one question. Raises GarbledAnswer and OddAnswer for odd ones."""
    session()
    before = _SPENT.set(spent := _Spent())
    try:
        yield
    except OddAnswer as error:
        error.request = error.request or spent.request
        raise
    except UNREADABLE as error:
        raise GarbledAnswer(spent.request) from error
    except Exception as error:
        if not (spent.request and stumbles_over_answer(error)):
            raise
        odd = OddAnswer("gives an answer that makes no sense")
        odd.request = spent.request
        raise odd from error
    finally:
        _SPENT.reset(before)


def waiting_seconds(endpoint: str) -> float:
    """Return how much longer the Hub at `endpoint` asks to wait; 0.0 if it does not."""
    return max(0.0, _WAITS.get(endpoint, 0.0) - time.monotonic())


def mark(endpoint: str) -> dict[str, str]:
    """Return the header that marks a request as one to the Hub at `endpoint`. It does not leave this process."""
    return {_MARK: endpoint}


def unmarked(headers: Mapping[str, str]) -> dict[str, str]:
    """Return `headers` without that mark, for a client that has no hooks."""
    return {name: text for name, text in headers.items() if name != _MARK}


def _ask(request: httpx2.Request) -> None:
    """Mark the Hub of a request, and limit how long it waits. Raises OddAnswer if its login would go elsewhere."""
    if endpoint := request.headers.pop(_MARK, None):
        path = request.url.path.removeprefix(httpx2.URL(endpoint).path.rstrip("/"))
        is_file = request.method == "GET" and "/resolve/" in path and not path.startswith("/api/")
        request.extensions |= {_OF_HUB: endpoint, _OF_FILE: is_file}
    if not (endpoint := request.extensions.get(_OF_HUB)):
        return
    waits = {"connect": None, "read": None, "write": None} | request.extensions.get("timeout", {})
    bounded = {phase: ANSWER_TIMEOUT_SECONDS if seconds is None else seconds for phase, seconds in waits.items()}
    request.extensions["timeout"] = bounded  # some methods of the client ask for no limit
    if "Authorization" in request.headers and not _is_own(request.url, endpoint):
        raise OddAnswer(f"asks for the login at another address, {request.url.host}, which does not get it")


def _hear(response: httpx2.Response) -> None:
    """Limit the body of an answer, and the wait that its header asks for. Raises OddAnswer, and the client's errors."""
    request = response.request
    endpoint = request.extensions.get(_OF_HUB)
    if endpoint is None:  # from other code in this process
        return
    spent = _SPENT.get() or _Spent()
    spent.request = f"{request.method} {request.url.path}"
    encoding = response.headers.get("Content-Encoding", "identity")
    if not (response.is_success and request.extensions[_OF_FILE]):
        response.headers.pop("Content-Encoding", None)
        response.stream = _Body(response.stream, partial(_answer, encoding=encoding, spent=spent))
    elif encoding != "identity":  # its bytes are counted as they arrive
        raise OddAnswer(f"sends a file encoded as {encoding[:20]!r}, although this tool asked for plain bytes")
    else:
        response.stream = _Body(response.stream, _file)
    asked = (seconds_asked(response.headers) or 0) if response.status_code in BUSY else 0
    if asked > LONGEST_WAIT_SECONDS:
        hf_raise_for_status(response)  # the client itself would sleep as long as the header asks
    if asked >= TOLD_WAIT_SECONDS:
        if not waiting_seconds(endpoint):  # else another reader has said so
            _LOG.warning("%s asks to wait %s.", endpoint, duration(asked))
        _WAITS[endpoint] = time.monotonic() + asked
    # The address of a listing's next page becomes absolute, and must be on the same Hub.
    if following := response.links.get("next", {}).get("url"):
        try:
            url = request.url.join(following)
            is_own = _is_own(url, endpoint)
        except (httpx2.InvalidURL, ValueError) as error:
            raise OddAnswer("names a next page whose address is not valid") from error
        if not is_own:
            raise OddAnswer(f"names a next page at another address, {url.host or url.scheme}, which is not followed")
        response.headers["Link"] = f'<{url}>; rel="next"'
        spent.turn_page()


def _is_own(url: httpx2.URL, endpoint: str) -> bool:
    """Return whether `url` has the scheme, host and port of `endpoint`, or is the same host over TLS."""
    own = httpx2.URL(endpoint)
    is_upgrade = (own.scheme, url.scheme, own.host) == ("http", "https", url.host)
    is_same = (url.scheme, url.host, url.port) == (own.scheme, own.host, own.port)
    return is_same or (is_upgrade and own.port is None and url.port is None)


def checked_grant(grant: Grant, endpoint: str) -> Grant:
    """Return `grant` of the Hub at `endpoint`, limited to a day. Raises OddAnswer if a field is not valid."""
    place, token, expires = grant.endpoint, grant.token, grant.expires
    # Only a Hub on this machine may name a folder as its store.
    if not isinstance(place, str) or not (_is_address(place) or _is_here(httpx2.URL(endpoint).host)):
        raise OddAnswer(f"names {place!r:.100} as its store, which is not an address")
    if not isinstance(token, str) or not re.fullmatch(r"[!-~]{1,20000}", token):
        raise OddAnswer("grants access to its store with a token that is not valid")
    if not isinstance(expires, int) or isinstance(expires, bool) or expires <= 0:
        raise OddAnswer(f"grants access to its store until {expires!r:.40}, which is not a time")
    return replace(grant, expires=min(expires, int(time.time()) + LONGEST_GRANT_SECONDS))


def checked_place(place: str) -> str:
    """Return the address of a file, as a Hub names it. Raises OddAnswer if it is not an address."""
    if not _is_address(place):
        raise OddAnswer(f"names {place!r:.100} as the place of a file, which is not an address")
    return place


def _is_address(text: str) -> bool:
    try:
        url = httpx2.URL(text)
    except httpx2.InvalidURL:
        return False
    return url.scheme in ("http", "https") and bool(url.host)


def _is_here(host: str) -> bool:
    """Return whether `host` is certainly this machine, without looking up its address."""
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


class _Body(httpx2.SyncByteStream):
    def __init__(self, stream: Any, limit: Callable[[Iterable[bytes]], Iterator[bytes]]) -> None:
        self._stream = stream
        self._limit = limit

    def __iter__(self) -> Iterator[bytes]:
        return self._limit(self._stream)

    def close(self) -> None:
        self._stream.close()


def _answer(chunks: Iterable[bytes], encoding: str, spent: _Spent) -> Iterator[bytes]:
    """Yield an answer, decoded. Bytes count as they arrive too, because some of them may decode to nothing."""

    def arriving() -> Iterator[bytes]:
        waited, count = 0.0, 0
        for seconds, chunk in _timed(chunks):
            waited, count = waited + seconds, count + len(chunk)
            if waited > LONGEST_ANSWER_SECONDS:
                raise OddAnswer(f"does not finish its answer within {LONGEST_ANSWER_SECONDS} s")
            if count > MAX_ANSWER_BYTES:
                raise OddAnswer(f"sends an answer of more than {format_bytes(MAX_ANSWER_BYTES)}")
            yield chunk

    for chunk in httpx2.Response(200, headers={"Content-Encoding": encoding}, content=arriving()).iter_bytes():
        spent.take(chunk)
        yield chunk


def _file(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a file. It may take any time, as long as it sends `LEAST_BYTES` in `LEAST_SECONDS`."""
    waited, count = 0.0, 0
    for seconds, chunk in _timed(chunks):
        waited, count = waited + seconds, count + len(chunk)
        if waited > LEAST_SECONDS:
            if count < LEAST_BYTES:
                raise TimeoutError(f"it sent fewer than {format_bytes(LEAST_BYTES)} in {LEAST_SECONDS} s")
            waited, count = 0.0, 0
        yield chunk


def _timed(chunks: Iterable[bytes]) -> Iterator[tuple[float, bytes]]:
    """Yield the seconds that this side waited for each chunk, and the chunk. The reader's own time does not count."""
    began = time.monotonic()
    for chunk in chunks:
        yield time.monotonic() - began, chunk
        began = time.monotonic()
