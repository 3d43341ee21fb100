"""Questions that take long are answered one at a time, and who would wait too long hears that at once."""

import asyncio
import gc
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from threading import Event

import pytest

from sharding.core.errors import Refused, ShardingError, SourceError
from sharding.core.limits import CACHED_SECONDS
from sharding.desk import questions as room
from sharding.desk.questions import PATIENT_THREADS, QUESTIONS_WAITING, Questions, patient, result_of
from tests.conftest import in_a_loop
from tests.desk.actors import until
from tests.promises import promise


@pytest.fixture
def now() -> list[float]:
    return [0.0]


@pytest.fixture
def questions(now: list[float]) -> Iterator[Questions]:
    questions = Questions(clock=lambda: now[0])
    yield questions
    questions.close()


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
    asked.clear()
    for error in (Refused("It is busy."), SourceError("It is broken.")):
        for _ in range(2):
            with pytest.raises(type(error)):
                questions.ask(error.message, "a", partial(fail, asked, error))
    assert asked == ["It is busy.", "It is busy.", "It is broken."]


def fail(asked: list[str], error: ShardingError) -> None:
    asked.append(error.message)
    raise error


async def crowd(questions: Questions, size: int, same: bool) -> list[object]:
    """Ask `size` questions at once while the first is held up; return what came at once, and what came in the end."""
    go, began = Event(), Event()

    def work() -> str:
        began.set()
        assert go.wait(60)
        return "answer"

    def ask(number: int) -> str:
        return questions.ask("key" if same else number, f"caller {number}", work)

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


@promise("docs/security.md#block-the-page-or-a-plan")
@pytest.mark.parametrize("same", [False, True])
def test_one_is_in_work_five_wait_and_all_others_are_refused_at_once(questions: Questions, same: bool) -> None:
    answers = in_a_loop(crowd(questions, 80, same))
    busy = [answer for answer in answers if isinstance(answer, Refused)]
    assert (answers.count("answer"), len(busy)) == (1 + QUESTIONS_WAITING, 80 - 1 - QUESTIONS_WAITING)
    assert "busy" in busy[0].message and busy[0].hint.startswith("Try again in ")


@pytest.mark.parametrize("others", ["new", "another's"])
def test_who_waits_for_an_answer_may_not_wait_for_another_ones_too(questions: Questions, others: str) -> None:
    """Whether nobody has asked that yet or somebody waits for it; who asks the same again just waits on."""
    go, began = Event(), Event()

    def held() -> str:
        began.set()
        assert go.wait(60)
        return "answer"

    async def ask() -> None:
        def asks(key: str, caller: str) -> asyncio.Task[str]:
            return asyncio.create_task(patient(lambda: questions.ask(key, caller, held))())

        waiting = [asks("first", "alice")]
        while not began.is_set():
            await asyncio.sleep(0.001)
        waiting.append(asks("second", "bob"))
        while len(questions._kept) < 2:
            await asyncio.sleep(0.001)
        for caller in ("alice", "bob"):
            with pytest.raises(Refused, match="still being answered"):
                key = {"alice": "second", "bob": "first"}[caller] if others != "new" else "third"
                await asyncio.wait_for(asks(key, caller), 60)
        again = [asks("first", "alice"), asks("second", "bob"), asks("first", "carol")]
        await asyncio.sleep(0.01)
        go.set()
        assert await asyncio.gather(*waiting, *again) == ["answer"] * 5
        assert await asks("third", "alice") == "answer"

    try:
        in_a_loop(ask())
    finally:
        go.set()


def test_more_may_wait_patiently_than_there_are_threads() -> None:
    answer, seen = Future[int](), list[int]()

    def waits(number: int) -> int:
        seen.append(number)
        return result_of("key", answer)

    async def ask() -> list[int]:
        size = 2 * PATIENT_THREADS
        tasks = [asyncio.create_task(patient(waits)(number)) for number in range(size)]
        while len(seen) < size:  # each has looked for the answer, although none has come
            await asyncio.sleep(0.001)
        assert await patient(lambda: 1)() == 1
        assert not any(task.done() for task in tasks)
        answer.set_result(7)
        return await asyncio.gather(*tasks)

    assert in_a_loop(asyncio.wait_for(ask(), 60)) == [7] * (2 * PATIENT_THREADS)
    assert sorted(seen) == sorted([*range(2 * PATIENT_THREADS)] * 2)  # each has run once more, from its beginning


def test_an_answer_that_is_an_error_reaches_who_waits_patiently() -> None:
    answer = Future[int]()

    async def ask() -> None:
        task = asyncio.create_task(patient(lambda: result_of("key", answer))())
        await asyncio.sleep(0)
        answer.set_exception(SourceError("It is broken."))
        with pytest.raises(SourceError, match="broken"):
            await task

    in_a_loop(ask())


def test_an_answer_that_is_not_worth_its_memory_is_made_anew(questions: Questions) -> None:
    made: list[int] = []
    for _ in range(2):
        questions.ask("large", "a", lambda: made.append(1), weight=None)
        questions.ask("small", "a", lambda: made.append(2))
    assert made == [1, 2, 1]


def are_gone(*held: "weakref.ref[object]") -> bool:
    gc.collect()
    return not any(ref() for ref in held)


def test_neither_what_makes_an_answer_is_held_once_it_is_there_nor_an_answer_that_is_not_worth_its_memory(
    questions: Questions,
) -> None:
    """Also where no other question comes: it may hold a token, or a whole checkpoint."""

    class Work:
        def __call__(self) -> str:
            return "answer"

    work = Work()
    held = weakref.ref(work)
    assert questions.ask("kept", "a", work) == "answer"
    del work
    until(lambda: are_gone(held))
    assert questions.ask("kept", "a", lambda: "another") == "answer"
    large = weakref.ref(questions.ask("large", "a", Work, weight=None))
    questions.forget()
    until(lambda: are_gone(large))


@pytest.mark.parametrize(("bound", "value"), [("_most", 3), ("CACHED_TENSORS", 30)])
def test_the_newest_answers_stay_where_they_are_too_many_or_too_large(
    questions: Questions, monkeypatch: pytest.MonkeyPatch, bound: str, value: int
) -> None:
    monkeypatch.setattr(questions if bound == "_most" else room, bound, value)
    made: list[str] = []

    def ask(keys: str, caller: str) -> str:
        for key in keys:
            questions.ask(key, caller, lambda key=key: made.append(key), weight=10)
        return "".join(made)

    assert ask("abcde", "a") == "abcde"
    questions.forget()
    assert ask("edc", "b") == "abcde" and ask("ba", "b") == "abcdeba"


def test_a_function_runs_again_with_the_answers_that_it_has_waited_for(questions: Questions) -> None:
    """Also where they are forgotten meanwhile: else it would ask for ever."""
    runs: list[int] = []

    def both() -> int:
        runs.append(1)
        total = 0
        for key in ("one", "two"):
            questions._kept.clear()
            total += questions.ask(key, "a", lambda: 1)
        return total

    assert in_a_loop(patient(both)()) == 2 and len(runs) == 3
