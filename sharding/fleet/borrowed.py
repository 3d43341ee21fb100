"""Open on one machine what a job on another one has lent."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from sharding.core.lent import LentDestination, LentSource
from sharding.core.protocols import ShardSink, Source
from sharding.core.values import FileEntry, ShardRecord
from sharding.fleet.shared_folder import SharedFolder
from sharding.storage.folder_source import FolderSource


class LentSink(ShardSink, Protocol):
    """A destination as one of several machines sees it."""

    @property
    def bytes_uploaded(self) -> int:
        """Bytes that were sent to a store."""
        ...

    @property
    def bytes_deduplicated(self) -> int:
        """Bytes that the store had already."""
        ...

    def finished(self, file: str) -> ShardRecord | None:
        """Return the record of a shard that another attempt has left there."""
        ...

    def close(self) -> None:
        """Let go of it: shards that are not finished are gone."""
        ...


def open_lent(lent: LentSource) -> Source:
    """Return a source with the files that were `lent`. Raises SourceError where a folder has others, or none."""
    if not lent.hub:
        # The folders above a file may be links on this machine; the file was none where it was lent.
        places = ((one.file, Path(one.place)) for one in lent.files)
        source = FolderSource(lent.ref.repo_id, {file: place.parent.resolve() / place.name for file, place in places})
        source.refuse_other(lent)
        return source
    from sharding.fleet.granted_hub import GrantedHub
    from sharding.storage.hub.source import HubSource

    files = tuple(FileEntry(one.file, one.bytes, xet_hash=one.xet_hash) for one in lent.files)
    return HubSource(GrantedHub(lent), lent.ref, files=files)


@contextmanager
def open_lent_destination(lent: LentDestination) -> Iterator[LentSink]:
    """Yield where shards go. Raises DestinationError where a folder is not that of the job."""
    sink: LentSink
    if lent.folder:
        sink = SharedFolder(Path(lent.folder), lent.plan_id)
    else:
        from sharding.fleet.granted_hub import GrantedStore

        sink = GrantedStore(lent)
    try:
        yield sink
    finally:
        sink.close()
