"""Questions that take long are answered one at a time, and who would wait too long hears that at once."""

import asyncio
from collections.abc import Iterator
from threading import Event, active_count

import pytest

from sharding.core.errors import Refused, SourceError
from sharding.core.limits import CACHED_SECONDS, QUESTIONS_WAITING
from sharding.desk.patience import Later, patient
from sharding.desk.questions import Questions
from tests.conftest import in_a_loop


@pytest.fixture
def now() -> list[float]:
    return [0.0]


@pytest.fixture
def questions(now: list[float]) -> Iterator[Questions]:
    questions = Questions(clock=lambda: now[0])
    yield questions
    questions.close()


def test_an_answer_is_remembered_for_all(questions: Questions) -> None:
    asked: list[str] = []
    for caller in ("a", "b", "c"):
        assert questions.ask("key", caller, lambda: asked.append("x") or 5) == 5
    assert asked == ["x"]


def test_a_refusal_is_remembered_and_forgotten_in_the_end(questions: Questions, now: list[float]) -> None:
    asked: list[str] = []

    def refuse() -> None:
        asked.append("x")
        raise SourceError("It takes too long.")

    for seconds in (0, CACHED_SECONDS, CACHED_SECONDS + 1):
        now[0] = seconds
        with pytest.raises(SourceError, match="too long"):
            questions.ask("key", "a", refuse)
    assert len(asked) == 2


async def crowd(questions: Questions, size: int, same: bool = False, callers: int | None = None) -> list[object]:
    """Ask `size` questions at once while the first is held up; return what came at once, and what came in the end."""
    go, began = Event(), Event()

    def work() -> str:
        began.set()
        assert go.wait(60)
        return "answer"

    def ask(number: int) -> str:
        return questions.ask("key" if same else number, f"caller {number % (callers or size)}", work)

    first = asyncio.create_task(patient(ask)(0))
    while not began.is_set():
        await asyncio.sleep(0.01)
    others = [asyncio.create_task(patient(ask)(number)) for number in range(1, size)]
    while sum(task.done() for task in others) < size - 1 - QUESTIONS_WAITING:
        await asyncio.sleep(0.01)
    refused = [task for task in others if task.done()]
    go.set()
    answers = await asyncio.gather(first, *others, return_exceptions=True)
    assert all(isinstance(task.exception(), Refused) for task in refused)
    return list(answers)


@pytest.mark.parametrize("same", [False, True])
def test_one_is_in_work_five_wait_and_all_others_are_refused_at_once(questions: Questions, same: bool) -> None:
    answers = in_a_loop(crowd(questions, 80, same))
    assert answers.count("answer") == 1 + QUESTIONS_WAITING
    busy = [answer for answer in answers if isinstance(answer, Refused)]
    assert len(busy) == 80 - 1 - QUESTIONS_WAITING
    assert "busy" in busy[0].message
    assert busy[0].hint.startswith("Try again in ")


def test_a_caller_has_one_question_at_a_time(questions: Questions) -> None:
    go = Event()
    held = patient(lambda: questions.ask("first", "alice", lambda: go.wait(60)))

    async def ask() -> None:
        first = asyncio.create_task(held())
        await asyncio.sleep(0.1)
        with pytest.raises(Refused, match="still being answered"):
            await patient(lambda: questions.ask("second", "alice", lambda: 2))()
        go.set()
        await first
        assert await patient(lambda: questions.ask("second", "alice", lambda: 2))() == 2

    in_a_loop(ask())


def test_who_waits_patiently_holds_no_thread(questions: Questions) -> None:
    go = Event()

    async def ask() -> None:
        before = active_count()
        tasks = [
            asyncio.create_task(patient(lambda n=n: questions.ask("key", f"c{n}", lambda: go.wait(60)))())
            for n in range(4)
        ]
        await asyncio.sleep(0.3)
        assert active_count() - before <= 4  # idle ones of the pool
        # All threads of the pool are free: as many others run at once as there are.
        assert await asyncio.gather(*(patient(lambda: 1)() for _ in range(60))) == [1] * 60
        assert not any(task.done() for task in tasks)
        go.set()
        assert await asyncio.gather(*tasks) == [True] * 4

    in_a_loop(ask())


def test_who_is_not_patient_waits_here(questions: Questions) -> None:
    assert questions.ask("key", "a", lambda: 7) == 7


def test_an_answer_that_is_not_worth_its_memory_is_made_anew(questions: Questions) -> None:
    made: list[int] = []
    for _ in range(2):
        questions.ask("large", "a", lambda: made.append(1), weight=None)
        questions.ask("small", "a", lambda: made.append(2))
    assert made == [1, 2, 1]


def test_answers_that_are_old_are_dropped_though_nobody_asks(questions: Questions, now: list[float]) -> None:
    questions.ask("key", "a", lambda: 7)
    now[0] += CACHED_SECONDS + 1
    questions.forget()
    assert not questions._questions


def test_a_function_runs_again_with_the_answers_that_it_has_waited_for(questions: Questions) -> None:
    """Also where they are forgotten meanwhile: else it would ask for ever."""
    runs: list[int] = []

    def both() -> int:
        runs.append(1)
        total = 0
        for key in ("one", "two"):
            questions._questions.clear()
            try:
                total += questions.ask(key, "a", lambda: 1)
            except Later:
                raise
        return total

    assert in_a_loop(patient(both)()) == 2
    assert len(runs) == 3
