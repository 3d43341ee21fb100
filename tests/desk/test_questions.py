"""Questions that take long are answered one at a time, and who would wait too long hears that at once."""

import asyncio
import gc
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from threading import Event, active_count

import pytest

from sharding.core.errors import Refused, SourceError
from sharding.core.limits import CACHED_SECONDS
from sharding.desk.questions import PATIENT_THREADS, QUESTIONS_WAITING, Later, Questions, patient, result_of
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


@promise("docs/security.md#block-the-page-or-a-plan")
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
        while not questions._questions:
            await asyncio.sleep(0.01)
        with pytest.raises(Refused, match="still being answered"):
            await patient(lambda: questions.ask("second", "alice", lambda: 2))()
        go.set()
        await first
        assert await patient(lambda: questions.ask("second", "alice", lambda: 2))() == 2

    in_a_loop(ask())


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
        while len(questions._questions) < 2:
            await asyncio.sleep(0.001)
        for caller in ("alice", "bob"):
            with pytest.raises(Refused, match="still being answered"):
                key = {"alice": "second", "bob": "first"}[caller] if others != "new" else "third"
                await asyncio.wait_for(asks(key, caller), 15)
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

    assert in_a_loop(asyncio.wait_for(ask(), 30)) == [7] * (2 * PATIENT_THREADS)
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


def test_who_waits_patiently_holds_no_thread(questions: Questions) -> None:
    go = Event()

    async def ask() -> None:
        before = active_count()
        tasks = [
            asyncio.create_task(patient(lambda n=n: questions.ask("key", f"c{n}", lambda: go.wait(60)))())
            for n in range(4)
        ]
        while not questions._questions or len(questions._questions["key"].callers) < 4:
            await asyncio.sleep(0.01)
        assert active_count() - before <= 4  # idle ones of the pool
        # All threads of the pool are free: as many others run at once as there are.
        assert await asyncio.gather(*(patient(lambda: 1)() for _ in range(60))) == [1] * 60
        assert not any(task.done() for task in tasks)
        go.set()
        assert await asyncio.gather(*tasks) == [True] * 4

    in_a_loop(ask())


def test_an_answer_that_is_not_worth_its_memory_is_made_anew(questions: Questions) -> None:
    made: list[int] = []
    for _ in range(2):
        questions.ask("large", "a", lambda: made.append(1), weight=None)
        questions.ask("small", "a", lambda: made.append(2))
    assert made == [1, 2, 1]


def test_an_answer_that_is_not_worth_its_memory_is_held_by_nobody_once_it_is_given(questions: Questions) -> None:
    """Also where no other question comes."""

    class Large:
        pass

    held = weakref.ref(questions.ask("large", "a", Large, weight=None))
    questions.forget()

    def is_gone() -> bool:
        gc.collect()
        return held() is None

    until(is_gone)


def test_what_makes_an_answer_is_held_by_nobody_once_there_is_one(questions: Questions) -> None:
    """It may hold a token, or a whole checkpoint."""

    class Work:
        def __call__(self) -> str:
            return "answer"

    work = Work()
    held = weakref.ref(work)
    assert questions.ask("kept", "a", work) == "answer"
    del work

    def is_gone() -> bool:
        gc.collect()
        return held() is None

    until(is_gone)
    assert questions.ask("kept", "a", lambda: "another") == "answer"


def test_answers_that_are_old_are_dropped_though_nobody_asks(questions: Questions, now: list[float]) -> None:
    questions.ask("key", "a", lambda: 7)
    now[0] += CACHED_SECONDS + 1
    questions.forget()
    assert not questions._questions


@pytest.mark.parametrize(("bound", "value"), [("CACHED_ANSWERS", 3), ("CACHED_TENSORS", 30)])
def test_the_newest_answers_stay_where_they_are_too_many_or_too_large(
    questions: Questions, monkeypatch: pytest.MonkeyPatch, bound: str, value: int
) -> None:
    monkeypatch.setattr(f"sharding.desk.questions.{bound}", value)
    made: list[str] = []
    for key in "abcde":
        questions.ask(key, "a", lambda key=key: made.append(key), weight=10)
    questions.forget()
    for key in "edc":
        questions.ask(key, "b", lambda key=key: made.append(key), weight=10)
    assert made == list("abcde")
    for key in "ba":
        questions.ask(key, "b", lambda key=key: made.append(key), weight=10)
    assert made == [*"abcde", *"ba"]


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
