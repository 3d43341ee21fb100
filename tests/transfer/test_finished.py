"""What is said of a finished shard is what its file is, in the run that wrote it and in a later one that keeps it."""

import hashlib
from dataclasses import replace
from pathlib import Path

from sharding import job
from sharding.core.events import ShardFinished


def test_a_shard_that_is_kept_is_told_as_it_was_when_it_was_written(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    events = job.shard(str(checkpoint), str(out), "20kB")
    first = next(event for event in events if isinstance(event, ShardFinished))
    events.close()
    told = [event for event in job.shard(str(checkpoint), str(out), "20kB") if isinstance(event, ShardFinished)]
    assert replace(first, kept=True) in told
    assert 0 < sum(event.kept for event in told) < len(told)
    assert sorted(event.number for event in told) == list(range(1, len(told) + 1))
    for event in told:
        data = (out / event.file).read_bytes()
        assert (event.bytes, event.sha256) == (len(data), hashlib.sha256(data).hexdigest())
        assert event.shards == len(told)
        assert event.file == f"model-{event.number:05d}-of-{event.shards:05d}.safetensors"
