"""Wait for answers without holding a thread: who needs one that is not there yet is run again once it is."""

from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import anyio
from anyio import CapacityLimiter, to_thread

from sharding.core.limits import PATIENT_THREADS

_T = TypeVar("_T")
_P = ParamSpec("_P")

_LOOK_SECONDS = 0.05

_threads = CapacityLimiter(PATIENT_THREADS)
_answers: ContextVar[dict[object, Future[Any]] | None] = ContextVar("answers", default=None)
"""What a patient function has waited for, so that it finds the same answers when it is run again."""


class Later(Exception):
    """The answer to `key` is still to come, and who asks must not wait for it in this thread."""

    def __init__(self, key: object, answer: Future[Any]) -> None:
        """Keep where the answer will be."""
        super().__init__("The answer is still to come.")
        self.key, self.answer = key, answer


def answered(key: object) -> Future[Any] | None:
    """Return the answer to `key` that a patient function has waited for already, or None."""
    return (_answers.get() or {}).get(key)


def result_of(key: object, answer: Future[_T]) -> _T:
    """Return what `answer` holds, or raise what it raises. A patient function waits elsewhere, any other one here.

    Raises Later.
    """
    if not answer.done() and _answers.get() is not None:
        raise Later(key, answer)
    return answer.result()


def patient(function: Callable[_P, _T]) -> Callable[_P, Awaitable[_T]]:
    """Return `function` for an event loop: it runs in a thread, and holds none while it waits for an answer.

    It is run from its beginning again after each wait, so nothing that it does before may count twice.
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
