"""Do one part of a job: read, make, hash and write one file, and report its progress."""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Literal

from typing_extensions import override

from sharding.core.errors import GrantExpired, ShardingError, unforeseen
from sharding.core.events import AtWork
from sharding.core.limits import GRANT_MARGIN_SECONDS, TOLD_SECONDS
from sharding.core.meter import Meter
from sharding.core.protocols import LentDestination, LentSource, ShardSink, Source
from sharding.core.values import FileEntry
from sharding.fleet.parts import Part, PartDone, PartEvent, PartFailed, event_json, parse_part, pieces_of
from sharding.report.schema import Resources
from sharding.storage.folder_source import FolderSource
from sharding.storage.folder_writing import FolderSink
from sharding.storage.hub.client import Hub
from sharding.storage.hub.guard import checked_grant, checked_place
from sharding.storage.hub.source import HubSource
from sharding.storage.hub.upload import StoreSink
from sharding.transfer.lanes import Done
from sharding.transfer.noting_source import NotingSource
from sharding.transfer.stream import NOWHERE, move_shards


def work(text: str, node: str) -> Iterator[str]:
    """Do the part in `text` on the machine `node`; yield lines of its progress, its outcome last. It is idempotent."""
    part = parse_part(text)
    try:
        for event in _do(part, node):
            yield event_json(event)
    except ShardingError as error:
        again = _is_worth_another_try(error, part)
        yield event_json(PartFailed(node, type(error).__name__, error.message, error.hint, again, error.remedy))
    except Exception as error:
        fault = unforeseen(error)
        yield event_json(PartFailed(node, type(fault).__name__, fault.message, fault.hint))


def _do(part: Part, node: str) -> Iterator[PartEvent]:
    with Meter() as meter, ExitStack() as stack:
        origins = [open_lent(source) for source in part.sources]
        reading = [NotingSource(origin, number) for number, origin in enumerate(origins)] if part.notes else origins
        sink = stack.enter_context(closing(open_lent_destination(part.target) if part.target else NOWHERE))
        record = sink.finished(part.shard.file)
        reported = -TOLD_SECONDS
        what = part.phase, [part.shard], lambda _: pieces_of(part), reading, sink
        for event in () if record else move_shards(*what, may_overflow=part.may_overflow):
            if isinstance(event, Done):
                record = event.result
            elif meter.seconds >= reported + TOLD_SECONDS:
                reported = meter.seconds
                yield AtWork(node, os.getpid(), part.shard.file, event.bytes_done, reported, meter.anon_bytes)
        assert record, "moving ends with a record, or is refused"
        seconds = meter.seconds
    read = sum(origin.bytes_read for origin in origins), sum(origin.requests for origin in origins)
    sent = sink.bytes_uploaded, sink.bytes_deduplicated
    # The meter has stopped: its last sample shows the process at the end. Nobody counts writes to the disk here.
    yield PartDone(node, record, Resources(meter.peak_anon_bytes, seconds, *read, *sent, disk_bytes_written=0))


def _is_worth_another_try(error: ShardingError, part: Part) -> bool:
    """Return whether access expired, by any clock, or the store was out of reach: hf-xet does not say which."""
    cause = error.__cause__
    if isinstance(error, GrantExpired) or isinstance(cause, (PermissionError, ConnectionError, TimeoutError)):
        return True
    if "401 Unauthorized" in str(cause):
        return True
    grants = (*(source.grant for source in part.sources), part.target.grant if part.target else None)
    return any(grant.expires <= time.time() + GRANT_MARGIN_SECONDS for grant in grants if grant)


class GrantedHub(Hub):
    """A Hub that has given access to some files, or to a place for some."""

    least_xet_bytes = 0  # Every file in the store is read from there, because HTTP might need a login.

    def __init__(self, lent: LentSource | LentDestination) -> None:
        super().__init__(lent.hub, None)
        self._grant = lent.grant
        self._places = {file.file: file.place for file in lent.files} if isinstance(lent, LentSource) else {}

    @override
    def address(self, repo_id: str, revision: str, path: str) -> str:
        return checked_place(self._places[path])

    @override
    def _xet_access(self, kind: Literal["read", "write"], repo_id: str, revision: str) -> dict[str, Any]:
        if self._grant is None or self._grant.expires <= time.time() + GRANT_MARGIN_SECONDS:
            message = f"The access to {repo_id} for this part of the job has expired."
            raise GrantExpired(message, "Start the same job again. It goes on where it stopped.")
        return self._reached_with(checked_grant(self._grant, self.endpoint))


def open_lent(lent: LentSource) -> Source:
    """Return a source with the files that were `lent`. Raises SourceError if a folder has other files, or none."""
    if not lent.hub:
        # The folders above a file may be links on this machine. The file itself was no link on the first machine.
        places = ((file.file, Path(file.place)) for file in lent.files)
        source = FolderSource(lent.ref.repo_id, {file: place.parent.resolve() / place.name for file, place in places})
        source.refuse_other(lent)
        return source
    files = tuple(FileEntry(file.file, file.bytes, xet_hash=file.xet_hash) for file in lent.files)
    return HubSource(GrantedHub(lent), lent.ref, files=files)


def open_lent_destination(lent: LentDestination) -> ShardSink:
    """Return the sink for the shards. Raises DestinationError if a folder does not hold the job."""
    if lent.folder:
        sink = FolderSink(Path(lent.folder), lent.plan_id)
        sink.refuse_other()
        return sink
    return StoreSink(GrantedHub(lent), lent.ref.repo_id)
