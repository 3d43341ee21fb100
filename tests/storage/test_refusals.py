"""A refusal of a Hub is told from others, and gets the advice that helps."""

import time
from pathlib import Path

import pytest

from sharding import job
from sharding.core.errors import DestinationError, ShardingError, SourceError
from sharding.core.events import Progress
from sharding.storage.hub import answers, guard
from tests.hubs import SOURCE, TOKEN, exists, shard
from tests.inhouse import InHouse

GATED = "Please enable access to public gated repositories in your fine-grained token settings to view this repository."
PATTERNS = "Your storage patterns tripped our internal systems! Please contact us"
HOURLY = "You have exceeded the rate limit for repository commits (128 per hour)"
READS = {
    "a token without gated repos": (f"status:403={GATED}", "may not read gated repos", "/settings/tokens"),
    "a disabled repo": ("status:403=Access to this resource is disabled.", "has disabled it", "another repo"),
    "a firewall": ("wall", "Something between this machine and the Hub", "let through your network"),
    "another": ("status:403", "The login does not allow it", "may read it"),
    "payment": ("status:402", "wants to be paid", "storage"),
    "the law": ("status:451", "legal reasons", "another repo"),
    "a proxy": ("status:407", "A proxy asks for a login", "user:password@host:port"),
}
WRITES = {
    "storage patterns": (f"status:403={PATTERNS}@.*/commit/", "has stopped uploads", "at the address that it names"),
    "an hour's quota": (f"status:429={HOURLY}@.*/commit/", "enough requests for now", "Wait an hour"),
    "no right to create": ("status:403@POST /api/repos/create", "The login does not allow it", "may create repos"),
    "no right to write": ("status:403@.*/commit/", "The login does not allow it", "may write there"),
    "words": ("status:400@.*/commit/", "does not accept", "complains about"),
    "no login": ("status:401@.*/commit/", "not valid or has expired", "HF_TOKEN counts before"),
    "somebody else": ("status:409@.*/commit/", "changed it just now", "Start again"),
    "size": ("status:413@.*/commit/", "larger than the Hub accepts", "smaller shard size"),
    "trouble": ("status:507@.*/commit/", "internal problem", "later"),
    "payment": ("status:402=Private repository storage limit reached@.*/commit/", "no storage left", "Free some"),
}


def check(error: ShardingError, says: str, hint: str, rule: str) -> None:
    assert says in error.message and hint in error.hint, (error.message, error.hint)
    said = rule.partition("=")[2].partition("@")[0].rstrip(".")
    assert said in error.message, "the Hub's own words count too"


@pytest.mark.parametrize("what", READS)
def test_a_refusal_to_read_has_its_advice(hub: InHouse, what: str) -> None:
    rule, says, hint = READS[what]
    for path in (f"/api/models/{SOURCE}$", "/resolve/"):
        with hub.failing(f"{rule}@GET .*{path}"), pytest.raises(SourceError) as refusal:
            job.inspect(SOURCE, endpoint=hub.address, token=TOKEN)
        check(refusal.value, says, hint, rule)


@pytest.mark.parametrize("what", WRITES)
def test_a_refusal_to_write_has_its_advice_and_leaves_nothing(hub: InHouse, what: str, name: str) -> None:
    rule, says, hint = WRITES[what]
    with hub.failing(rule), pytest.raises(DestinationError) as refusal:
        shard(hub, SOURCE, name)
    check(refusal.value, says, hint, rule)
    assert not exists(hub, name)


# --- Waits ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/tree/", "/resolve/"])
def test_a_window_of_five_minutes_is_waited_for_and_told(
    hub: InHouse, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slept = list[float]()
    monkeypatch.setattr(time, "sleep", slept.append)
    with hub.failing(f"busy:300@GET .*{path}#1"):
        assert shard(hub, SOURCE, str(tmp_path / "out")).verification.identical
    longest = max(slept)
    assert 301 <= longest <= 301 + answers.LONGEST_JITTER_SECONDS / 2
    assert [record.message for record in caplog.records if record.name == "sharding"] == [
        f"{hub.address} asks to wait 5 min 1 s."
    ]
    guard._WAITS.clear()


def test_a_longer_wait_is_refused_with_its_length(hub: InHouse) -> None:
    with hub.failing(f"busy:3600@GET .*/{SOURCE}$"), pytest.raises(SourceError) as refusal:
        job.inspect(SOURCE, endpoint=hub.address, token=TOKEN)
    assert refusal.value.hint == "Wait 1 h 0 min, then start the same job again."


def test_progress_says_how_long_the_hub_asks_to_wait(
    hub: InHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait here ends as soon as an event has told of it."""
    seen = list[float]()
    sleep = time.sleep

    def until_told(seconds: float) -> None:
        while seconds > 100 and not seen:
            sleep(0.01)

    monkeypatch.setattr(time, "sleep", until_told)
    events = job.shard(SOURCE, str(tmp_path / "out"), "9kB", endpoint=hub.address, token=TOKEN)
    next(events)  # the plan: what is read from now on are weights
    with hub.failing("busy:300@GET .*/resolve/#1"):
        for event in events:
            if isinstance(event, Progress) and event.waiting_seconds > 0:
                seen.append(event.waiting_seconds)
    assert seen and 200 < seen[0] <= 301
    guard._WAITS.clear()
