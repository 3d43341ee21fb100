"""How parts are led: how many at a time, which are begun again, what ends them all."""

from typing import Any

import pytest

from sharding.core import errors
from sharding.core.errors import GrantExpired, Refused, ShardingError, SourceError
from sharding.core.protocols import LentSource
from sharding.fleet.crew import Crew
from sharding.fleet.parts import Part, PartEvent
from sharding.transfer.noting_source import NotingSource
from tests.fleet.told import FILES, HASHES, Answer, Told, done, failed, read, sha256_of, source, working
from tests.folders import result_of

__all__ = ["source"]


def test_as_many_parts_are_under_way_as_there_are_processors_and_more_once_there_are_more(source: Any) -> None:
    slow: Answer = lambda part, _: [*[working(part)] * 20, done(part)]  # noqa: E731
    for count in (1, 2, 5, 9):
        workers = Told(slow)
        workers.count_now = count
        assert read(workers, source) == HASHES
        assert max(workers.at_once) == min(count, 5) and workers.begun == dict.fromkeys(FILES, 1)
    growing = Told(slow, iter([1] * 5 + [3] * 5))
    read(growing, source)
    assert growing.at_once[:5] == [1] * 5 and max(growing.at_once) == 3
    shrinking = Told(lambda part, _: [*[working(part)] * 4, done(part)], iter([3] * 3 + [1] * 100))
    read(shrinking, source)
    assert shrinking.at_once[:3] == [1, 2, 3] and shrinking.at_once[-3:] == [1, 1, 1]


@pytest.mark.parametrize("end", [None, failed(again=True), failed("SourceError", again=True)])
def test_a_part_is_begun_three_times_and_no_more(end: PartEvent | None, source: Any) -> None:
    twice = Told(lambda part, attempt: [end if part.shard.file == "file1" and attempt < 3 else done(part)])
    crew = Crew(twice)
    assert sha256_of(crew.digest_files([source], source.files)) == HASHES
    assert twice.begun == {**dict.fromkeys(FILES, 1), "file1": 3} and crew.cost.repeated == ("file1", "file1")
    ever = Told(lambda part, _: [end if part.shard.file == "file1" else done(part)])
    kind = Refused if end is None else {"GrantExpired": GrantExpired, "SourceError": SourceError}[end.kind]  # type: ignore[union-attr]
    with pytest.raises(kind, match="The worker for file1 has died 3 times" if end is None else "It has ended"):
        read(ever, source)
    assert ever.begun["file1"] == 3


def test_what_another_try_does_not_help_is_not_tried_again(source: Any) -> None:
    workers = Told(lambda part, _: [failed("SourceError", again=False) if part.shard.file == "file1" else done(part)])
    with pytest.raises(SourceError):
        read(workers, source)
    assert workers.begun["file1"] == 1


RAISED = (
    *(errors.UsageError, errors.SourceError, errors.HeaderError, errors.DamagedError, errors.OverflowRefused),
    *(errors.DestinationError, errors.Refused, errors.GrantExpired),
)


@pytest.mark.parametrize("kind", RAISED)
def test_an_error_of_a_part_is_raised_as_it_was_and_names_the_node(kind: type[ShardingError], source: Any) -> None:
    for hint, remedy in (("", None), ("Do that.", errors.Remedy("allow_overflow"))):
        with pytest.raises(ShardingError) as raised:
            read(Told(lambda *_: [failed(kind.__name__, again=False, hint=hint, remedy=remedy)]), source)  # noqa: B023
        assert type(raised.value) is kind and raised.value.message == "It has ended."
        assert (raised.value.hint, raised.value.remedy) == (f"{hint} It failed on node here.".strip(), remedy)


@pytest.mark.parametrize("how", ["error", "death", "closed", "interrupted"])
def test_whatever_ends_the_job_ends_all_parts_that_are_under_way(how: str, source: Any) -> None:
    under_way: Answer = lambda part, _: [working(part, 50)] * 99  # noqa: E731
    end: dict[str, Answer] = {
        "error": lambda part, _: [working(part), failed("SourceError", again=False)],
        "death": lambda part, _: [working(part), None],
    }
    workers = Told(
        lambda part, attempt: (end.get(how, under_way) if "0" in part.shard.file else under_way)(part, attempt)
    )
    workers.count_now = 3
    crew = Crew(workers)
    work = crew.digest_files([source], source.files)
    if how in ("closed", "interrupted"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sharding.fleet.crew.TOLD_SECONDS", 0)
            while max(workers.at_once, default=0) < 3:
                next(work)
        if how == "closed":
            work.close()
        else:
            with pytest.raises(KeyboardInterrupt):
                work.throw(KeyboardInterrupt)
        assert workers.stopped == ["file0 1", "file1 1", "file2 1"]
        return
    with pytest.raises(ShardingError):
        result_of(work)
    others = {file: times for file, times in workers.begun.items() if file != "file0"}
    assert sorted(workers.stopped) == sorted(f"{file} {n + 1}" for file, times in others.items() for n in range(times))
    assert workers.stopped


class Clock:
    """A clock that goes as far as is waited."""

    def __init__(self, workers: Told) -> None:
        self._workers = workers

    def monotonic(self) -> float:
        return 1000.0 + self._workers.waited


@pytest.mark.parametrize("seconds", [59.0, 61.5])
def test_a_processor_is_waited_for_a_minute_each_time_that_nothing_is_under_way(
    seconds: float, source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    none, counts = [0] * round(seconds / 0.1), list[int]()
    for _ in FILES:
        counts += [*none, 1]
    workers = Told(lambda part, _: [done(part)], iter(counts))
    monkeypatch.setattr("sharding.fleet.crew.time", Clock(workers))
    if seconds < 60:
        assert read(workers, source) == HASHES and workers.waited > 4 * seconds
    else:
        with pytest.raises(Refused, match="The cluster has had no processor for 60 s") as refused:
            read(workers, source)
        assert refused.value.hint and not workers.begun


def test_a_long_part_under_way_needs_no_further_processor(source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Told(
        lambda part, _: [*[working(part)] * (900 if part.shard.file == "file0" else 0), done(part)],
        iter([1] + [0] * 901 + [1] * 9),
    )
    monkeypatch.setattr("sharding.fleet.crew.time", Clock(workers))
    assert read(workers, source) == HASHES and workers.waited > 80


def test_access_is_asked_for_when_a_part_is_sent_out_and_again_for_each_attempt(source: Any) -> None:
    class Lending(NotingSource):
        asked = 0

        def lend(self, files: Any) -> LentSource:
            self.asked += 1
            return super().lend(files)

    lending = Lending(source)
    asked: list[int] = []

    def answer(part: Part, attempt: int) -> list[PartEvent | None]:
        asked.append(lending.asked)
        return [failed(again=True) if attempt < 3 else done(part)]

    read(Told(answer), lending)
    assert asked == list(range(1, 16)), "one for each that is sent, not before"
