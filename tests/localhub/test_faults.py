"""A slow answer has a rate of its own; all answers that go over one link share its rate."""

import asyncio
from typing import Any

import pytest

from sharding.localhub import faults
from sharding.localhub.faults import Faults, parse_fault


class Clock:
    """Time that stands still: it is noted how long each would have slept."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def current_time(self) -> float:
        return 100.0

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


async def answer_of_a_thousand_bytes(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": bytes(1000)})


@pytest.mark.parametrize(("kind", "until"), [("slow", [1.0, 1.0, 1.0]), ("link", [1.0, 2.0, 3.0])])
def test_answers_side_by_side_wait_for_one_another_on_a_link_alone(
    kind: str, until: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(faults, "anyio", clock)
    hub = Faults(answer_of_a_thousand_bytes, [parse_fault(f"{kind}:1000@GET /big")])

    async def ask(path: str) -> None:
        async def take(_message: Any) -> None:
            pass

        await hub({"type": "http", "method": "GET", "path": path}, take, take)

    ends = []
    for path in ("/big/1", "/big/2", "/big/3"):
        asyncio.run(ask(path))
        ends.append(clock.slept[-1])
    assert ends == until
    asyncio.run(ask("/small"))
    assert clock.slept[-1] == until[-1], "what no rule names does not wait"
