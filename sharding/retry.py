"""Try again what may pass: a server that is busy or asks to slow down, a connection that breaks."""

import random
import time

from sharding.limits import LONGEST_WAIT_SECONDS, NETWORK_TRIES, NETWORK_WAIT_SECONDS

_PASSING_STATUS = {408, 429, 500, 502, 503, 504}


def may_pass(error: Exception) -> bool:
    """Return whether the same request may succeed later. hf-xet raises RuntimeError for what breaks on the way."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in _PASSING_STATUS
    return type(error) is RuntimeError or isinstance(error, ConnectionError | TimeoutError | httpx2.TransportError)


def wait_to_retry(error: Exception, tries: int) -> None:
    """Sleep before try number `tries` + 1: as long as the server asks, else twice as long each time, with jitter.

    Raises `error` where `NETWORK_TRIES` are used up or the server asks for more than `LONGEST_WAIT_SECONDS`.
    """
    asked = getattr(getattr(error, "response", None), "headers", {}).get("Retry-After", "")
    seconds = float(asked) if asked.isdecimal() else NETWORK_WAIT_SECONDS * 2**tries
    if tries >= NETWORK_TRIES or seconds > LONGEST_WAIT_SECONDS:
        raise error
    time.sleep(seconds * random.uniform(1, 1.5))
