"""How long a Hub is waited for."""

import httpx2
import pytest
from huggingface_hub.errors import HfHubHTTPError

from sharding.core import limits
from sharding.storage.hub import retry

pytestmark = pytest.mark.usefixtures("nothing_stays_on_this_disk")


def test_a_server_that_asks_for_more_patience_than_there_is_gets_none() -> None:
    headers = {"Retry-After": str(limits.LONGEST_WAIT_SECONDS + 1)}
    answer = httpx2.Response(429, headers=headers, request=httpx2.Request("GET", "http://127.0.0.1:1"))
    error = HfHubHTTPError("slow down", response=answer)
    assert retry.may_pass(error)
    with pytest.raises(HfHubHTTPError):
        retry.wait_to_retry(error, 1)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"RateLimit": '"api";r=0;t=55'}, 56.0),
        ({"Retry-After": "7", "RateLimit": '"api";r=0;t=55'}, 56.0),
        ({"Retry-After": "7", "RateLimit": '"api";r=9;t=55'}, 7.0),
    ],
)
def test_a_hub_that_counts_requests_is_left_alone_for_as_long_as_it_says(
    monkeypatch: pytest.MonkeyPatch, headers: dict[str, str], seconds: float
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("sharding.storage.hub.retry.time.sleep", slept.append)
    answer = httpx2.Response(429, headers=headers, request=httpx2.Request("GET", "http://127.0.0.1:1"))
    retry.wait_to_retry(HfHubHTTPError("slow down", response=answer), 1)
    assert seconds <= slept[0] <= 1.5 * seconds
