"""How much work the badges and pictures of results may cause."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import nullcontext
from threading import Event
from typing import Any

import httpx
import httpx2
import pytest
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

from sharding.core.errors import DamagedError, Fault, Refused, SourceError
from sharding.core.limits import CACHED_SECONDS
from sharding.desk.questions import QUESTIONS_WAITING
from sharding.report.files import Result
from sharding.verify.trust import Trust
from tests.conftest import LONGEST_SECONDS
from tests.page.test_pictures import COPY, PATHS, asking
from tests.promises import promise
from tests.report.results import made

Judged = tuple[Result, Trust]
FITS: Judged = Result(COPY, "c" * 40, (), made().report), Trust("fits", ())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paint nothing, and look at once whether something was judged."""
    monkeypatch.setattr("sharding.page.serving.pictures.paint_certificate", lambda shown: b"a picture")
    monkeypatch.setattr("sharding.desk.questions._LOOK_SECONDS", 0.001)


class Slow:
    """A judge who waits for `go`, and notes what it judges."""

    def __init__(self) -> None:
        self.go, self.judged = Event(), list[str]()

    def __call__(self, place: str, token: str | None) -> Judged:
        self.judged.append(place)
        self.go.wait(LONGEST_SECONDS)
        if place.startswith("no/"):
            raise because(RepositoryNotFoundError("no such repo", response=status(404)))
        return FITS


@pytest.fixture
def slow() -> Iterator[Slow]:
    judge = Slow()
    yield judge
    judge.go.set()


async def get(client: httpx.AsyncClient, place: str, path: str = "/badge.svg") -> httpx.Response:
    return await client.get(path, params={"result": place})


@promise("docs/security.md#keep-the-page-busy-with-badges")
def test_one_result_is_judged_at_a_time_and_what_would_wait_too_long_is_refused_at_once(slow: Slow) -> None:
    most = 1 + QUESTIONS_WAITING

    async def work(client: httpx.AsyncClient) -> None:
        tasks = [asyncio.create_task(get(client, f"a/{number}")) for number in range(most + 3)]
        refused, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        while len(refused) < 3:
            refused = {task for task in tasks if task.done()}
            await asyncio.sleep(0)
        assert {task.result().status_code for task in refused} == {503}
        while not slow.judged:  # a thread of its own begins with it
            await asyncio.sleep(0)
        assert len(slow.judged) == 1
        slow.go.set()
        answers = [await task for task in tasks if task not in refused]
        assert [answer.status_code for answer in answers] == [200] * most
        assert len(slow.judged) == most

    asking(slow, work)


def test_all_who_ask_for_one_result_share_one_judgement(slow: Slow) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        places = ("a/b", "https://hf.co/a/b", " a/b ")
        tasks = [asyncio.create_task(get(client, place, path)) for place in places * 4 for path in PATHS]
        while not slow.judged:
            await asyncio.sleep(0)
        slow.go.set()
        assert {(await task).status_code for task in tasks} == {200}
        assert (await get(client, "a/b")).status_code == 200
        assert [(await get(client, "no/b")).status_code for _ in range(3)] == [404] * 3
        assert slow.judged == ["a/b", "no/b"]

    asking(slow, work)


def because(cause: Exception, family: type[SourceError] = SourceError) -> SourceError:
    error = family("The Hub said something.", "")
    error.__cause__ = cause
    return error


def status(code: int) -> httpx2.Response:
    return httpx2.Response(code, request=httpx2.Request("GET", "https://hub.example/api/models/a/b"))


FAILURES = [
    because(HfHubHTTPError("busy", response=status(503))),
    because(HfHubHTTPError("slow down", response=status(429))),
    because(ConnectionError("it is gone")),
    because(RuntimeError("the transfer broke off")),
    DamagedError("Other bytes arrived."),
    Refused("This machine is busy."),
    Fault(ValueError("a bug")),
    ZeroDivisionError("a bug that nobody foresaw"),
]


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: repr(error.__cause__ or error)[:20])
def test_a_failure_that_passes_is_no_answer_and_the_next_request_is_judged_again(error: Exception) -> None:
    answers: Iterator[Any] = iter([error, FITS])

    def judge(place: str, token: str | None) -> Judged:
        if isinstance(answer := next(answers), Exception):
            raise answer
        return answer

    async def work(client: httpx.AsyncClient) -> None:
        with pytest.raises(ZeroDivisionError) if isinstance(error, ZeroDivisionError) else nullcontext():
            failed = await get(client, COPY)
            assert (failed.status_code, int(failed.headers["Retry-After"]) > 0) == (503, True)
            assert failed.headers["Cache-Control"] == "no-store"
        assert (await get(client, COPY)).status_code == 200

    asking(judge, work)


def test_what_is_missing_is_remembered_for_a_minute_and_what_was_drawn_for_ten(slow: Slow) -> None:
    """Other caches keep it only for what is left of its ten minutes."""
    now, judged = [0.0], slow.judged
    slow.go.set()

    async def work(client: httpx.AsyncClient) -> None:
        for seconds, places in ((0, [COPY, "no/b"]), (59, []), (61, ["no/b"]), (599, ["no/b"]), (601, [COPY])):
            now[0] = seconds
            judged.clear()
            drawn, missing = await get(client, COPY), await get(client, "no/b")
            assert (drawn.status_code, missing.status_code, judged) == (200, 404, places), seconds
            left = CACHED_SECONDS - seconds % 601
            assert re.findall("[0-9]+", drawn.headers["Cache-Control"]) == [f"{left}"]

    asking(slow, work, lambda: now[0])


@promise("docs/security.md#drive-out-real-badges-with-names")
def test_names_of_nothing_drive_out_no_badge(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    for bound in ("CACHED_ANSWERS", "_UNSEEN_PLACES"):
        monkeypatch.setattr(f"sharding.page.serving.pictures.{bound}", 8)
    slow.go.set()

    async def work(client: httpx.AsyncClient) -> None:
        asked = [COPY, *(f"no/{number}" for number in range(16)), COPY, "no/0"]
        assert [(await get(client, place)).status_code for place in asked] == [200, *[404] * 16, 200, 404]
        assert slow.judged == [*asked[:17], "no/0"], "it is not remembered for ever how many there were"

    asking(slow, work)


def test_a_request_does_not_wait_for_ever_and_the_next_gets_what_was_drawn(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("sharding.page.serving.pictures.PICTURE_SECONDS", 0.05)
            assert (await get(client, "a/b")).status_code == 503
        slow.go.set()
        assert (await get(client, "a/b")).status_code == 200
        assert slow.judged == ["a/b"]

    asking(slow, work)
