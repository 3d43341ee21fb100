"""What nobody fetches, and what nobody asks for any more, is not kept."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import psutil
import pytest

from sharding.core.limits import MAX_WATCHERS
from sharding.page.serving.answers import UNFETCHED_SECONDS
from tests.conftest import LONGEST_SECONDS
from tests.page.conftest import UNCERTIFIED, Site, ask, call, copy_name, held_job
from tests.promises import promise

CALLS = 60
GROWTH_BYTES = 150_000_000
"""Memory by which the page may have grown after calls of 0.9 MB each that nobody fetches."""


@promise("docs/security.md#fill-the-memory-with-answers-that")
@pytest.mark.thorough
def test_long_calls_that_nobody_fetches_are_forgotten(space: Site) -> None:
    assert space.process
    page = psutil.Process(space.process.pid)
    before = page.memory_info().rss
    for attempt in range(3):
        for number in range(CALLS):
            name = f"{attempt}-{number}-" + "a" * 900_000
            call = {"data": [name, "1MB", "size", "natural", "keep", "", "", False, ""]}
            assert ask(space, "POST", "/gradio_api/call/plan", {}, call).status_code == 200
    deadline = time.monotonic() + UNFETCHED_SECONDS / 2  # later they are forgotten because they are old
    while page.memory_info().rss - before > GROWTH_BYTES:
        assert time.monotonic() < deadline, "the page keeps what nobody fetches"
        time.sleep(0.2)


@promise("docs/security.md#block-the-page-by-watching-one")
def test_one_person_watches_jobs_in_so_many_windows(space: Site, small: str) -> None:
    """Each window takes a call of the page, of which there are some hundreds for all visitors."""
    name, bob = copy_name("held"), {"Authorization": "Bearer hf_bob"}
    choices = ["60kB", "size", "natural", "keep", False, None, False, False, False, "", "", False, ""]
    config = ask(space, "GET", "/config", {}).json()
    follow, cancel = (
        next(each["id"] for each in config["dependencies"] if each["api_name"] == name) for name in ("follow", "cancel")
    )
    open_lines: list[Iterator[str]] = []
    with ExitStack() as stack:
        stack.enter_context(held_job(name))
        said = call(space, "shard", [small, f"bob/{name}", *choices], bob)[1]
        job = json.loads(said.partition("data: ")[2].partition("\n")[0])[0]["job"]
        for number in range(MAX_WATCHERS + 1):
            wish = {"data": [job], "fn_index": follow, "session_hash": f"window-{number}"}
            assert ask(space, "POST", "/gradio_api/queue/join", bob, wish).status_code == 200
            address = f"{space.address}/gradio_api/queue/data?session_hash=window-{number}"
            stream = httpx.stream("GET", address, headers=bob, timeout=LONGEST_SECONDS, verify=UNCERTIFIED)
            open_lines.append(stack.enter_context(stream).iter_lines())
            shown = next(line for line in open_lines[-1] if "process_generating" in line)
            assert (f"already watch jobs in {MAX_WATCHERS} windows" in shown) == (number == MAX_WATCHERS)
    ask(space, "POST", "/gradio_api/queue/join", bob, {"data": [job], "fn_index": cancel, "session_hash": "end"})
    while not re.search('"state": "(cancelled|done)"', call(space, "status", [job], bob)[1]):
        time.sleep(0.2)


@pytest.mark.thorough
def test_a_second_stream_for_a_call_that_has_ended_ends_too(space: Site) -> None:
    call = {"data": ["nobody/nothing", "1MB", "size", "natural", "keep", "", "", False, ""]}
    event = ask(space, "POST", "/gradio_api/call/plan", {}, call).json()["event_id"]
    for _ in range(2):
        deadline = time.monotonic() + 120
        with httpx.stream("GET", f"{space.address}/gradio_api/call/plan/{event}", timeout=60) as answer:
            for _ in answer.iter_lines():
                assert time.monotonic() < deadline, "the page goes on with heartbeats"
