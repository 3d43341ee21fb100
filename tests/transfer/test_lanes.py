"""Tasks run side by side, a few at a time; whatever ends one of them ends them all."""

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from threading import Event, Lock

import pytest

from sharding.core.events import Progress
from sharding.core.limits import THREADS
from sharding.core.threads import Threads
from sharding.transfer.lanes import Done, Lanes, collected


def result_of(events: Iterator[Progress | Done[int]]) -> list[int]:
    collecting = collected(events)
    while True:
        try:
            next(collecting)
        except StopIteration as end:
            results: list[int] = end.value
            return results


def test_results_come_in_the_order_of_the_tasks_whichever_is_done_first() -> None:
    second_is_done = Event()

    def first() -> int:
        assert second_is_done.wait(10)
        return 1

    def second() -> int:
        second_is_done.set()
        return 2

    assert result_of(Lanes("verify", 0).run([first, second])) == [1, 2]


@pytest.mark.parametrize("width", [1, THREADS, 5])
def test_so_many_tasks_run_at_a_time_and_no_further_one_while_nobody_asks(width: int) -> None:
    lock, begun, open_now, most = Lock(), [0], [0], [0]
    all_are_in = Event()

    def task() -> int:
        with lock:
            begun[0] += 1
            open_now[0] += 1
            most[0] = max(most[0], open_now[0])
            if open_now[0] == width:
                all_are_in.set()
        assert all_are_in.wait(10)
        with lock:
            open_now[0] -= 1
        return begun[0]

    events = Lanes("transfer", 0, width).run([task] * 20)
    next(event for event in events if isinstance(event, Done))
    assert begun[0] <= width
    assert len(list(events)) >= 19 and begun[0] == 20 and most[0] == width


def test_the_first_error_is_raised_and_wakes_what_waits() -> None:
    never: Future[int] = Future()
    lanes, ended, pool = Lanes("check", 0), Event(), Threads(1)

    def waits() -> int:
        try:
            return lanes.result(pool, never)
        except CancelledError:
            ended.set()
            raise

    def fails() -> int:
        raise ConnectionError("the cable is out")

    tasks: list[Callable[[], int]] = [waits, fails, waits, waits]
    with pytest.raises(ConnectionError, match="cable"):
        list(lanes.run(tasks, on_stop=lambda: None))
    assert ended.is_set()


def test_what_is_counted_by_all_is_told_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sharding.transfer.progress.PROGRESS_SECONDS", 0)
    lanes = Lanes("verify", 1000)

    def task(size: int) -> Callable[[], int]:
        def count() -> int:
            for _ in range(10):
                lanes.count(size // 10, "model.safetensors")
            return size

        return count

    events = list(lanes.run([task(size) for size in (100, 200, 700)]))
    told = [event.bytes_done for event in events if isinstance(event, Progress)]
    assert told == sorted(told) and told[-1] == 1000
