"""Retry what may pass: a busy server, a request to slow down, a broken connection."""

import json
import random
import time
import traceback
from collections.abc import Mapping

import httpx2
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled
from huggingface_hub.utils import parse_ratelimit_headers

from sharding.core.limits import LONGEST_WAIT_SECONDS

NETWORK_TRIES = 6
"""Attempts at a request, and attempts at a read after the last byte arrived."""

NETWORK_WAIT_SECONDS = 0.25
"""Half the wait before the second attempt. The wait doubles with each attempt."""

BUSY = (408, 429, 500, 502, 503, 504)
"""The status of an answer to a request that may succeed later."""

UNREADABLE = (json.JSONDecodeError, UnicodeDecodeError)
"""The errors for an answer that is not JSON."""


class GarbledAnswer(Exception):  # noqa: N818 - it is the answer that is garbled
    """An answer that was cut, or that a proxy sent instead. The message is the request."""


class OddAnswer(Exception):  # noqa: N818 - it is the answer that is odd
    """An answer that no Hub sends, so the request is not repeated. The message is the end of a sentence."""

    request = ""
    """The request, if it is known."""


def may_pass(error: Exception) -> bool:
    """Return whether the same request may succeed later. hf-xet raises RuntimeError for a broken transfer."""
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in BUSY
    if isinstance(error.__cause__, OddAnswer) or refuses_argument(error):
        return False
    passing = (ConnectionError, TimeoutError, httpx2.TransportError, GarbledAnswer, *UNREADABLE)
    return type(error) is RuntimeError or isinstance(error, passing)


def stumbles_over_answer(error: Exception) -> bool:
    """Return whether a library could not read an answer that it got."""
    stumbles = (ValueError, LookupError, TypeError, AttributeError, AssertionError, RecursionError)
    is_status = isinstance(error, HfHubHTTPError)  # some of which are ValueErrors too
    return isinstance(error, stumbles) and not is_status and _is_of_library(error)


def _is_of_library(error: Exception) -> bool:
    """Return whether a library that asks a Hub raised `error`. An error of our own code is a fault of this program."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    roots = [frame.f_globals.get("__name__", "").partition(".")[0] for frame in frames]
    known = [root for root in roots if root in ("sharding", "huggingface_hub", "httpx2", "json")]
    return bool(known) and known[-1] != "sharding"


def refuses_argument(error: Exception) -> bool:
    """Return whether the client refused to send a request: an address, a name or a header is not valid."""
    of_client = (HFValidationError, OfflineModeIsEnabled, UnicodeEncodeError)
    of_requests = (httpx2.UnsupportedProtocol, httpx2.InvalidURL, httpx2.LocalProtocolError)
    # A plain ValueError comes from the client's own checks. A parser raises a subclass of it.
    return isinstance(error, (*of_client, *of_requests)) or (type(error) is ValueError and _is_of_library(error))


def wait_to_retry(error: Exception, tries: int) -> None:
    """Sleep before try number `tries` + 1: as long as the server asks, else twice as long each time, with jitter.

    Raises `error` if `NETWORK_TRIES` are used up or the server asks for more than `LONGEST_WAIT_SECONDS`.
    """
    asked = seconds_asked(getattr(getattr(error, "response", None), "headers", {}))
    seconds = NETWORK_WAIT_SECONDS * 2**tries if asked is None else asked
    if tries >= NETWORK_TRIES or seconds > LONGEST_WAIT_SECONDS:
        raise error
    time.sleep(seconds * random.uniform(1, 1.5))


def seconds_asked(headers: Mapping[str, str]) -> float | None:
    """Return how long a server asks to wait: `Retry-After`, or the Hub's `RateLimit` once that is used up.

    Of both, the longer one. huggingface_hub 2.4 uses one or the other, depending on the request.
    """
    after, limit = headers.get("Retry-After", ""), parse_ratelimit_headers(headers)
    asked = [float(after)] if after.isdecimal() else []
    asked += [limit.reset_in_seconds + 1.0] if limit and limit.remaining == 0 else []
    return max(asked, default=None)
