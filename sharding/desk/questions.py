"""Answer slow questions one at a time for all visitors, without holding a thread for those who wait."""

import time
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from math import ceil
from queue import SimpleQueue
from threading import RLock, Thread
from typing import Any, ParamSpec, TypeVar, cast

import anyio
from anyio import CapacityLimiter, to_thread

from sharding.core.errors import Refused
from sharding.core.limits import CACHED_ANSWERS, CACHED_SECONDS, CACHED_TENSORS, QUESTION_SECONDS

PATIENT_THREADS = 24  # For requests to a Hub, so that a slow one leaves the page the threads it needs.
_T = TypeVar("_T")
_P = ParamSpec("_P")

_LOOK_SECONDS = 0.05

_threads = CapacityLimiter(PATIENT_THREADS)
_answers: ContextVar[dict[object, Future[Any]] | None] = ContextVar("answers", default=None)
"""The answers that a patient function has waited for. It finds them here when it runs again."""


class Later(Exception):
    """The answer to `key` is not there yet, and the caller must not wait for it in this thread."""

    def __init__(self, key: object, answer: Future[Any]) -> None:
        super().__init__("The answer is not there yet.")
        self.key, self.answer = key, answer


def answered(key: object) -> Future[Any] | None:
    """Return the answer to `key` if the patient function that runs has waited for it, else None."""
    return (_answers.get() or {}).get(key)


def result_of(key: object, answer: Future[_T]) -> _T:
    """Return the result of `answer`, or raise its exception. In a patient function, raise Later instead of waiting."""
    if not answer.done() and _answers.get() is not None:
        raise Later(key, answer)
    return answer.result()


def patient(function: Callable[_P, _T]) -> Callable[_P, Awaitable[_T]]:
    """Return `function` for an event loop: it runs in a thread, and holds none while it waits for an answer. Then it
    runs again from its start, so everything before the wait must be safe to repeat."""

    @wraps(function)
    async def run(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        answers: dict[object, Future[Any]] = {}
        mark = _answers.set(answers)
        try:
            while True:
                try:
                    return await to_thread.run_sync(lambda: function(*args, **kwargs), limiter=_threads)
                except Later as later:
                    while not later.answer.done():
                        await anyio.sleep(_LOOK_SECONDS)
                    answers[later.key] = later.answer
        finally:
            _answers.reset(mark)

    return run


QUESTIONS_WAITING = 5  # Questions that wait for the current one, each for seconds. More are refused.


@dataclass(slots=True)
class Kept:
    """An answer in a cache, and when it was asked for. `weight` is how many tensors it holds, None if too many."""

    asked: float
    weight: int | None = 0
    answer: Future[Any] = field(default_factory=Future)
    callers: set[str] = field(default_factory=set)
    work: Callable[[], Any] | None = None


class Cache:
    """Keeps the answers to questions for a while."""

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self._most, self._clock, self._lock = most, clock, RLock()
        self._kept: dict[Hashable, Any] = {}

    def forget(self) -> None:
        """Drop answers that are too old, and the oldest ones if they are too many or too large."""
        with self._lock:
            weight = 0
            for number, (key, one) in enumerate(reversed(list(self._kept.items()))):
                weight += one.weight or 0
                too_much = number >= self._most or weight > CACHED_TENSORS
                old = one.weight is None or self._clock() - one.asked > CACHED_SECONDS
                if (old or too_much) and one.answer.done():
                    del self._kept[key]


class Questions(Cache):
    """Answers one question at a time. A few wait, one per caller. Answers are cached, errors too, but not Refused."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(CACHED_ANSWERS, clock)
        self._open: SimpleQueue[Kept | None] = SimpleQueue()
        self._usual_seconds = QUESTION_SECONDS / 3
        Thread(target=self._answer, name="questions", daemon=True).start()

    def ask(self, key: Hashable, caller: str, work: Callable[[], _T], weight: int | None = 1) -> _T:
        """Return the result of `work`, which answers `key`, or raise its exception. All callers share it. `weight` is
        how many tensors it holds; None is too large to cache. Raises Refused if too many wait, and Later."""
        if answer := answered(key):
            return answer.result()  # type: ignore[no-any-return]
        with self._lock:
            self.forget()
            question = self._kept.get(key)
            if question is None:
                self._refuse_crowd(caller)
                question = self._kept[key] = Kept(self._clock(), weight, callers={caller}, work=work)
                self._open.put(question)
            elif not question.answer.done() and caller not in question.callers:
                self._refuse_crowd(caller)
                question.callers.add(caller)
        return result_of(key, cast("Future[_T]", question.answer))

    def close(self) -> None:
        """Answer no more questions."""
        self._open.put(None)

    def _refuse_crowd(self, caller: str) -> None:
        waiting = [question for question in self._kept.values() if not question.answer.done()]
        hint = f"Try again in {ceil(self._usual_seconds * max(len(waiting), 1))} seconds."
        callers = [each for question in waiting for each in question.callers]
        if caller in callers:
            raise Refused("Your last question about a model is still being answered.", hint)
        if len(callers) > QUESTIONS_WAITING:
            raise Refused("This page is busy: too many visitors are waiting for answers.", hint)

    def _answer(self) -> None:
        while question := self._open.get():
            began = self._clock()
            work, question.work = question.work, None  # it may hold a token, or whole checkpoints
            try:
                question.answer.set_result(work() if work else None)
            except BaseException as error:
                if isinstance(error, Refused):  # such as a timeout, which the next caller need not meet
                    question.weight = None
                question.answer.set_exception(error)
            self._usual_seconds = (2 * self._usual_seconds + self._clock() - began) / 3
            del question, work  # with its answer: the next question may come much later
