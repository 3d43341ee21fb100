"""Remember which shards of which plan are finished, so that a job that was killed can go on."""

import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from io import FileIO
from pathlib import Path

from sharding.values import ShardRecord

JOURNAL_NAME = "sharding_journal.part"


class Journal:
    """A file with one JSON object a line: first the plan's id, then a `ShardRecord` for every finished shard.

    It is locked while a job writes to it, so that two jobs cannot share a folder. All methods raise OSError
    as files do.
    """

    def __init__(self, folder: Path) -> None:
        """Take the journal of `folder`. Opens nothing."""
        self.path = folder / JOURNAL_NAME
        self.bytes_written = 0
        self._stream: FileIO | None = None

    @property
    def is_ours(self) -> bool:
        """Whether this job holds the lock."""
        return self._stream is not None

    def read(self, plan_id: str) -> dict[str, ShardRecord]:
        """Return what was finished of plan `plan_id`, by file name; nothing if the journal is of another plan."""
        records: dict[str, ShardRecord] = {}
        with suppress(FileNotFoundError, ValueError, TypeError, AttributeError):  # a kill may have cut a line short
            first, *lines = self.path.read_bytes().splitlines()
            if json.loads(first).get("plan_id") == plan_id:
                for line in lines:
                    record = ShardRecord(**json.loads(line))
                    records[record.file] = record
        return records

    def begin(self, plan_id: str, records: Iterable[ShardRecord]) -> None:
        """Lock the journal and write it anew. Raises BlockingIOError while another job holds it."""
        # Unbuffered: on a full disk, buffered bytes would fail once more when the file is closed.
        stream = open(self.path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            stream.close()
            raise
        self._stream = stream
        stream.truncate(0)
        self._append({"plan_id": plan_id}, *(asdict(record) for record in records))

    def note(self, record: ShardRecord) -> None:
        """Add a finished shard; returns once the line would survive a crash."""
        self._append(asdict(record))

    def remove(self) -> None:
        """Delete the journal: what it spoke of is published or discarded."""
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Release the lock."""
        if self._stream:
            self._stream.close()

    def _append(self, *lines: Mapping[str, object]) -> None:
        assert self._stream, "begin comes first"
        text = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        view = memoryview(text)
        while view:
            view = view[self._stream.write(view) :]
        os.fsync(self._stream.fileno())
        self.bytes_written += len(text)
