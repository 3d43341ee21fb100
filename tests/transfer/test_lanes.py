"""Tasks run side by side, a few at a time; whatever ends one of them ends them all."""

import concurrent.futures
from collections import Counter
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from threading import Event, Lock
from typing import Any

import pytest

from sharding.core.events import Progress
from sharding.core.limits import PROGRESS_FILES, THREADS
from sharding.core.threads import Threads
from sharding.transfer.lanes import LAST_SECONDS, Done, Lanes, collected
from tests.folders import result_of


def test_results_come_in_the_order_of_the_tasks_whichever_is_done_first() -> None:
    second_is_done = Event()

    def first() -> int:
        assert second_is_done.wait(60)
        return 1

    def second() -> int:
        second_is_done.set()
        return 2

    assert result_of(collected(Lanes("verify", 0).run([first, second]))) == [1, 2]


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
        assert all_are_in.wait(60)
        with lock:
            open_now[0] -= 1
        return begun[0]

    done = (event for event in Lanes("transfer", 0, width).run([task] * 20) if isinstance(event, Done))
    for told, _ in enumerate(done):
        assert begun[0] <= told + width
    assert begun[0] == 20 and most[0] == width


def test_the_first_error_is_raised_and_wakes_what_waits() -> None:
    never: Future[int] = Future()
    lanes, ended, pool = Lanes("check", 0), Event(), Threads(1)

    def waits() -> int:
        try:
            return pool.result(never, lanes.go_on)
        except CancelledError:
            ended.set()
            raise

    def fails() -> int:
        raise ConnectionError("the cable is out")

    tasks: list[Callable[[], int]] = [waits, fails, waits, waits]
    with pytest.raises(ConnectionError, match="cable"):
        list(lanes.run(tasks, on_stop=lambda: None))
    assert ended.is_set()
    begun: list[int] = []

    def also_fails(number: int) -> Callable[[], int]:
        return lambda: begun.append(number) or fails()  # type: ignore[func-returns-value]

    with pytest.raises(ConnectionError, match="cable"):
        list(Lanes("check", 0, 1).run(map(also_fails, range(5)), on_stop=lambda: None))
    assert begun == [0], "no further task is begun"


def test_every_byte_is_counted_in_its_file_and_an_event_names_a_bounded_number_of_files() -> None:
    sizes = {f"model-{number}.safetensors": number + 1 for number in range(3 * PROGRESS_FILES + 1)}
    lanes = Lanes("transfer", 2 * sum(sizes.values()))

    def task() -> int:
        for file, size in sizes.items():
            lanes.count(size, file)
        lanes.count(0)
        return 0

    told = [event for event in lanes.run([task, task]) if isinstance(event, Progress)]
    counted = Counter[str]()
    for event in told:
        assert len(event.files) <= PROGRESS_FILES
        counted.update(event.files)
    assert counted == {file: 2 * size for file, size in sizes.items()}
    figures = [event.bytes_done for event in told]
    assert figures == sorted(figures) and figures[-1] == 2 * sum(sizes.values())


@pytest.mark.parametrize("waits", [True, False])
def test_a_task_ends_as_soon_as_nobody_waits_for_it(waits: bool) -> None:
    lanes, begun, give_up = Lanes("check", 1 << 60), Event(), Event()
    never: Future[int] = Future()
    ended: list[type[BaseException]] = []

    def busy() -> int:
        try:
            begun.set()
            while not give_up.is_set():
                if waits:
                    pool.result(never, lanes.go_on)
                lanes.count(1, "model.safetensors")
        except BaseException as error:
            ended.append(type(error))
            raise
        return 0

    pool = Threads(1)
    try:
        events = lanes.run([busy, busy, busy], on_stop=lambda: None)
        next(events)
        assert begun.wait(60)
        events.close()  # type: ignore[attr-defined]
        assert ended == [CancelledError] * 2
    finally:
        give_up.set()
        never.cancel()


def test_one_that_hangs_is_waited_for_a_while_only_and_nobody_where_nothing_wakes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited: list[tuple[int, float]] = []
    usual = concurrent.futures.wait

    def noting_wait(futures: Any, timeout: float, *more: Any) -> Any:
        if not more:  # at the end, for all
            waited.append((len(futures), timeout))
            return usual(futures, 0)
        return usual(futures, timeout, *more)

    monkeypatch.setattr("sharding.transfer.lanes.wait", noting_wait)
    for on_stop, wanted in ((lambda: None, [(1, LAST_SECONDS)]), (None, [])):
        hangs, release = Event(), Event()

        def hang(hangs: Event = hangs, release: Event = release) -> int:
            hangs.set()
            release.wait(60)
            return 0

        events = Lanes("check", 9).run([hang], on_stop)
        next(events)
        assert hangs.wait(60)
        waited.clear()
        events.close()  # type: ignore[attr-defined]
        assert waited == wanted
        release.set()
