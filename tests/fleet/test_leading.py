"""How parts are led: how many at a time, which are begun again, what ends them all, what they have cost."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sharding.core import errors
from sharding.core.errors import GrantExpired, Refused, ShardingError, SourceError
from sharding.core.events import Progress
from sharding.core.lent import LentSource
from sharding.core.values import FileEntry, NodeCost, ShardRecord
from sharding.fleet.crew import Crew
from sharding.fleet.parts import Part, PartDone, PartFailed, Said, Spent, UnderWay, Worker, parse_part
from sharding.storage.folder_source import open_folder
from sharding.transfer.source_view import SourceView
from sharding.verify.digests import ThisMachine
from tests.fleet.hands import Hands
from tests.folders import result_of

FILES = {f"file{number}": 100 * (number + 1) for number in range(5)}
HERE = Worker("here", 1)
Answer = Callable[[Part, int], list[Said | None]]


def done(part: Part, node: str = "here", **spent: Any) -> PartDone:
    record = ShardRecord(part.shard.file, part.shard.bytes, f"hash of {part.shard.file}", {})
    return PartDone(Worker(node, 1), record, Spent(**spent))


def failed(kind: str = "GrantExpired", *, again: bool, hint: str = "") -> PartFailed:
    return PartFailed(HERE, kind, "It has ended.", hint, again)


class Told:
    """Workers that say of each attempt at a part what `answer` says, one thing at a time. See `crew.Workers`."""

    name = "told 1"

    def __init__(self, answer: Answer, counts: Iterator[int] | None = None) -> None:
        self.answer = answer
        self.counts = counts
        self.count_now = 2
        self.begun: Counter[str] = Counter()
        self.at_once: list[int] = []
        self.stopped: list[str] = []
        self.waited = 0.0
        self._left: dict[str, list[Said | None]] = {}

    @property
    def count(self) -> int:
        self.count_now = next(self.counts, self.count_now) if self.counts else self.count_now
        return self.count_now

    def start(self, part: str) -> str:
        parsed = parse_part(part)
        self.begun[parsed.shard.file] += 1
        known = f"{parsed.shard.file} {self.begun[parsed.shard.file]}"
        self._left[known] = self.answer(parsed, self.begun[parsed.shard.file])
        return known

    def stop(self, part: str) -> None:
        self.stopped.append(part)

    def wait(self, parts: list[str], seconds: float) -> Iterator[tuple[str, Said | None]]:
        self.at_once.append(len(parts))
        self.waited += seconds
        for part in parts:
            yield part, self._left[part].pop(0)


@pytest.fixture
def source(tmp_path: Path) -> Any:
    for name, size in FILES.items():
        (tmp_path / name).write_bytes(bytes(size))
    return open_folder(str(tmp_path))


def read(workers: Any, source: Any) -> dict[str, str]:
    return result_of(Crew(workers).digest_files(source, FILES))


HASHES = {file: f"hash of {file}" for file in FILES}


def test_as_many_parts_are_under_way_as_there_are_processors_and_more_once_there_are_more(source: Any) -> None:
    slow: Answer = lambda part, _: [*[UnderWay(HERE, 1, 0.0, 0)] * 20, done(part)]  # noqa: E731
    for count in (1, 2, 5, 9):
        workers = Told(slow)
        workers.count_now = count
        assert read(workers, source) == HASHES
        assert max(workers.at_once) == min(count, 5) and workers.begun == dict.fromkeys(FILES, 1)
    growing = Told(slow, iter([1] * 5 + [3] * 5))
    read(growing, source)
    assert growing.at_once[:5] == [1] * 5 and max(growing.at_once) == 3
    shrinking = Told(lambda part, _: [*[UnderWay(HERE, 1, 0.0, 0)] * 4, done(part)], iter([3] * 3 + [1] * 100))
    read(shrinking, source)
    assert shrinking.at_once[:3] == [1, 2, 3] and shrinking.at_once[-3:] == [1, 1, 1]


@pytest.mark.parametrize("end", [None, failed(again=True), failed("SourceError", again=True)])
def test_a_part_is_begun_three_times_and_no_more(end: Said | None, source: Any) -> None:
    twice = Told(lambda part, attempt: [end if part.shard.file == "file1" and attempt < 3 else done(part)])
    crew = Crew(twice)
    assert result_of(crew.digest_files(source, FILES)) == HASHES
    assert twice.begun == {**dict.fromkeys(FILES, 1), "file1": 3} and crew.cost.repeated == ("file1", "file1")
    ever = Told(lambda part, _: [end if part.shard.file == "file1" else done(part)])
    kind = Refused if end is None else {"GrantExpired": GrantExpired, "SourceError": SourceError}[end.kind]  # type: ignore[union-attr]
    with pytest.raises(kind, match="The worker of file1 has died, 3 times over" if end is None else "It has ended"):
        read(ever, source)
    assert ever.begun["file1"] == 3


def test_what_another_try_does_not_help_is_not_tried_again(source: Any) -> None:
    workers = Told(lambda part, _: [failed("SourceError", again=False) if part.shard.file == "file1" else done(part)])
    with pytest.raises(SourceError):
        read(workers, source)
    assert workers.begun["file1"] == 1


RAISED = {
    kind.__name__: kind
    for kind in (
        *(errors.UsageError, errors.SourceError, errors.HeaderError, errors.DamagedError, errors.OverflowRefused),
        *(errors.DestinationError, errors.Refused, errors.GrantExpired),
    )
}


@pytest.mark.parametrize("name", RAISED)
@pytest.mark.parametrize("hint", ["", "Do that."])
def test_an_error_of_a_part_is_raised_as_it_was_and_names_the_node(name: str, hint: str, source: Any) -> None:
    with pytest.raises(ShardingError) as raised:
        read(Told(lambda part, _: [failed(name, again=False, hint=hint)]), source)
    assert type(raised.value) is RAISED[name] and raised.value.message == "It has ended."
    assert raised.value.hint == f"{hint} That was on node here.".strip()


def under_way(part: Part, _: int) -> list[Said | None]:
    return [UnderWay(HERE, 50, 1.0, 7)] * 99


@pytest.mark.parametrize("how", ["error", "death", "closed", "interrupted"])
def test_whatever_ends_the_job_ends_all_parts_that_are_under_way(how: str, source: Any) -> None:
    end: dict[str, Answer] = {
        "error": lambda part, _: [UnderWay(HERE, 1, 0.0, 0), failed("SourceError", again=False)],
        "death": lambda part, _: [UnderWay(HERE, 1, 0.0, 0), None],
    }
    workers = Told(
        lambda part, attempt: (end.get(how, under_way) if "0" in part.shard.file else under_way)(part, attempt)
    )
    workers.count_now = 3
    crew = Crew(workers)
    work = crew.digest_files(source, FILES)
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
    begun = {f"{file} {attempt}" for file, times in workers.begun.items() for attempt in range(1, times + 1)}
    ended = {f"file0 {attempt}" for attempt in range(1, workers.begun["file0"] + 1)}
    assert set(workers.stopped) == begun - ended and len(workers.stopped) == len(begun - ended) >= 1


def test_bytes_of_a_lost_part_are_counted_once_and_never_beyond_the_total(
    source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.fleet.crew.TOLD_SECONDS", 0)

    def answer(part: Part, attempt: int) -> list[Said | None]:
        size = part.shard.bytes
        half, most = (UnderWay(HERE, bytes_done, 1.0, 7) for bytes_done in (size // 2, size - 1))
        return [half, most, *([None] if attempt < 3 else [half, done(part)])]

    workers = Told(answer)
    workers.count_now = 1
    work = Crew(workers).digest_files(source, FILES)
    told = [event for event in work if isinstance(event, Progress)]
    total = sum(FILES.values())
    figures = [event.bytes_done for event in told]
    assert {event.bytes_total for event in told} == {total}
    assert figures == sorted(figures) and figures[-1] == total and figures.count(total) == 1
    for event in told:
        for one in event.workers:
            known = sum(FILES[file] for file in FILES if file <= one.file)
            assert event.bytes_done <= known, "no more than all of it and of those before"
    at_work = {(one.node, one.pid, one.file, one.anon_bytes) for event in told for one in event.workers}
    assert at_work == {("here", 1, file, 7) for file in FILES}


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
        lambda part, _: [*[UnderWay(HERE, 1, 1.0, 0)] * (900 if part.shard.file == "file0" else 0), done(part)],
        iter([1] + [0] * 901 + [1] * 9),
    )
    monkeypatch.setattr("sharding.fleet.crew.time", Clock(workers))
    assert read(workers, source) == HASHES and workers.waited > 80


def test_what_each_node_took_is_added_up_and_of_memory_the_peak(source: Any) -> None:
    peaks = {"file0": 700, "file1": 900, "file2": 300, "file3": 100, "file4": 200}

    def answer(part: Part, _: int) -> list[Said | None]:
        file = part.shard.file
        node = "b" if file in ("file0", "file1", "file2") else "a"
        spent = {"bytes_read": 10, "read_requests": 1, "bytes_uploaded": 5, "bytes_deduplicated": 3}
        return [done(part, node, seconds=1.5, peak_anon_bytes=peaks[file], **spent)]

    crew = Crew(Told(answer))
    result_of(crew.digest_files(source, FILES))
    assert crew.cost.engine == "told 1" and crew.cost.repeated == ()
    assert crew.cost.nodes == (NodeCost("a", 2, 900, 3.0, 200), NodeCost("b", 3, 600, 4.5, 900))
    # What is read to prove something is no part of what the job has read of its source.
    assert crew.spent == Spent(7.5, 900, 0, 0, 25, 15)


def test_what_two_parts_have_cost_is_added_up_and_the_peak_is_the_larger() -> None:
    one, other = Spent(1.0, 500, 10, 1, 100, 7), Spent(2.0, 300, 20, 2, 200, 8)
    assert one + other == other + one == Spent(3.0, 500, 30, 3, 300, 15)
    assert one + Spent() == Spent() + one == one


def test_access_is_asked_for_when_a_part_is_sent_out_and_again_for_each_attempt(source: Any) -> None:
    class Lending(SourceView):
        asked = 0

        def lend(self, files: Any) -> LentSource:
            self.asked += 1
            return super().lend(files)

    lending = Lending(source)
    asked: list[int] = []

    def answer(part: Part, attempt: int) -> list[Said | None]:
        asked.append(lending.asked)
        return [failed(again=True) if attempt < 3 else done(part)]

    read(Told(answer), lending)
    assert asked == list(range(1, 16)), "one for each that is sent, not before"


@pytest.mark.parametrize("loses", [False, True])
def test_of_ranges_that_overlap_each_has_its_hash_and_the_file_that_of_its_whole(loses: bool, tmp_path: Path) -> None:
    for name, size in (("one", 1000), ("two", 300), ("three", 50)):
        (tmp_path / name).write_bytes(bytes(number * 7 % 251 for number in range(size)))
    source = open_folder(str(tmp_path))
    files = [FileEntry(file.path, file.bytes) for file in source.files]
    ranges = {"one": {(0, 1000), (10, 500), (400, 600), (450, 460)}, "two": {(20, 30), (100, 300)}, "three": set()}
    hands = Hands(lambda part, said, attempt: loses and attempt == 1)
    many = result_of(Crew(hands).digest_ranges(source, files, ranges))
    one = result_of(ThisMachine().digest_ranges(source, files, ranges))
    for file in ranges:
        assert many[file].sha256 == one[file].sha256
        assert {place: many[file].ranges[place] for place in ranges[file]} == {
            place: one[file].ranges[place] for place in ranges[file]
        }
