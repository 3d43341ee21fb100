"""A slow answer has a rate of its own; answers share that of a link, and those to one grant that of its line."""

from pathlib import Path
from typing import Any

import pytest

from sharding.localhub import faults
from sharding.localhub.faults import Faults, parse_fault
from sharding.localhub.store import HUBS_OWN, Grants
from tests.conftest import in_a_loop


class Clock:
    """Time that stands still: it is noted how long each would have slept."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self.now = 100.0

    def current_time(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        assert seconds >= 0, "anyio takes no other"
        self.slept.append(seconds)


async def answer_of_a_thousand_bytes(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": bytes(1000)})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(faults, "anyio", clock)
    return clock


def ask(hub: Faults, path: str, token: str = "hf_alice") -> None:
    async def take(_message: Any) -> None:
        pass

    headers = [(b"authorization", f"Bearer {token}".encode())]
    request = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": headers}
    in_a_loop(hub(request, take, take))


@pytest.mark.parametrize(
    ("kind", "until"), [("slow", [1.0, 1.0, 1.0]), ("link", [1.0, 2.0, 3.0]), ("line", [1.0, 1.0, 2.0])]
)
def test_answers_wait_for_one_another_on_a_link_or_a_line_alone(kind: str, until: list[float], clock: Clock) -> None:
    hub = Faults(answer_of_a_thousand_bytes, [parse_fault(f"{kind}:1000@GET /big")])
    ends = []
    for number, grant in enumerate(("one", "other", "one")):
        ask(hub, f"/big/{number}", f"xet_read_9_{grant}_signed")
        ends.append(clock.slept[-1])
    assert ends == until
    ask(hub, "/small")
    assert clock.slept[-1] == until[-1], "what no rule names does not wait"


def test_who_is_late_for_a_moment_loses_no_time_and_who_is_late_for_longer_gains_none(clock: Clock) -> None:
    hub = Faults(answer_of_a_thousand_bytes, [parse_fault("link:1000000@GET /big")])  # a millisecond each
    ends = []
    for moment in (100.0, 100.002, 100.008, 101.0):
        clock.now = moment
        ask(hub, "/big")
        ends.append(clock.now + clock.slept[-1])
    assert ends == pytest.approx([100.001, 100.002, 100.008, 101.001])


def test_a_link_notes_when_how_many_bytes_have_passed(clock: Clock, tmp_path: Path) -> None:
    hub = Faults(answer_of_a_thousand_bytes, [parse_fault(f"link:1000={tmp_path / 'down'}@GET /big")])
    for path in ("/big", "/small", "/big"):
        ask(hub, path)
    assert (tmp_path / "down").read_text() == "100.000 1000\n" * 2


@pytest.mark.parametrize("kind", ["link", "line"])
def test_what_the_hub_fetches_for_itself_goes_over_nobodys_line(kind: str, clock: Clock) -> None:
    hub = Faults(answer_of_a_thousand_bytes, [parse_fault(f"{kind}:1000@GET /big")])
    token, _ = Grants("", 60, b"key").token("read", name=HUBS_OWN)
    ask(hub, "/big", token)
    assert not any(clock.slept)
