"""What nobody fetches, and what nobody asks for any more, is not kept."""

import time

import httpx
import psutil
import pytest

from tests.page.conftest import Site, ask

CALLS = 60
GROWTH_BYTES = 150_000_000
"""Memory by which the page may have grown ten seconds after calls of 0.9 MB each that nobody fetches."""


@pytest.mark.thorough
def test_long_calls_that_nobody_fetches_are_forgotten(space: Site) -> None:
    assert space.process
    page = psutil.Process(space.process.pid)
    before = page.memory_info().rss
    for attempt in range(3):
        for number in range(CALLS):
            name = f"{attempt}-{number}-" + "a" * 900_000
            call = {"data": [name, "1MB", "size", "natural", "keep", "", "", False]}
            assert ask(space, "POST", "/gradio_api/call/plan", {}, call).status_code == 200
    time.sleep(10)
    assert page.memory_info().rss - before < GROWTH_BYTES


@pytest.mark.thorough
def test_a_second_stream_for_a_call_that_has_ended_ends_too(space: Site) -> None:
    call = {"data": ["nobody/nothing", "1MB", "size", "natural", "keep", "", "", False]}
    event = ask(space, "POST", "/gradio_api/call/plan", {}, call).json()["event_id"]
    for _ in range(2):
        deadline = time.monotonic() + 120
        with httpx.stream("GET", f"{space.address}/gradio_api/call/plan/{event}", timeout=60) as answer:
            for _ in answer.iter_lines():
                assert time.monotonic() < deadline, "the page goes on with heartbeats"
