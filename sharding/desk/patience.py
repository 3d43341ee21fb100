"""Wait for slow answers without holding a thread: the function that needs one runs again once it is there."""

from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import anyio
from anyio import CapacityLimiter, to_thread

PATIENT_THREADS = 24
"""Threads for requests to a Hub. They are separate, so that a slow Hub leaves the page the threads it needs."""


_T = TypeVar("_T")
_P = ParamSpec("_P")

_LOOK_SECONDS = 0.05

_threads = CapacityLimiter(PATIENT_THREADS)
_answers: ContextVar[dict[object, Future[Any]] | None] = ContextVar("answers", default=None)
"""The answers that a patient function has waited for. It finds them here when it runs again."""


class Later(Exception):
    """The answer to `key` is not there yet, and the caller must not wait for it in this thread."""

    def __init__(self, key: object, answer: Future[Any]) -> None:
        """Keep the future that will hold the answer."""
        super().__init__("The answer is not there yet.")
        self.key, self.answer = key, answer


def answered(key: object) -> Future[Any] | None:
    """Return the answer to `key` if the patient function that runs has waited for it, else None."""
    return (_answers.get() or {}).get(key)


def result_of(key: object, answer: Future[_T]) -> _T:
    """Return the result of `answer`, or raise its exception. Waits for it here, except in a patient function.

    In a patient function it raises Later if there is no answer yet.
    """
    if not answer.done() and _answers.get() is not None:
        raise Later(key, answer)
    return answer.result()


def patient(function: Callable[_P, _T]) -> Callable[_P, Awaitable[_T]]:
    """Return `function` for an event loop: it runs in a thread, and holds none while it waits for an answer.

    After each wait it runs again from its start, so everything before the wait must be safe to repeat.
    """

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
