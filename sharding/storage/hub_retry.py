"""Try again what may pass: a server that is busy or asks to slow down, a connection that breaks."""

import random
import time
from collections.abc import Mapping

from sharding.core.limits import LONGEST_WAIT_SECONDS, NETWORK_TRIES, NETWORK_WAIT_SECONDS

_PASSING_STATUS = {408, 429, 500, 502, 503, 504}

GARBLED = (ValueError, LookupError, TypeError, AttributeError, AssertionError, RecursionError)
"""What the Hub's client raises when an answer is cut, that of somebody in between, or not what it should be."""


class OddAnswer(Exception):  # noqa: N818 - it is the answer that is odd
    """An answer that no Hub gives, so it is not asked for again; the message is the end of a sentence."""


def may_pass(error: Exception) -> bool:
    """Return whether the same request may succeed later. hf-xet raises RuntimeError for what breaks on the way."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in _PASSING_STATUS
    if isinstance(error.__cause__, OddAnswer):
        return False
    if refuses_argument(error):
        return False
    return type(error) is RuntimeError or isinstance(
        error, (ConnectionError, TimeoutError, httpx2.TransportError, *GARBLED)
    )


def refuses_argument(error: Exception) -> bool:
    """Return whether the client refused to ask at all: what it was given is no address, no name, or no header.

    A mere ValueError is the words of the client's own checks; what cannot be parsed is one of its kinds.
    """
    import httpx2
    from huggingface_hub.errors import HFValidationError, OfflineModeIsEnabled

    of_client = (HFValidationError, OfflineModeIsEnabled, UnicodeEncodeError)
    of_requests = (httpx2.UnsupportedProtocol, httpx2.InvalidURL, httpx2.LocalProtocolError)
    is_check = type(error) is ValueError and "improperly formatted" not in str(error)  # that is said of an answer
    return is_check or isinstance(error, (*of_client, *of_requests))


def wait_to_retry(error: Exception, tries: int) -> None:
    """Sleep before try number `tries` + 1: as long as the server asks, else twice as long each time, with jitter.

    Raises `error` where `NETWORK_TRIES` are used up or the server asks for more than `LONGEST_WAIT_SECONDS`.
    """
    asked = seconds_asked(getattr(getattr(error, "response", None), "headers", {}))
    seconds = NETWORK_WAIT_SECONDS * 2**tries if asked is None else asked
    if tries >= NETWORK_TRIES or seconds > LONGEST_WAIT_SECONDS:
        raise error
    time.sleep(seconds * random.uniform(1, 1.5))


def seconds_asked(headers: Mapping[str, str]) -> float | None:
    """Return how long a server wants to be left alone: `Retry-After`, or the Hub's `RateLimit` once nothing is left.

    The longer one where there are both: huggingface_hub 2.4 goes by either, depending on the request.
    """
    from huggingface_hub.utils import parse_ratelimit_headers

    after, limit = headers.get("Retry-After", ""), parse_ratelimit_headers(headers)
    asked = [float(after)] if after.isdecimal() else []
    asked += [limit.reset_in_seconds + 1.0] if limit and limit.remaining == 0 else []
    return max(asked, default=None)
