"""Too little memory, wherever it is noticed, is one sentence; and a thread that dies of it keeps nobody waiting."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from threading import Barrier, Event
from typing import Any

import pytest

from sharding.core.errors import Fault, Refused, is_lack_of_memory, unforeseen
from sharding.core.threads import Threads, readers


class ArrowMemoryError(Exception):
    """A library's own, which is none of Python's."""


LACKS: list[Exception] = [
    MemoryError(),
    ArrowMemoryError("no 12 bytes more"),
    RuntimeError("std::bad_alloc"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    OSError(12, "Cannot allocate memory"),
    RuntimeError("MemoryError: "),
    ImportError("libtorch.so: failed to map segment from shared object"),
    RuntimeError("can't start new thread"),
    SystemError("<function Module.__getattr__ at 0x7f> returned NULL without setting an exception"),
]
OTHERS = [ImportError("no module"), KeyError("allocate"), OSError(28, "No space left on device"), ValueError("memory")]


@pytest.mark.parametrize("error", LACKS, ids=repr)
def test_a_lack_of_memory_is_one_sentence_in_whatever_words_it_comes(error: Exception) -> None:
    said = unforeseen(error)
    assert is_lack_of_memory(error) and isinstance(said, Refused)
    assert said.message == "This machine does not have enough memory."
    assert said.hint.startswith("Use a machine with more memory") and "Finished work is kept" in said.hint


@pytest.mark.parametrize("error", OTHERS, ids=repr)
def test_what_is_none_is_a_fault_of_the_program(error: Exception) -> None:
    assert not is_lack_of_memory(error) and isinstance(unforeseen(error), Fault)


LOST = "lost"


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A thread that has found LOST has no memory left to hand it over."""
    usual = Future.set_result

    def set_result(future: "Future[Any]", result: Any) -> None:
        if result == LOST:
            raise MemoryError
        usual(future, result)

    monkeypatch.setattr(Future, "set_result", set_result)
    monkeypatch.setattr("sharding.core.threads.PROGRESS_SECONDS", 0.002)
    caplog.set_level(60)


@pytest.fixture
def pool() -> Iterator[Threads]:
    with readers(3) as pool:
        barrier = Barrier(3)
        assert [future.result() for future in [pool.submit(barrier.wait) for _ in range(3)]]  # all three are there
        yield pool


def patience() -> Callable[[], None]:
    """Be called now and then, and not for ever."""
    left = iter(range(2000))
    return lambda: next(left) is None or None


@pytest.mark.parametrize("deaths", [1, 2, 3])
def test_who_waits_for_a_thread_that_died_hears_of_it_while_others_live(
    pool: Threads, dying: None, deaths: int
) -> None:
    sound = pool.submit(lambda: 7)
    assert pool.result(sound, patience()) == 7
    lost = [pool.submit(lambda: LOST) for _ in range(deaths)]
    for future in lost:
        with pytest.raises(MemoryError):
            pool.result(future, patience())
    assert pool.result(sound) == 7 and not pool.has_lost(sound)
    assert all(map(pool.has_lost, lost))


def test_whoever_lives_is_waited_for(pool: Threads) -> None:
    go, called = Event(), list[int]()

    def go_on() -> None:
        called.append(1)
        assert not pool.has_lost(late)
        if len(called) == 3:
            go.set()

    late = pool.submit(lambda: go.wait(60))
    assert pool.result(late, go_on) is True and len(called) >= 3
    failing = pool.submit(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        pool.result(failing)


def test_of_several_that_one_waits_for_in_turn_the_lost_one_is_noticed(pool: Threads, dying: None) -> None:
    found = pool.map(lambda item: item, [1, 2, LOST, 4])
    assert [next(found), next(found)] == [1, 2]
    with pytest.raises(MemoryError):
        next(found)
