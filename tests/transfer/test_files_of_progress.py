"""What progress counts of each file is what the file holds, whether it is written or read again."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharding import job
from sharding.core.events import Planned, Progress
from tests.conftest import random_tensors, write_checkpoint
from tests.hubs import TOKEN, push
from tests.inhouse import InHouse


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "in", {"model.safetensors": random_tensors()}, False)


def counted(events: Iterator[job.Event]) -> tuple[dict[str, int], dict[str, Counter[str]]]:
    """The bytes of each file by the plan, and what was counted of it in each phase."""
    planned, phases = dict[str, int](), {"transfer": Counter[str](), "verify": Counter[str]()}
    for event in events:
        if isinstance(event, Planned):
            planned = {shard.file: shard.bytes for shard in event.plan.shards}
        elif isinstance(event, Progress):
            phases[event.phase].update(event.files)
    return planned, phases


@pytest.mark.parametrize("place", ["folder", "hub"])
def test_each_file_is_counted_once_as_it_is_written_and_once_as_it_is_read_again(
    place: str, folder: Path, hub: InHouse, tmp_path: Path
) -> None:
    """On a Hub too, although there the files of the source are put together."""
    repos = push(hub, folder, "alice/source"), "alice/copy"
    source, copy = repos if place == "hub" else (str(folder), str(tmp_path / "out"))
    planned, phases = counted(job.shard(source, copy, "60kB", endpoint=hub.address, token=TOKEN))
    assert len(planned) > 3 and phases == {"transfer": Counter(planned), "verify": Counter(planned)}


def test_a_cast_copy_and_its_source_are_read_in_one_phase_that_never_falls_back(folder: Path, hub: InHouse) -> None:
    push(hub, folder, "alice/source")
    options = job.Options("60kB", dtype="fp16", allow_overflow=True)
    events = list(job.shard("alice/source", "alice/copy", options, endpoint=hub.address, token=TOKEN))
    (planned,) = [event for event in events if isinstance(event, Planned)]
    reading = [event for event in events if isinstance(event, Progress) and event.phase == "verify"]
    source = sum(file.bytes for file in planned.checkpoint.weight_files)
    assert {event.bytes_total for event in reading} == {planned.plan.total_bytes + source}
    figures = [event.bytes_done for event in reading]
    assert figures == sorted(figures) and figures[-1] == planned.plan.total_bytes + source
