"""What is said of a finished shard is what its file is, in the run that wrote it and in a later one that keeps it."""

import hashlib
from dataclasses import replace
from pathlib import Path

from sharding import job
from sharding.core.events import ShardFinished


def test_a_shard_that_is_kept_is_told_as_it_was_when_it_was_written(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    events = job.shard(str(checkpoint), str(out), "60kB")
    first = next(event for event in events if isinstance(event, ShardFinished))
    events.close()
    told = [event for event in job.shard(str(checkpoint), str(out), "60kB") if isinstance(event, ShardFinished)]
    assert told[0] == replace(first, kept=True)
    assert [event.kept for event in told] == [True] + [False] * (len(told) - 1)
    assert len(told) > 2
    for number, event in enumerate(told, start=1):
        data = (out / event.file).read_bytes()
        assert (event.bytes, event.sha256) == (len(data), hashlib.sha256(data).hexdigest())
        assert (event.number, event.shards) == (number, len(told))
