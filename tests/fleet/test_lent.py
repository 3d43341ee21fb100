"""What a worker makes of what it was lent: the files that were meant, and when another try is worth it."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sharding.core.errors import DestinationError, SourceError
from sharding.core.events import AtWork
from sharding.core.limits import GRANT_MARGIN_SECONDS
from sharding.core.options import Options
from sharding.core.origin import Place
from sharding.core.protocols import Grant, LentDestination, LentSource
from sharding.core.values import Shard, StagedJob
from sharding.fleet.parts import Part, PartDone, PartFailed, parse_event, part_json
from sharding.fleet.worker import open_lent, open_lent_destination, work
from sharding.storage.folder_destination import FolderDestination
from sharding.storage.folder_source import FolderSource, open_folder
from tests.conftest import listing
from tests.tensors import stored_tensor

FILE, OTHER = "model.safetensors", "more.safetensors"


@pytest.fixture
def lent(tmp_path: Path) -> LentSource:
    """Two files of a folder."""
    for file in (FILE, OTHER):
        (tmp_path / file).write_bytes(b"0123456789")
    return open_folder(str(tmp_path)).lend([FILE, OTHER])


def touch(path: Path) -> None:
    os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns + 1))


def longer(path: Path) -> None:
    times = path.stat()
    path.write_bytes(b"0123456789!")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


CHANGES: dict[str, Callable[[Path], object]] = {"touched": touch, "longer": longer, "gone": Path.unlink}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("file", [FILE, OTHER])
def test_other_files_than_were_lent_are_refused_before_any_is_read(
    change: str, file: str, lent: LentSource, tmp_path: Path
) -> None:
    source = open_lent(lent)
    assert b"".join(source.read(FILE, 2, 5)) == b"234" and {one.path for one in source.files} == {FILE, OTHER}
    CHANGES[change](tmp_path / file)
    with pytest.raises(SourceError):
        open_lent(lent)


def test_a_node_without_that_folder_is_refused(lent: LentSource, tmp_path: Path) -> None:
    elsewhere = tuple(replace(one, place=str(tmp_path / "elsewhere" / one.file)) for one in lent.files)
    with pytest.raises(SourceError):
        open_lent(replace(lent, files=elsewhere))
    outcome = outcome_of(replace(lent, files=elsewhere), None)
    assert (outcome.kind, outcome.again) == ("SourceError", False) and outcome.node == "far away"


def outcome_of(source: LentSource, target: LentDestination | None) -> PartFailed:
    shard = Shard(FILE, (stored_tensor("w", "U8", (10,), FILE, 0, 10),), 10)
    part = Part("transfer" if target else "verify", shard, (None,), (source,), target=target)
    (said,) = [parse_event(line) for line in work(part_json(part), "far away")]
    assert isinstance(said, PartFailed)
    return said


@pytest.mark.parametrize(
    ("source_left", "target_left", "again"),
    [
        *((None, None, False), (3600, None, False), (-1, 3600, True), (3600, -1, True), (None, -1, True)),
        *((GRANT_MARGIN_SECONDS - 5, None, True), (None, GRANT_MARGIN_SECONDS - 5, True)),
        (GRANT_MARGIN_SECONDS + 60, GRANT_MARGIN_SECONDS + 60, False),
    ],
)
def test_where_any_access_has_ended_another_try_is_worth_it_whatever_went_wrong(
    source_left: float | None, target_left: float | None, again: bool, lent: LentSource, tmp_path: Path
) -> None:
    (tmp_path / FILE).unlink()  # what goes wrong says nothing of access

    def grant(left: float | None) -> Grant | None:
        return None if left is None else Grant("http://127.0.0.1:9", "t", int(time.time() + left))

    target = LentDestination(Place("hub", "a/b", ""), "p", hub="http://127.0.0.1:9", grant=grant(target_left))
    said = outcome_of(replace(lent, grant=grant(source_left)), target)
    assert (said.kind, said.again) == ("SourceError", again)


def test_a_worker_says_how_far_it_is_and_its_outcome_last(
    lent: LentSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(every: float) -> list[Any]:
        monkeypatch.setattr("sharding.fleet.worker.TOLD_SECONDS", every)
        tensors = tuple(stored_tensor(f"w{n}", "U8", (1,), FILE, n, n + 1) for n in range(10))
        part = Part("verify", Shard(FILE, tensors, 10), (None,) * 10, (lent,))
        return [parse_event(line) for line in work(part_json(part), "far away")]

    for every in (3600.0, 0.0):
        *under_way, done = said(every)
        assert isinstance(done, PartDone) and done.record.bytes == 10 and done.spent.bytes_read == 10
        assert all(isinstance(one, AtWork) and one.node == done.node for one in under_way)
        figures = [one.bytes_done for one in under_way]
        assert figures == sorted(figures) and all(figure <= 10 for figure in figures)
        assert len(under_way) <= 1 or not every


PLAN = "a" * 64


def lent_folder(out: Path) -> LentDestination:
    """A folder with a job in it."""
    target = FolderDestination(out, is_shared=True)
    target.prepare(StagedJob(PLAN, Place("folder", "in", ""), Options()), [], 0)
    target.close()  # the journal stays
    return target.lend()


@pytest.mark.parametrize("change", [{"plan_id": "b" * 64}, {"folder": "elsewhere"}])
def test_a_machine_that_has_another_folder_there_says_so(tmp_path: Path, change: dict[str, str]) -> None:
    with pytest.raises(DestinationError, match="does not hold the job of this worker") as refused:
        open_lent_destination(replace(lent_folder(tmp_path / "out"), **change))  # type: ignore[arg-type]
    assert "All nodes must see the same folder" in refused.value.hint


DAMAGE = SourceError("damaged", "Repair it.")


@pytest.mark.parametrize("error", [DAMAGE, OSError(), KeyboardInterrupt(), GeneratorExit()])
def test_what_an_attempt_has_not_finished_is_gone_whatever_ends_it(
    lent: LentSource, tmp_path: Path, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    target, seen = lent_folder(out), []
    before = listing(out)

    def read(*_: object) -> Iterator[bytes]:
        seen.append(len(listing(out)))
        raise error

    monkeypatch.setattr(FolderSource, "read", read)
    with suppress(KeyboardInterrupt, GeneratorExit):
        outcome = outcome_of(lent, target)
        assert (outcome.kind, outcome.again) == ("SourceError" if error is DAMAGE else "Fault", False)
    assert seen == [len(before) + 1]
    assert listing(out) == before
