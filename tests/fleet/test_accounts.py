"""What is counted of parts: bytes once, costs by node, of memory the peak, hashes of ranges that overlap."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sharding.core.events import Progress
from sharding.core.values import FileEntry
from sharding.fleet.crew import Crew
from sharding.fleet.parts import Part, PartEvent
from sharding.report.schema import NodeCost, Resources
from sharding.storage.folder_source import open_folder
from sharding.verify.digests import Reader
from tests.fleet.hands import Hands
from tests.fleet.told import FILES, NOTHING, Told, done, source, working
from tests.folders import result_of

__all__ = ["source"]


def test_bytes_of_a_lost_part_are_counted_once_and_never_beyond_the_total(
    source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.fleet.crew.TOLD_SECONDS", 0)

    def answer(part: Part, attempt: int) -> list[PartEvent | None]:
        size = part.shard.bytes
        half, most = (working(part, bytes_done) for bytes_done in (size // 2, size - 1))
        return [half, most, *([None] if attempt < 3 else [half, done(part)])]

    workers = Told(answer)
    workers.count_now = 1
    work = Crew(workers).digest_files([source], source.files)
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


def test_each_byte_of_a_file_is_counted_once_while_a_fleet_writes(source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sharding.fleet.crew.TOLD_SECONDS", 0)

    def answer(part: Part, attempt: int) -> list[PartEvent | None]:
        most, less = (working(part, part.shard.bytes // share) for share in (2, 4))
        return [most, None] if attempt < 2 else [less, done(part)]

    for phase, counted in (("transfer", FILES), ("verify", {})):
        told = Counter[str]()
        for event in Crew(Told(answer)).digest_files([source], source.files, phase=phase):
            told.update(event.files)
        assert told == counted


def test_what_each_node_took_is_added_up_and_of_memory_the_peak(source: Any) -> None:
    peaks = {"file0": 700, "file1": 900, "file2": 300, "file3": 100, "file4": 200}

    def answer(part: Part, _: int) -> list[PartEvent | None]:
        file = part.shard.file
        node = "b" if file in ("file0", "file1", "file2") else "a"
        spent = {"bytes_read": 10, "read_requests": 1, "bytes_uploaded": 5, "bytes_deduplicated": 3}
        return [done(part, node, seconds=1.5, peak_anon_bytes=peaks[file], **spent)]

    crew = Crew(Told(answer))
    result_of(crew.digest_files([source], source.files))
    assert crew.cost.engine == "told 1" and crew.cost.repeated == ()
    assert crew.cost.nodes == (NodeCost("a", 2, 900, 3.0, 200), NodeCost("b", 3, 600, 4.5, 900))
    # What is read to prove something is no part of what the job has read of its source.
    assert crew.spent == Resources(900, 7.5, 0, 0, 25, 15, 0)


def test_what_two_parts_have_cost_is_added_up_and_the_peak_is_the_larger() -> None:
    one, other = Resources(500, 1.0, 10, 1, 100, 7, 3), Resources(300, 2.0, 20, 2, 200, 8, 4)
    assert one + other == other + one == Resources(500, 3.0, 30, 3, 300, 15, 7)
    assert one + NOTHING == NOTHING + one == one


@pytest.mark.parametrize("loses", [False, True])
def test_of_ranges_that_overlap_each_has_its_hash_and_the_file_that_of_its_whole(loses: bool, tmp_path: Path) -> None:
    for name, size in (("one", 1000), ("two", 300), ("three", 50)):
        (tmp_path / name).write_bytes(bytes(number * 7 % 251 for number in range(size)))
    source = open_folder(str(tmp_path))
    files = [FileEntry(file.path, file.bytes) for file in source.files]
    ranges = {"one": {(0, 1000), (10, 500), (400, 600), (450, 460)}, "two": {(20, 30), (100, 300)}, "three": set()}
    hands = Hands(lambda part, said, attempt: loses and attempt == 1)
    many = result_of(Crew(hands).digest_files([source], files, ranges))
    one = result_of(Reader().digest_files([source], files, ranges))
    for file, places in ranges.items():
        assert many[file].sha256 == one[file].sha256
        assert {*many[file].samples} == {*one[file].samples} and len(one[file].samples) == len(places)
